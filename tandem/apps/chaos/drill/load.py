"""The background load of a round: streams that send one request after the other until they are told to stop."""

import asyncio
from collections.abc import Sequence
from itertools import count, cycle

from tandem.apps.chaos.client import ChaosClient
from tandem.apps.chaos.drill.abusers import Abusers
from tandem.apps.chaos.request import ChaosRequest
from tandem.apps.chaos.response import DONE, ReceivedAnswer


class Load:
    """Everything that was asked in one round, background or not, so that every answer gets judged.

    `first` is where in `asks` the background begins; `manners` are those of the clients, in turn. `abusers` misuse
    the platform for as long as the streams go on.
    """

    def __init__(
        self, caller: ChaosClient, asks: Sequence[ChaosRequest], first: int, manners: Sequence[str], abusers: Abusers
    ) -> None:
        self._abusers = abusers
        self._caller = caller
        self._manners = cycle(manners)
        self._asks = asks
        self._numbers = count(first)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False
        self.heard: list[ReceivedAnswer] = []

    def stream(self, streams: int) -> None:
        """Begin that many streams."""
        for _ in range(streams):
            self._tasks.append(asyncio.create_task(self._stream(), name="drill load"))

    async def begin(self, ask: ChaosRequest) -> ReceivedAnswer:
        """One more request, from here on running."""
        begun: asyncio.Future[ReceivedAnswer] = asyncio.get_running_loop().create_future()

        async def one() -> None:
            await self._ask(ask, begun)

        self._tasks.append(asyncio.create_task(one(), name=f"drill {ask.name}"))
        return await begun

    def stop(self) -> None:
        """Ask nothing new, and misuse nothing."""
        self._stopped = True
        self._abusers.stop()

    async def ended(self) -> None:
        """Wait for the end of everything that was asked; each has a bound of its own."""
        self.stop()
        await asyncio.gather(*self._tasks)
        await self._abusers.ended()

    async def abandon(self) -> None:
        """Hang up on everything."""
        self.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._abusers.ended()

    async def _stream(self) -> None:
        """Stops by itself after an end that is not an answer: what failed once would be asked again at once."""
        while not self._stopped:
            number = next(self._numbers)
            # Every third request finds what an earlier one has left in the caches.
            salt = "drill-shared" if number % 3 == 0 else None
            heard = await self._ask(self._asks[number % len(self._asks)], None, salt)
            if heard.end != DONE:
                return

    async def _ask(
        self, ask: ChaosRequest, begun: "asyncio.Future[ReceivedAnswer] | None", salt: str | None = None
    ) -> ReceivedAnswer:
        def began(heard: ReceivedAnswer) -> None:
            self.heard.append(heard)
            if begun is not None:
                begun.set_result(heard)

        return await self._caller.ask(ask, began, salt, next(self._manners))
