"""The part of a fetch that another process serves: pulls over its transports, trusting only blocks that verify."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from kv_transfer.fetch_origin import OriginFetch
from kv_transfer.fetch_progress import FetchProgress, ignore_change, routes
from kv_transfer.pull_verification import PullVerification
from kv_transfer.transport.protocol import BlockReceived, Delivered, Missing, Pull, PullEvent, PullOpen, Transport
from kv_transfer.unanswered import UnansweredPulls
from kv_transfer.verify import Verifier
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.core.messages import RemoteKv
from tandem.core.metrics import Meter
from tandem.engine.protocol import BlockMemory, BlockSpace, FetchTarget

_TIMER_SLACK_S: Final = 0.05


@dataclass(frozen=True)
class FetchSettings:
    """`attempts_max` counts pulls from one origin. What ends within `close_grace_s` leaves its slots to the engine;
    else they are quarantined.
    """

    attempts_max: int = 3
    close_grace_s: float = 0.05
    node: str = ""
    """The node that this process shares memory on; empty where nodes have no names."""


@dataclass(frozen=True)
class Receiver:
    """State and dependencies that all pulls of one engine share."""

    space: BlockSpace
    transports: Mapping[str, Transport]
    verifier: Verifier
    clock: Clock
    meter: Meter
    settings: FetchSettings
    unanswered: UnansweredPulls = field(default_factory=UnansweredPulls)


class PeerFetch(OriginFetch[Pull]):
    """Pulls the targets of `progress` from one holder. With `hand_off` the holder computes them meanwhile, all of
    them have to come, and its first tokens come last; otherwise what the holder does not have now is missed."""

    def __init__(
        self,
        receiver: Receiver,
        progress: FetchProgress,
        holder: RemoteKv,
        *,
        hand_off: bool,
        whole: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(progress)
        self._whole = whole
        """Hears that the last block has landed, before the engine does."""
        self.holder = holder
        self.hand_off = hand_off
        self._space = receiver.space
        self._receiver = receiver
        self._clock = receiver.clock
        self._verifying: PullVerification | None = None
        self._patient = True
        """Whether the last address had all the time there was."""

    async def run(self) -> TandemError | None:
        """Pull over one address after the other; gives what the last one failed with."""
        settings, transports, progress = self._receiver.settings, self._receiver.transports, self.progress
        offered = self.holder.addresses
        addresses = routes(offered, tuple(transports), settings.attempts_max, settings.node)
        failure = TandemError("transfer_failed", f"no transport in common: {', '.join(offered) or 'no address'}")
        for address in addresses:
            transport = transports[address.partition("://")[0]]
            await self.close_within(progress.deadline() - self._clock.now())
            if self.opened is not None:
                return failure
            if not self.hand_off and (spared := self._receiver.unanswered.spared(address, self._clock.now())):
                failure = TandemError("transfer_failed", spared)
                progress.failed.setdefault(transport.scheme, spared)
                continue
            try:
                await self._pull(transport, address)
            except TandemError as error:
                failure = error
                progress.failed.setdefault(transport.scheme, error.message)
                over = self._clock.now() >= progress.deadline() or not self._patient
                if over or error.code != "transfer_failed":
                    return failure
            else:
                return None
        return failure

    async def _pull(self, transport: Transport, address: str) -> None:
        """Attempt once to pull the blocks that are still open. Raises `TandemError` when the pull does not bring what
        it has to."""
        targets = self.progress.open_targets()
        left_s = self.progress.answer_s(self._clock.now())
        sink = _Slots(self._space.memory, targets)
        request = PullOpen(
            lease_id=self.holder.lease_id,
            ticket=self.holder.ticket,
            holder_epoch=self.holder.epoch,
            receiver_epoch=self._space.epoch,
            layout=self._space.layout,
            names=tuple(target.name for target in targets),
        )
        self.progress.path = transport.scheme
        self.opened = await self._open(transport, address, request, sink, left_s)
        before = self.progress.blocks
        try:
            await self._take(self.opened, targets, sink)
        finally:
            moved = (self.progress.blocks - before) * self.progress.block_bytes
            self._receiver.meter.add("tandem_kv_transfer_bytes_total", moved, transport.scheme)
        if self.hand_off and not self.progress.whole:
            left = len(self.progress.open_targets())
            raise TandemError("kv_gone", f"the holder ended the pull with {left} blocks not sent")

    async def _open(
        self, transport: Transport, address: str, request: PullOpen, sink: "_Slots", left_s: float
    ) -> Pull:
        unanswered, began = self._receiver.unanswered, self._clock.now()
        bound_s = unanswered.bound_s(address, left_s)
        limit = asyncio.timeout(None)
        try:
            async with self._heeding(limit):
                opened = await transport.open(address, request, sink, bound_s)
        except asyncio.CancelledError:
            unanswered.called_off(address, began, self._clock.now())
            raise
        except TimeoutError:
            unanswered.failed(address, left_s, self._clock.now())
            raise TandemError("transfer_failed", f"{self.holder.worker_id} did not answer") from None
        except TandemError:
            unanswered.failed(address, left_s, self._clock.now())
            self._patient = bound_s == left_s
            raise
        unanswered.answered(address)
        return opened

    async def acknowledge(self) -> bool:
        """Tell the holder that it may release the blocks. If that fails, or takes as long as a stalled transfer may,
        the lease ends by itself."""
        return await self._say_within(self.progress.deadlines.transfer_progress_s)

    async def let_go(self) -> None:
        """Notify the holder, if that can be done at once, that no more blocks will be taken."""
        await self._say_within(self._receiver.settings.close_grace_s)

    async def _say_within(self, bound_s: float) -> bool:
        if self.opened is None:
            return False
        with suppress(TandemError, TimeoutError):
            async with asyncio.timeout(bound_s):
                await self.opened.acknowledge()
            return True
        return False

    async def _refuse(self, index: int) -> None:
        assert self.opened is not None
        with suppress(TandemError, TimeoutError):
            async with asyncio.timeout(self._receiver.settings.close_grace_s):
                await self.opened.refuse(index)

    async def _take(self, pull: Pull, targets: tuple[FetchTarget, ...], sink: "_Slots") -> None:
        """Believe what verifies; raises at the first block that does not."""
        limit = asyncio.timeout_at(self.progress.deadline())
        verifying = self._verifying = PullVerification(
            self._receiver.verifier,
            self.holder.epoch,
            lambda landed, words: self._believe(targets[landed.index], words),
            lambda: _move(limit, self._clock.now()),
        )
        try:
            async with self._heeding(limit):
                try:
                    await self._listen(pull, targets, sink, verifying, limit)
                except TandemError:
                    # What has arrived is of use, whatever became of the rest.
                    await verifying.drained()
                    raise
                await verifying.drained()
        except TimeoutError:
            if verifying.refused is None:
                raise TandemError("transfer_failed", f"{self.holder.worker_id} made no progress") from None
        finally:
            verifying.stop()
        if verifying.refused is not None:
            landed, refusal = verifying.refused
            self._receiver.meter.add("tandem_kv_blocks_refused_total", 1.0, refusal.reason)
            if refusal.reason == "digest":
                await self._refuse(landed.index)
            raise TandemError("kv_corrupt", refusal.message)

    @asynccontextmanager
    async def _heeding(self, limit: asyncio.Timeout) -> AsyncIterator[None]:
        """Within `limit`, which moves when the prompt becomes known to be computed: from then on the holder has less
        reason to be silent. Raises `TimeoutError`."""
        prefilled, progress = self.progress.prefilled, self.progress
        async with limit:
            if prefilled is not None:
                prefilled.changed = lambda: _move(limit, progress.deadline())
            try:
                yield
            finally:
                if prefilled is not None:
                    prefilled.changed = ignore_change

    async def _listen(
        self,
        pull: Pull,
        targets: tuple[FetchTarget, ...],
        sink: "_Slots",
        verifying: PullVerification,
        limit: asyncio.Timeout,
    ) -> None:
        """Hear of everything that comes until there is no more, or something is refused."""
        async with aclosing(pull.events()) as events:
            async for event in events:
                self._heard(event, targets, sink, verifying)
                if verifying.refused is not None:
                    return
                # Moving a timer costs more than looking at it, so it may be a little early but not late.
                if self.progress.deadline() - (limit.when() or 0.0) > _TIMER_SLACK_S:
                    _move(limit, self.progress.deadline())

    async def _shut(self, opened: Pull) -> None:
        """Close the pull, and wait until the threads that check what has arrived no longer read it."""
        await opened.close()
        if self._verifying is not None:
            await self._verifying.close()

    def _heard(
        self, event: PullEvent, targets: tuple[FetchTarget, ...], sink: "_Slots", verifying: PullVerification
    ) -> None:
        self.progress.heard(event, self._clock.now())
        if isinstance(event, Missing):
            self._miss(event, targets)
        elif isinstance(event, BlockReceived | Delivered):
            landed = event.blocks if isinstance(event, Delivered) else (event,)
            indices = [each.index for each in landed]
            names = [targets[index].name for index in indices]
            verifying.add(landed, names, [sink.block(index) for index in indices])

    def _miss(self, event: Missing, targets: tuple[FetchTarget, ...]) -> None:
        if self.hand_off:
            raise TandemError("kv_gone", f"block {event.index} will not come: {event.reason}")
        self.progress.missed(targets[event.index].index, event.reason)

    def _believe(self, target: FetchTarget, words: bytes) -> None:
        self.progress.landed(target.index, self._clock.now())
        if self._whole is not None and self.progress.whole:
            self._whole()
        self._space.landed(self.progress.job.work_id, target.index, words)


def _move(limit: asyncio.Timeout, when: float) -> None:
    """Let `limit` end at `when` from now on. A limit that has ended stays as it is: the caller cannot know, since the
    pull learns that its time is over only in its next turn."""
    with suppress(RuntimeError):
        limit.reschedule(when)


class _Slots:
    """`kv_transfer.transport.protocol.BlockSink` over the slots the engine reserved."""

    def __init__(self, memory: BlockMemory, targets: tuple[FetchTarget, ...]) -> None:
        self._memory = memory
        self._targets = targets

    def block(self, index: int) -> memoryview:
        return self._memory.block(self._targets[index].slot)
