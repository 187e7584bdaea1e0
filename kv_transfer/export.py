"""The holder's side of a fetch: which blocks a receiver may read, and what can be sent now.

A hand-off is pulled under the lease of the work that computes the blocks. Other blocks that are here are pulled under
a reuse lease, which the pull opens. `ExportProgress` decides, without I/O or clock; `Exporter` is the shell that
waits for the engine's blocks and is driven by a transport server.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from kv_transfer.tickets import Keyring, check
from kv_transfer.tiers.protocol import Tiers
from kv_transfer.transport.protocol import Alive, Answer, Missing, Offer, PullOpen, is_reuse
from tandem.core.clock import Clock
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.core.kv import Handle
from tandem.engine.protocol import BlockMemory, BlockSpace, Gone
from tandem.process.logs import event

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExportSettings:
    """Bounds of one pull. A batch is what is sent before the holder looks again."""

    batch_blocks: int = 64
    batch_bytes: int = 64 << 20
    alive_every_s: float = 0.5
    names_max: int = 131072
    reuse_lease_s: float = 2.0
    """Seconds that a reuse lease lasts after the last sign of its receiver."""


class Exporter:
    """`kv_transfer.transport.protocol.ExportSource` over an engine's blocks."""

    def __init__(
        self,
        space: BlockSpace,
        keyring: Keyring,
        clock: Clock,
        deadlines: Deadlines,
        settings: ExportSettings | None = None,
        tiers: Tiers | None = None,
    ) -> None:
        self._tiers = tiers
        self._space = space
        self._keyring = keyring
        self._clock = clock
        self._deadlines = deadlines
        self._settings = settings or ExportSettings()
        self.pulls = 0
        """Pulls being answered now."""

    @property
    def memory(self) -> BlockMemory:
        return self._space.memory

    async def answers(self, request: PullOpen) -> AsyncGenerator[tuple[Answer, ...], None]:
        """Batches of answers in prompt order; `Alive` at once when nothing is ready and then every 0.5 s.

        Raises `ticket_refused`, `stale_epoch`, `protocol_mismatch` before the first batch; `kv_gone` when the
        lease is unknown for too long or ends, or prefill stops making progress, or when nothing can be shared.
        """
        self._admit(request)
        if is_reuse(request.lease_id):
            async with aclosing(self._shared(request)) as batches:
                async for batch in batches:
                    yield batch
            return
        changed = asyncio.Event()
        progress = ExportProgress(self._space, request, self._deadlines, self._settings, self._clock.now())
        unwatch = self._space.watch(request.lease_id, changed.set)
        self.pulls += 1
        try:
            while not progress.done:
                changed.clear()
                batch = progress.next(self._clock.now())
                if batch:
                    yield batch
                elif not progress.done:
                    yield (Alive(),)
                    await self._change(changed)
        finally:
            self.pulls -= 1
            unwatch()

    async def _shared(self, request: PullOpen) -> AsyncGenerator[tuple[Answer, ...], None]:
        """Answers to a pull of shared blocks: those that are here now or in own tiers, and at once that all others
        are not."""
        lease_id = request.lease_id
        if not self._space.share(lease_id, request.names, self._settings.reuse_lease_s):
            raise TandemError("kv_gone", f"lease {lease_id}: nothing can be shared now")
        self._bring_up(request)
        changed = asyncio.Event()
        progress = ExportProgress(self._space, request, self._deadlines, self._settings, self._clock.now())
        unwatch = self._space.watch(lease_id, changed.set)
        self.pulls += 1
        try:
            while not progress.answered:
                changed.clear()
                batch = progress.next(self._clock.now())
                if batch:
                    yield batch
                else:
                    yield (Alive(),)
                    await self._change(changed)
        finally:
            self.pulls -= 1
            unwatch()

    def _bring_up(self, request: PullOpen) -> None:
        """Have what own tiers hold of the rest read into the pool."""
        if self._tiers is None:
            return
        lease_id = request.lease_id
        missing = [name for name in request.names if isinstance(self._space.look(lease_id, name), Gone)]
        if held := len(self._tiers.where(missing)):
            self._space.bring_shared(lease_id, missing[:held])

    def acknowledge(self, lease_id: str) -> None:
        self._space.release(lease_id)

    def refused(self, lease_id: str, name: bytes) -> None:
        """Check a block that a receiver refused against the holder's own digest: a good copy stays whatever the
        receiver says of it."""
        if self._space.recheck(lease_id, name):
            event(_log, "kv_block_damaged", level=logging.WARNING, lease=lease_id, block=name.hex())

    def _admit(self, request: PullOpen) -> None:
        check(
            self._keyring,
            request.ticket,
            holder_epoch=request.holder_epoch,
            lease_id=request.lease_id,
            receiver_epoch=request.receiver_epoch,
            wall=self._clock.wall(),
        )
        if request.holder_epoch != self._space.epoch:
            raise TandemError(
                "stale_epoch", f"blocks of epoch {request.holder_epoch:x} are wanted, this is {self._space.epoch:x}"
            )
        if (difference := self._space.layout.incompatibility(request.layout)) is not None:
            raise TandemError("protocol_mismatch", f"KV blocks cannot be exchanged: {difference}")
        if len(request.names) > self._settings.names_max:
            raise TandemError(
                "protocol_mismatch",
                f"{len(request.names)} blocks are asked for at once, {self._settings.names_max} are allowed",
            )

    async def _change(self, changed: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self._settings.alive_every_s):
                await changed.wait()
        except TimeoutError:
            return


