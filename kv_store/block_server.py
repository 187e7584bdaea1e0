"""Answers pulls from the store's tiers: blocks in DRAM are lent in place, blocks on NVMe are onboarded first."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kv_transfer.tickets import Keyring, check
from kv_transfer.tiers.inbound import InboundBlocks
from kv_transfer.tiers.index import Copy
from kv_transfer.tiers.tier import Tier
from kv_transfer.transport.protocol import Answer, Missing, Offer, PullOpen, is_reuse
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.core.kv import Handle, Layout
from tandem.engine.digest import Digester, bind
from tandem.engine.protocol import BlockMemory
from tandem.process.logs import event

_log = logging.getLogger(__name__)

_LEASE_S: Final = 2.0
"""Seconds that blocks stay lent after the last of them was sent: a receiver on this host copies them itself."""
_LEASES_MAX: Final = 4096
_NAMES_MAX: Final = 131072
_COME_S: Final = 1.0
_GENERATION: Final = 0
"""The generation of every place. One suffices, since a place never changes while it is lent and names are part of
what digests are bound to."""


@dataclass
class _Lent:
    copies: list[Copy] = field(default_factory=list)
    ending: asyncio.TimerHandle | None = None
    sending: bool = True
    released: bool = False


class BlockServer:
    """`kv_transfer.transport.protocol.ExportSource` over DRAM, and `lower` (NVMe) beneath it if there is one."""

    def __init__(
        self,
        filling: InboundBlocks,
        lower: Tier | None,
        layout: Layout,
        epoch: Callable[[], int],
        keyring: Keyring,
        clock: Clock,
        batch_bytes: int,
    ) -> None:
        self._inbound = filling
        self._upper = filling.level
        self._lower = lower
        self._layout = layout
        self._epoch = epoch
        self._keyring = keyring
        self._clock = clock
        self._batch = max(1, batch_bytes // layout.block_bytes)
        self._digester = Digester(layout)
        self._lent: dict[str, _Lent] = {}

    @property
    def memory(self) -> BlockMemory:
        memory = self._inbound.backend.memory
        assert memory is not None
        return memory

    @property
    def blocks_lent(self) -> int:
        """Blocks that stay in place because a receiver is copying them."""
        return sum(len(lent.copies) for lent in self._lent.values())

    async def answers(self, request: PullOpen) -> AsyncGenerator[tuple[Answer, ...], None]:
        """Answers to a pull: the blocks that are here, a batch at a time, and at once that the rest is not.

        Raises `ticket_refused`, `stale_epoch`, `protocol_mismatch`, or `kv_gone` for a lease of other kinds.
        """
        self._admit(request)
        lent = self._lent.setdefault(request.lease_id, _Lent())
        lent.sending = True
        if lent.ending is not None:
            lent.ending.cancel()
        try:
            for start in range(0, len(request.names), self._batch):
                answers = await self._answer(request.names[start : start + self._batch], start, lent)
                # This process may have been stopped meanwhile, and be another incarnation now.
                self._check_epoch(request)
                yield answers
        finally:
            self._sent(request.lease_id, lent)

    def acknowledge(self, lease_id: str) -> None:
        lent = self._lent.get(lease_id)
        if lent is None:
            return
        lent.released = True
        if not lent.sending:
            self._release(lease_id)

    def refused(self, lease_id: str, name: bytes) -> None:
        """Check a block that a receiver refused against the store's own digest: a good copy stays whatever the
        receiver says of it."""
        copy = self._upper.book.find(name)
        if lease_id not in self._lent or copy is None or copy.place is None:
            return
        if self._digester.content_words(self.memory.block(copy.place)) != self._inbound.backend.words(copy.place):
            event(_log, "kv_block_damaged", level=logging.WARNING, lease=lease_id, block=name.hex())
            self._upper.missed(name, "digest")

    async def _answer(self, names: Sequence[bytes], first: int, lent: _Lent) -> tuple[Answer, ...]:
        below = [name for name in names if name not in self._upper.book]
        if below and self._lower is not None:
            await self._inbound.onboard_from(self._lower, below)
        for name in below:
            await self._inbound.come(name, _COME_S)
        return tuple(self._lend(index, name, lent) for index, name in enumerate(names, first))

    def _lend(self, index: int, name: bytes, lent: _Lent) -> Answer:
        if name not in self._upper.book:
            return Missing(index, "not here")
        copy = self._upper.book.acquire(name)
        self._upper.book.touch(name)
        lent.copies.append(copy)
        assert copy.place is not None
        epoch = self._epoch()
        words = bind(self._inbound.backend.words(copy.place), epoch, name, _GENERATION)
        return Offer(index, Handle(epoch, name, copy.place, _GENERATION, words))

    def _sent(self, lease_id: str, lent: _Lent) -> None:
        """End the sending, because everything was sent or the receiver is gone: lent blocks are released soon."""
        lent.sending = False
        if lent.released:
            self._release(lease_id)
        else:
            lent.ending = asyncio.get_running_loop().call_later(_LEASE_S, self._release, lease_id)

    def _release(self, lease_id: str) -> None:
        lent = self._lent.pop(lease_id, None)
        if lent is None:
            return
        if lent.ending is not None:
            lent.ending.cancel()
        self._upper.release(lent.copies)

    def _admit(self, request: PullOpen) -> None:
        check(
            self._keyring,
            request.ticket,
            holder_epoch=request.holder_epoch,
            lease_id=request.lease_id,
            receiver_epoch=request.receiver_epoch,
            wall=self._clock.wall(),
        )
        self._check_epoch(request)
        if (difference := self._layout.incompatibility(request.layout)) is not None:
            raise TandemError("protocol_mismatch", f"KV blocks cannot be exchanged: {difference}")
        if len(request.names) > _NAMES_MAX:
            problem = f"{len(request.names)} blocks are asked for at once, {_NAMES_MAX} are allowed"
            raise TandemError("protocol_mismatch", problem)
        if not is_reuse(request.lease_id):
            raise TandemError("kv_gone", f"lease {request.lease_id}: a store has no leases of its own")
        if len(self._lent) >= _LEASES_MAX:
            raise TandemError("kv_gone", f"lease {request.lease_id}: {_LEASES_MAX} receivers are being served")
        if request.lease_id in self._lent and self._lent[request.lease_id].sending:
            raise TandemError("kv_gone", f"lease {request.lease_id}: it is being served already")

    def _check_epoch(self, request: PullOpen) -> None:
        if request.holder_epoch != self._epoch():
            problem = f"blocks of epoch {request.holder_epoch:x} are wanted, this is {self._epoch():x}"
            raise TandemError("stale_epoch", problem)
