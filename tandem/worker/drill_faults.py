"""Faults that a worker started for drills lets `tandem drill` cause, by signal. No other worker has this code in it.

    SIGUSR1   a bit of the next KV block that arrives here is flipped on the way, before it is verified
    SIGUSR2   every connection that routers have to this worker breaks, as when the network between them fails

The flip happens between transport and verification, so it is what a bad wire, a late write or a bad copy would have
been, whichever transport carried the block; the holder's own copy stays whole.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from kv_transfer.transport.protocol import (
    BlockReceived,
    BlockSink,
    Delivered,
    ExportSource,
    Pull,
    PullEvent,
    PullOpen,
    Transport,
)
from tandem.process.logs import event

_log = logging.getLogger(__name__)

_DESCRIPTORS: Final = "/dev/fd"


class Flips:
    """Damages blocks that arrive; `due` is the number of blocks still to be damaged."""

    def __init__(self) -> None:
        self.due = 0

    def arm(self) -> None:
        self.due += 1

    def damage(self, landed: PullEvent, sink: BlockSink) -> None:
        """Flip a bit in each block of this event, as long as some are due."""
        blocks = (
            landed.blocks if isinstance(landed, Delivered) else (landed,) if isinstance(landed, BlockReceived) else ()
        )
        for block in blocks:
            if self.due:
                self.due -= 1
                content = sink.block(block.index)
                content[len(content) // 2] ^= 1
                event(_log, "drill_flipped_bit", block=block.index)


class FlippingTransport:
    """A `Transport` whose arriving blocks pass by `Flips`."""

    def __init__(self, inner: Transport, flips: Flips) -> None:
        self._inner = inner
        self._flips = flips

    @property
    def scheme(self) -> str:
        return self._inner.scheme

    async def serve(self, source: ExportSource) -> str:
        return await self._inner.serve(source)

    async def withdraw(self) -> None:
        await self._inner.withdraw()

    async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> Pull:
        return _FlippingPull(await self._inner.open(address, request, sink, timeout_s), sink, self._flips)

    async def close(self) -> None:
        await self._inner.close()


class _FlippingPull:
    def __init__(self, inner: Pull, sink: BlockSink, flips: Flips) -> None:
        self._inner = inner
        self._sink = sink
        self._flips = flips

    async def events(self) -> AsyncGenerator[PullEvent, None]:
        async with aclosing(self._inner.events()) as events:
            async for each in events:
                if self._flips.due:
                    self._flips.damage(each, self._sink)
                yield each

    async def acknowledge(self) -> None:
        await self._inner.acknowledge()

    async def refuse(self, index: int) -> None:
        await self._inner.refuse(index)

    async def close(self) -> None:
        await self._inner.close()


def obey_signals(flips: Flips, address: Callable[[], str]) -> None:
    """Cause the faults when asked by signal, from now on. `address` is where routers dial. Call it on the loop."""

    def cut() -> None:
        port = int(address().rpartition(":")[2] or 0)
        event(_log, "drill_cut_links", connections=cut_connections(port))

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, flips.arm)
    loop.add_signal_handler(signal.SIGUSR2, cut)
    event(_log, "drills_allowed", signals="SIGUSR1 SIGUSR2")


def cut_connections(port: int) -> int:
    """Break every TCP connection of this process whose own end is at `port`; gives how many there were.

    The sockets are found among the process's descriptors, so that no layer above them can take its leave first.
    """
    cut = 0
    for name in os.listdir(_DESCRIPTORS):
        duplicate = _socket_of(int(name))
        if duplicate is None:
            continue
        with duplicate:
            if _connected_at(duplicate, port):
                with contextlib.suppress(OSError):  # its other end was quicker
                    duplicate.shutdown(socket.SHUT_RDWR)
                cut += 1
    return cut


def _socket_of(descriptor: int) -> socket.socket | None:
    """A second handle on a socket; None when the descriptor is something else, or closed meanwhile."""
    try:
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return socket.socket(fileno=os.dup(descriptor))
    except OSError:
        pass
    return None


def _connected_at(sock: socket.socket, port: int) -> bool:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        sock.getpeername()
        return int(sock.getsockname()[1]) == port
    except OSError:
        return False
