"""The `mem` transport: pulls inside one process, on asyncio alone, for tests and simulation.

A `MemoryNetwork` stands for the network and knows which transport serves at which address. A `PathPolicy` given by
the caller says how long bytes take and what goes wrong. Nothing here opens a socket or starts a thread.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import copy_context
from dataclasses import dataclass
from typing import Final, Protocol

from kv_transfer.transport.protocol import (
    Answer,
    BlockReceived,
    BlockSink,
    Delivered,
    ExportSource,
    Offer,
    PullEvent,
    PullOpen,
    together,
)
from tandem.core.errors import TandemError

_SCHEME: Final = "mem://"
_LOOK_AGAIN_S: Final = 0.05
"""Seconds between two checks by a held-up delivery whether the path carries again."""
_IN_FLIGHT_MAX: Final = 64
_PARCEL_S: Final = 0.001
"""Blocks travel together as long as they occupy the path for no longer than this."""


class PathPolicy(Protocol):
    """The behaviour of the path from `holder` to `receiver` at this moment."""

    def carries(self, holder: str, receiver: str) -> bool:
        """Whether the path carries anything. False while it is partitioned or the holder is frozen: nothing arrives,
        and neither side is notified."""
        ...

    def loses(self, holder: str, receiver: str, what: str) -> bool:
        """Whether this message gets lost: `ask`, `answer` (then all later ones of its pull too) or `acknowledge`."""
        ...

    def latency_s(self, holder: str, receiver: str) -> float:
        """Seconds that anything takes to arrive."""
        ...

    def busy_s(self, holder: str, receiver: str, size: int) -> float:
        """Seconds for which `size` bytes occupy the path."""
        ...

    def arrived(self, holder: str, receiver: str, data: bytes) -> bytes:
        """The bytes that arrive when `data` was sent; they have the same length."""
        ...


class PerfectPath:
    """Everything arrives at once, as it was sent."""

    def carries(self, holder: str, receiver: str) -> bool:
        return True

    def loses(self, holder: str, receiver: str, what: str) -> bool:
        return False

    def latency_s(self, holder: str, receiver: str) -> float:
        return 0.0

    def busy_s(self, holder: str, receiver: str, size: int) -> float:
        return 0.0

    def arrived(self, holder: str, receiver: str, data: bytes) -> bytes:
        return data


class MemoryNetwork:
    """The network of one process or one simulation."""

    def __init__(self, policy: PathPolicy | None = None) -> None:
        self.policy: PathPolicy = policy or PerfectPath()
        self._ends: dict[str, MemoryTransport] = {}

    def register(self, name: str, end: "MemoryTransport") -> None:
        assert name not in self._ends, f"{name} serves already"
        self._ends[name] = end

    def forget(self, name: str, end: "MemoryTransport") -> None:
        """Stop reaching `end`; a newer one of the same name stays."""
        if self._ends.get(name) is end:
            del self._ends[name]

    def end(self, name: str) -> "MemoryTransport | None":
        return self._ends.get(name)


class MemoryTransport:
    """`kv_transfer.transport.protocol.Transport` over a fabric, as the process called `name`."""

    def __init__(self, fabric: MemoryNetwork, name: str) -> None:
        self._fabric = fabric
        self._name = name
        self._source: ExportSource | None = None
        self._pulls: dict[MemoryPull, None] = {}
        self.context = copy_context()
        """The context of the serving process, in which its half of every pull runs."""

    @property
    def scheme(self) -> str:
        return "mem"

    async def serve(self, source: ExportSource) -> str:
        self._source = source
        self.context = copy_context()
        self._fabric.register(self._name, self)
        return _SCHEME + self._name

    async def withdraw(self) -> None:
        self._fabric.forget(self._name, self)
        self._source = None
        for pull in tuple(self._pulls):
            if pull.holder is self:
                pull.break_off(f"{self._name} serves no more")

    async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> "MemoryPull":
        holder = address.removeprefix(_SCHEME)
        path = _Path(self._fabric.policy, holder, self._name)
        try:
            async with asyncio.timeout(timeout_s):
                await path.cross()
                if path.loses("ask"):
                    await asyncio.sleep(timeout_s + 1.0)
        except TimeoutError:
            raise TandemError("transfer_failed", f"{address} did not answer within {timeout_s:.1f} s") from None
        end = self._fabric.end(holder)
        if end is None or end._source is None:
            raise TandemError("transfer_failed", f"cannot reach {address}: nobody serves there")
        pull = MemoryPull(end._source, request, sink, path, (self, end))
        for side in (self, end):
            side._pulls[pull] = None
        return pull

    def kill(self) -> None:
        """Disappear as a killed process does: peers see their pulls break."""
        self._fabric.forget(self._name, self)
        for pull in tuple(self._pulls):
            pull.break_off(f"{self._name} is gone")

    async def close(self) -> None:
        self.kill()

    def over(self, pull: "MemoryPull") -> None:
        """The pull is closed."""
        self._pulls.pop(pull, None)


@dataclass(frozen=True)
class _Path:
    policy: PathPolicy
    holder: str
    receiver: str

    async def cross(self) -> None:
        """Wait out the latency, and for as long as the path does not carry."""
        await asyncio.sleep(self.policy.latency_s(self.holder, self.receiver))
        await self.open()

    def loses(self, what: str) -> bool:
        return self.policy.loses(self.holder, self.receiver, what)

    async def open(self) -> None:
        # The policy is a function of time and cannot wake anyone; the caller bounds the wait.
        while not self.policy.carries(self.holder, self.receiver):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_AGAIN_S)


@dataclass(frozen=True)
class _Parcel:
    """Something under way: offers with their bytes, another answer, or the end of the pull (neither)."""

    arrives: float
    offers: tuple[Offer, ...] = ()
    data: tuple[bytes, ...] = ()
    answer: Answer | None = None
    error: TandemError | None = None


class MemoryPull:
    """`Pull`: a task on the holder's side fills a bounded queue, the receiver empties it."""

    def __init__(
        self,
        source: ExportSource,
        request: PullOpen,
        sink: BlockSink,
        path: _Path,
        ends: tuple[MemoryTransport, MemoryTransport],
    ) -> None:
        self._source = source
        self._request = request
        self._sink = sink
        self._path = path
        self._ends = ends
        self._queue: asyncio.Queue[_Parcel] = asyncio.Queue(_IN_FLIGHT_MAX)
        self._broken: TandemError | None = None
        self._sending = asyncio.get_running_loop().create_task(
            self._send(), name=f"kv-mem-{request.lease_id}", context=ends[1].context.copy()
        )

    @property
    def holder(self) -> MemoryTransport:
        """Whose blocks these are."""
        return self._ends[1]

    async def events(self) -> AsyncGenerator[PullEvent, None]:
        while True:
            parcel = await self._next()
            if parcel.error is not None:
                raise parcel.error
            if parcel.offers:
                yield self._land(parcel)
            elif parcel.answer is not None:
                assert not isinstance(parcel.answer, Offer), "offers travel with their bytes"
                yield parcel.answer
            else:
                return

    def _land(self, parcel: _Parcel) -> BlockReceived | Delivered:
        path, sink = self._path, self._sink
        arrived, holder, receiver = path.policy.arrived, path.holder, path.receiver
        landed = []
        for offer, data in zip(parcel.offers, parcel.data, strict=True):
            sink.block(offer.index)[:] = arrived(holder, receiver, data)
            landed.append(BlockReceived(offer.index, offer.handle))
        return together(tuple(landed))

    async def acknowledge(self) -> None:
        if self._path.loses("acknowledge"):
            return
        if self._path.policy.carries(self._path.holder, self._path.receiver) and self._broken is None:
            holder, lease_id = self._ends[1], self._request.lease_id
            asyncio.get_running_loop().call_soon(self._source.acknowledge, lease_id, context=holder.context)

    async def refuse(self, index: int) -> None:
        if self._path.policy.carries(self._path.holder, self._path.receiver) and self._broken is None:
            told = self._request.lease_id, self._request.names[index]
            asyncio.get_running_loop().call_soon(self._source.refused, *told, context=self._ends[1].context)

    async def close(self) -> None:
        """Close the pull. Only the receiver's half writes to the sink, so a holder that stands still delays
        nothing."""
        self.break_off("the pull was closed here")
        for end in self._ends:
            end.over(self)

    def break_off(self, reason: str) -> None:
        """Nothing more arrives; the receiver learns why."""
        self._sending.cancel()
        if self._broken is None:
            self._broken = TandemError("transfer_failed", reason)
            while not self._queue.empty():
                self._queue.get_nowait()
            self._queue.put_nowait(_Parcel(0.0, error=self._broken))

    async def _send(self) -> None:
        error: TandemError | None = None
        try:
            async with aclosing(self._source.answers(self._request)) as batches:
                async for batch in batches:
                    if self._path.loses("answer"):
                        return
                    await self._dispatch(batch)
        except TandemError as refusal:
            error = refusal
        await self._queue.put(_Parcel(self._arrival(), error=error))

    async def _dispatch(self, batch: tuple[Answer, ...]) -> None:
        """Send answers on their way: offers next to each other together, with their bytes as they are now."""
        waiting: list[Offer] = []
        for answer in batch:
            if isinstance(answer, Offer):
                waiting.append(answer)
                continue
            await self._ship(waiting)
            waiting = []
            await self._queue.put(_Parcel(self._arrival(), answer=answer))
        await self._ship(waiting)

    async def _ship(self, offers: list[Offer]) -> None:
        memory, path = self._source.memory, self._path
        one_s = path.policy.busy_s(path.holder, path.receiver, memory.block_bytes) if offers else 0.0
        count = max(1, int(_PARCEL_S / one_s)) if one_s * len(offers) > _PARCEL_S else len(offers)
        for start in range(0, len(offers), count or 1):
            some = tuple(offers[start : start + count])
            data = tuple(bytes(memory.block(offer.handle.slot)) for offer in some)
            if one_s > 0:
                await asyncio.sleep(one_s * len(some))
            await self._queue.put(_Parcel(self._arrival(), some, data))

    def _arrival(self) -> float:
        latency_s = self._path.policy.latency_s(self._path.holder, self._path.receiver)
        return asyncio.get_running_loop().time() + latency_s

    async def _next(self) -> _Parcel:
        """The next parcel, once it has arrived."""
        parcel = await self._queue.get()
        delay_s = parcel.arrives - asyncio.get_running_loop().time()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        await self._path.open()
        return parcel if self._broken is None else _Parcel(0.0, error=self._broken)
