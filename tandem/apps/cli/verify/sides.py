"""The two sides that are compared: endpoints that run already, and models that are served here for the purpose."""

import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from tandem.apps.bench.probe import find_model
from tandem.apps.cli.display import LineDisplay
from tandem.apps.cli.platform import Platform
from tandem.apps.cli.supervisor import Supervisor
from tandem.apps.cli.up import cleaning_up
from tandem.apps.client.http import Client, Target
from tandem.core.errors import TandemError
from tandem.model.directory import ModelDirectory, open_model
from tandem.spec.service import ModelService

T = TypeVar("T")
Work = Callable[[Target, str], Awaitable[T]]
"""Work to do with a side: called with the side's target and the name of its model."""

_PROBE_S = 30.0


class Side(Protocol):
    """One of the two sides of a comparison."""

    @property
    def name(self) -> str:
        """`A` or `B`."""
        ...

    @property
    def shown(self) -> str:
        """A description of the side for people."""
        ...

    async def use(self, work: Work[T], start_s: float, say: Callable[[str], None]) -> T:
        """Do `work` while it serves. Raises what that raises, and `bad_setting` or `engine_failed`."""
        ...

    def directory(self) -> ModelDirectory | None:
        """The files of the side's model; None where they are not known."""
        ...


@dataclass(frozen=True)
class ExistingEndpoint:
    """An endpoint; without a model, the first it lists."""

    name: str
    target: Target
    model: str | None = None

    @property
    def shown(self) -> str:
        return f"{self.model or 'a model'} at {self.target.authority}"

    async def use(self, work: Work[T], start_s: float, say: Callable[[str], None]) -> T:
        model = self.model
        if model is None:
            async with aclosing(Client(self.target)) as client:
                try:
                    model = (await find_model(client, None, _PROBE_S)).model
                except TandemError as error:
                    reason = error.message.removeprefix("--url: ")
                    raise TandemError("bad_setting", f"{self.name}: {reason}") from error
        return await work(self.target, model)

    def directory(self) -> ModelDirectory | None:
        return None


@dataclass(frozen=True)
class LaunchedService:
    """A service that is started for the comparison, and stopped after it."""

    name: str
    source: str
    service: ModelService

    @property
    def shown(self) -> str:
        return self.source

    async def use(self, work: Work[T], start_s: float, say: Callable[[str], None]) -> T:
        spec = self.service.spec
        router = msgspec.structs.replace(spec.router, port=0, grpc_port=None)
        service = msgspec.structs.replace(self.service, spec=msgspec.structs.replace(spec, router=router))
        platform = Platform(service, os.environ)

        async def serve(supervisor: Supervisor) -> T:
            await platform.ready(supervisor, start_s)
            return await work(platform.target, service.model_name)

        with cleaning_up(platform):
            return await platform.run(LineDisplay(lambda line: say(f"{self.name}: {line}")), serve)

    def directory(self) -> ModelDirectory | None:
        if self.service.spec.engine.type == "simulated":
            return None
        return open_model(self.service.spec.model.source)
