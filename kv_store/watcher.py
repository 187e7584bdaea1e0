"""Watches workers over one link from the store to each, like a router's: what a worker reports of itself and its
blocks."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from kv_store.replicator import Holder
from kv_store.settings import CollectSettings
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.core.kv import NAME_BYTES
from tandem.core.messages import Hello, KvDelta, KvSnapshot, Ping, Pong, Ready
from tandem.link.protocol import Dialer, RouterLink
from tandem.process.logs import event

_log = logging.getLogger(__name__)


class BlockEventSink(Protocol):
    """Receiver of the block events of workers (`kv_store.replicator.Replicator`)."""

    def told(self, holder: Holder, stored: Sequence[bytes], removed: Sequence[bytes]) -> None: ...

    def left(self, holder: Holder) -> None: ...


@asynccontextmanager
async def link_handshake(
    dialer: Dialer, address: str, deadlines: Deadlines
) -> AsyncGenerator[tuple[RouterLink, Hello], None]:
    """A link to a worker and how it has introduced itself. Raises `link_lost`."""
    link = await dialer.dial(address, deadlines.connect_s)
    try:
        yield link, await _hello(link, deadlines.connect_s)
    finally:
        link.close("the store has heard enough")


async def _hello(link: RouterLink, within_s: float) -> Hello:
    try:
        async with asyncio.timeout(within_s):
            messages = await link.tokens.receive()
    except TimeoutError:
        raise TandemError("link_lost", f"{link.peer} did not introduce itself") from None
    if not isinstance(messages[0], Hello):
        raise TandemError("link_lost", f"{link.peer} did not introduce itself first")
    return messages[0]


class WorkerWatcher:
    """Listens to the worker at `address` and reconnects when the link is lost. `fits` gives the reason why a worker's
    blocks cannot be kept here, or None when they can."""

    def __init__(
        self,
        dialer: Dialer,
        address: str,
        fits: Callable[[Hello], str | None],
        sink: BlockEventSink,
        deadlines: Deadlines,
        settings: CollectSettings,
    ) -> None:
        self._dialer = dialer
        self._address = address
        self._fits = fits
        self._sink = sink
        self._deadlines = deadlines
        self._settings = settings

    async def run(self) -> None:
        """Listen until cancelled."""
        refusal: str | None = None
        while True:
            try:
                refusal = await self._listen(refusal)
            except TandemError as error:
                event(_log, "worker_unheard", worker=self._address, reason=error.message)
            await asyncio.sleep(self._settings.retry_s)

    async def _listen(self, refusal: str | None) -> str | None:
        """One link to its end. Gives why the worker's blocks are of no use, which is logged when it is news."""
        async with link_handshake(self._dialer, self._address, self._deadlines) as (link, hello):
            problem = self._fits(hello)
            if problem is not None:
                if problem != refusal:
                    event(_log, "worker_ignored", worker=hello.worker_id, reason=problem)
                return problem
            hearing = _Hearing(hello, self._sink)
            try:
                await run_until_first_error(hearing.messages(link), hearing.state(link), self._beat(link, hearing))
            finally:
                self._sink.left(hearing.holder)
        return None

    async def _beat(self, link: RouterLink, hearing: "_Hearing") -> None:
        """Keep the link alive, and end it when the worker is silent."""
        count, silent = 0, 0
        beats = max(1, round(self._deadlines.heartbeat_lost_s / self._deadlines.heartbeat_every_s))
        while silent <= beats:
            count += 1
            link.tokens.send(Ping(count))
            hearing.heard = False
            await asyncio.sleep(self._deadlines.heartbeat_every_s)
            silent = 0 if hearing.heard else silent + 1
        raise TandemError("link_lost", f"worker {hearing.holder.worker_id} is silent")


class _Hearing:
    """Receives the messages of one incarnation of a worker."""

    def __init__(self, hello: Hello, sink: BlockEventSink) -> None:
        self.holder = Holder(hello.worker_id, hello.epoch, hello.addresses)
        self.heard = True
        self._sink = sink
        self._count: int | None = None

    async def messages(self, link: RouterLink) -> None:
        while True:
            for message in await link.tokens.receive():
                self.heard = True
                match message:
                    case Ready():
                        # What was told of before is asked for at the addresses it had: pulls from there just fail.
                        self.holder = Holder(self.holder.worker_id, self.holder.epoch, message.addresses)
                    case Pong() if message.epoch != self.holder.epoch:
                        raise TandemError("link_lost", f"worker {self.holder.worker_id} is a new incarnation")

    async def state(self, link: RouterLink) -> None:
        """Names of the pool only: what a worker has in its own tiers it cannot hand out."""
        while True:
            for update in await link.state.receive():
                self.heard = True
                match update:
                    case KvSnapshot() if update.tier == "hbm":
                        self._sink.told(self.holder, _unpacked(update.names), ())
                    case KvDelta():
                        self._follow(update)

    def _follow(self, delta: KvDelta) -> None:
        """Report a change of the worker's blocks to the sink. A gap between changes costs only blocks that are not
        replicated."""
        if delta.tier == "hbm" and delta.epoch == self.holder.epoch:
            self._sink.told(self.holder, _unpacked(delta.stored), _unpacked(delta.removed))


def _unpacked(packed: bytes) -> list[bytes]:
    return [packed[at : at + NAME_BYTES] for at in range(0, len(packed), NAME_BYTES)]


async def run_until_first_error(*waiting: Awaitable[None]) -> None:
    """Run all until one of them raises, or this task is cancelled, whatever else happens at that moment."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in waiting:
                group.create_task(_awaited(each))
    except BaseExceptionGroup as failed:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # A group whose member fails while it is being cancelled tells of the failure alone.
            raise asyncio.CancelledError from failed
        raise _leaf(failed) from None


async def _awaited(each: Awaitable[None]) -> None:
    await each


def _leaf(failed: BaseException) -> BaseException:
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    return failed
