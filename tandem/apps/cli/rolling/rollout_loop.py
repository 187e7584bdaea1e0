"""Rolls edit after edit of a platform's file out, one rollout at a time."""

import asyncio
from collections.abc import Callable

from tandem.apps.cli.operations import Operations
from tandem.apps.cli.rolling.rollout import RolloutDeps, ServiceRollout, unchangeable
from tandem.apps.cli.rolling.spec_watch import SpecWatch
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.spec.service import ModelService


class RolloutLoop:
    """Carries out edits of a service. `became` is called after each successful rollout with the service that then
    runs."""

    def __init__(
        self,
        service: ModelService,
        site: RolloutDeps,
        operations: Operations,
        clock: Clock,
        say: Callable[[str], None],
        became: Callable[[ModelService], None],
    ) -> None:
        self._service = service
        self._site = site
        self._operations = operations
        self._clock = clock
        self._say = say
        self._became = became
        self._rollover: ServiceRollout | None = None

    async def run(self, edits: SpecWatch) -> None:
        """Carry out edits until cancelled. An edit during a rollout changes the target of that rollout."""
        rolling: asyncio.Task[None] | None = None
        try:
            while True:
                says = await edits.next()
                problem = says.message if isinstance(says, TandemError) else unchangeable(self._service, says)
                if problem is not None or isinstance(says, TandemError):
                    self._say(f"the edited file is not carried out: {problem}")
                elif rolling is not None and not rolling.done() and self._rollover is not None:
                    await self._rollover.want(says)
                else:
                    rolling = asyncio.create_task(self._roll(says), name="rollout")
        finally:
            if rolling is not None:
                rolling.cancel()
                await asyncio.gather(rolling, return_exceptions=True)

    async def _roll(self, wanted: ModelService) -> None:
        try:
            async with self._operations.alone(self._say):
                self._rollover = rollover = ServiceRollout(self._service, self._site, self._clock, self._say)
                await rollover.begin()
                await rollover.want(wanted)
                if await rollover.run():
                    self._service = rollover.running
                    self._became(self._service)
                    self._say("the edited file is carried out")
                else:
                    self._say("the edited file could not be carried out; what ran before goes on")
        except TandemError as error:
            self._say(f"the edited file could not be carried out: {error.message}")
        finally:
            self._rollover = None