@dataclass
class ExportProgress:
    """The holder's progress in answering one pull. `opened` and `now` are on the holder's clock, seconds."""

    space: BlockSpace
    request: PullOpen
    deadlines: Deadlines
    settings: ExportSettings
    opened: float
    done: bool = False
    _index: int = 0
    _leased: bool = False
    _moved: float = field(init=False)

    def __post_init__(self) -> None:
        self._moved = self.opened

    @property
    def answered(self) -> bool:
        """Whether every name has been answered for."""
        return self._index == len(self.request.names)

    def next(self, now: float) -> tuple[Answer, ...]:
        """The answers that can be sent now; empty means wait. Renews the lease. Raises `kv_gone`."""
        if not self._lease_open(now):
            return ()
        batch = self._ready_blocks()
        if self.answered:
            first = self.space.first_tokens(self.request.lease_id)
            if first is not None:
                batch.append(first)
                self.done = True
        if batch:
            self._moved = now
        self._moved = max(self._moved, self.space.lease_moved(self.request.lease_id))
        # Its router gives up a prefill that stands still, and ends the lease with it; this is for when it does not.
        if not batch and now - self._moved >= self.deadlines.unjudged_s:
            raise self._gone(f"prefill made no progress for {now - self._moved:.1f} s")
        return tuple(batch)

    def _lease_open(self, now: float) -> bool:
        lease_id = self.request.lease_id
        if self.space.lease_exists(lease_id) and self.space.renew(lease_id):
            if not self._leased:
                self._leased, self._moved = True, now
            return True
        if self._leased or self.space.lease_ended(lease_id):
            raise self._gone("the lease has ended")
        if now - self.opened >= self.deadlines.unknown_name_s:
            raise self._gone(f"the lease was not known within {self.deadlines.unknown_name_s:.1f} s")
        return False

    def _ready_blocks(self) -> list[Answer]:
        look, lease_id, batch = self.space.look, self.request.lease_id, list[Answer]()
        room = max(1, min(self.settings.batch_blocks, self.settings.batch_bytes // self.space.layout.block_bytes))
        for index, name in enumerate(self.request.names[self._index : self._index + room], self._index):
            found = look(lease_id, name)
            if isinstance(found, Handle):
                batch.append(Offer(index, found))
            elif isinstance(found, Gone):
                batch.append(Missing(index, found.reason))
            else:
                break
        self._index += len(batch)
        return batch

    def _gone(self, reason: str) -> TandemError:
        return TandemError("kv_gone", f"lease {self.request.lease_id}: {reason}")
