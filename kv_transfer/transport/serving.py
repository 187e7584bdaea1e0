"""The holder's end of KV connections over stream sockets: accept, answer pulls, notice hang-ups.

How the bytes of an offer reach the receiver is the `Carrier`'s business; everything else is equal for `tcp` and
`shm`. A peer that breaks the protocol, stalls or disappears ends its own connection and nothing else.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Final, Protocol, cast

from kv_transfer.transport.frames import GREETING, REQUEST_BYTES_MAX, Acknowledge, Refused
from kv_transfer.transport.limits import ConnectionLimits
from kv_transfer.transport.protocol import Alive, Answer, ExportSource, Missing, Offer, PullOpen
from kv_transfer.transport.rpc import decode_receiver, encode_event, encode_failed, encode_offers
from kv_transfer.transport.wire import Wire, WireLost, framed
from tandem.core.errors import TandemError
from tandem.engine.protocol import FirstTokens

_ACCEPT_RETRY_S: Final = 0.1
_BATCHES_PER_TURN: Final = 16
"""Number of batches after which other tasks on the event loop get their turn, since batches need not wait for
anything."""


class Carrier(Protocol):
    """Provides the bytes of offers for one connection."""

    async def introduce(self, wire: Wire) -> None:
        """Called before offers are sent: whatever the receiver has to know first."""
        ...

    def payload(self, offers: Sequence[Offer]) -> list[memoryview]:
        """The bytes that follow the frame of `offers`."""
        ...


class PullServer:
    """Answers the pulls that arrive on one listening socket, which it owns.

    `admit` may refuse a connection (wrong user) by returning why; `carrier` makes one `Carrier` per connection, and
    `wire` its wire where that is not a plain one.
    """

    def __init__(
        self,
        listener: socket.socket,
        source: ExportSource,
        carrier: Callable[[], Carrier],
        limits: ConnectionLimits,
        admit: Callable[[socket.socket], str | None],
        wire: Callable[[socket.socket], Wire] | None = None,
    ) -> None:
        self._listener = listener
        self._source = source
        self._carrier = carrier
        self._limits = limits
        self._admit = admit
        self._wire = wire or (lambda peer: Wire(peer, "receiver", limits.stall_s))
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.refused = 0
        """Connections closed on arrival: over the bound, or not admitted."""

    def start(self) -> None:
        """Begin to accept. Must be called on the event loop."""
        self._spawn(self._accept(), "kv-accept")

    async def close(self) -> None:
        """Stop accepting and hang up on everyone."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": f"{task.get_name()} failed", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(self._listener)
            except OSError:
                # Out of descriptors, or the peer was gone before it was accepted: both pass.
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            if len(self._tasks) > self._limits.connections_max or self._admit(peer) is not None:
                self.refused += 1
                peer.close()
            else:
                self._spawn(self._converse(self._wire(peer)), "kv-serve")
            # Who has connected already is accepted without waiting: many of them would keep the event loop.
            await asyncio.sleep(0)

    async def _converse(self, wire: Wire) -> None:
        try:
            await wire.opened(self._limits.greeting_s)
            if await wire.receive(len(GREETING), self._limits.greeting_s) == GREETING:
                await self._requests(wire, self._carrier())
        except WireLost:
            return  # The receiver is gone; what it held ends with its lease.
        finally:
            wire.close()

    async def _requests(self, wire: Wire, carrier: Carrier) -> None:
        lease_id: str | None = None
        wait_s, whole = self._limits.greeting_s, True
        while True:
            try:
                frame = decode_receiver(await wire.frame(REQUEST_BYTES_MAX, wait_s))
            except WireLost:
                raise
            except TandemError as error:
                await wire.send(framed(encode_failed(error)))
                return
            if isinstance(frame, Acknowledge):
                if frame.lease_id != lease_id:
                    return
                self._source.acknowledge(lease_id)
                lease_id = None
            else:
                if isinstance(frame, Refused):
                    if frame.lease_id != lease_id:
                        return
                    self._source.refused(lease_id, frame.name)
                elif whole:
                    lease_id, whole = await self._serve(wire, carrier, frame)
                # The next frame may be here already: a peer that does not wait for answers would keep the event loop.
                await asyncio.sleep(0)
            if not whole and lease_id is None:
                return
            wait_s = self._limits.idle_s

    async def _serve(self, wire: Wire, carrier: Carrier, request: PullOpen) -> tuple[str | None, bool]:
        """Answer one pull until the receiver sends something. Gives the lease that the receiver may acknowledge, None
        for a pull that the source refused or gave up, and whether the pull was carried to its end."""
        loop = asyncio.get_running_loop()
        called_off = asyncio.timeout(None)
        try:
            async with called_off:
                end = wire.listen(lambda: called_off.reschedule(loop.time()))
                try:
                    await self._send(wire, carrier, request)
                finally:
                    end()
        except TimeoutError:
            if not called_off.expired():
                raise
            return request.lease_id, False
        except WireLost:
            raise
        except TandemError as error:
            # Not to be called off: that would leave the lease to whoever was refused.
            await wire.send(framed(encode_failed(error)))
            return None, True
        return request.lease_id, True

    async def _send(self, wire: Wire, carrier: Carrier, request: PullOpen) -> None:
        """Send every answer. Raises what the source refuses with or gives up for, and `WireLost`."""
        sent = 0
        async with aclosing(self._source.answers(request)) as batches:
            async for batch in batches:
                # Before a batch, not after one: once the last is sent the receiver may speak without calling it off.
                if sent == _BATCHES_PER_TURN:
                    sent = 0
                    await asyncio.sleep(0)
                sent += 1
                if Offer in map(type, batch):
                    await carrier.introduce(wire)
                await wire.send(_buffers(carrier, batch))


def _buffers(carrier: Carrier, batch: tuple[Answer, ...]) -> list[memoryview]:
    """A batch as it goes over the wire, so that one system call can send it."""
    buffers: list[memoryview] = []
    for kind, group in groupby(batch, type):
        if kind is Offer:
            offers = cast(list[Offer], list(group))
            buffers += [*framed(encode_offers(offers)), *carrier.payload(offers)]
        else:
            buffers += framed(*map(encode_event, cast(Iterator[Missing | Alive | FirstTokens], group)))
    return buffers
