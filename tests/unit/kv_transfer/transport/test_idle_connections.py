"""Connections that a receiver keeps for its next pull: for how long, and what becomes of them. On virtual time."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from kv_transfer.transport.limits import ConnectionLimits
from kv_transfer.transport.protocol import PullOpen, reuse_lease
from kv_transfer.transport.pulling import Connection, PullClient
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.kv import Layout

IDLE_S = 8.0
LAYOUT = Layout("test", "plain", "float32", 4, 1, 16, 4, 4)
REQUEST = PullOpen(reuse_lease("a"), b"ticket", 1, 2, LAYOUT, ())
"""Of no blocks: its pull is whole as soon as it is asked for."""
SINK: Any = None


class End:
    """Wire and landing to a holder that takes everything and says nothing."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def quiet(self) -> bool:
        return True

    async def send(self, buffers: Sequence[memoryview]) -> None:
        return None

    def send_now(self, buffers: Sequence[memoryview]) -> Sequence[memoryview]:
        return ()


class Dialler:
    """A client whose connections lead to nobody."""

    def __init__(self) -> None:
        self.wires: list[End] = []
        self.landings: list[End] = []
        self.client = PullClient(self._connect, ConnectionLimits(idle_s=IDLE_S))

    async def _connect(self, address: str) -> Connection:
        wire, landing = End(), End()
        self.wires.append(wire)
        self.landings.append(landing)
        return Connection(cast(Any, wire), cast(Any, landing))

    async def pull(self, address: str = "a") -> None:
        pull = await self.client.open(address, REQUEST, SINK, 1.0)
        assert pull.whole
        await pull.close()

    @property
    def closed(self) -> list[bool]:
        closed = [wire.closed for wire in self.wires]
        assert closed == [landing.closed for landing in self.landings]
        return closed


def on_virtual_time(main: Callable[[Dialler], Coroutine[Any, Any, None]]) -> None:
    async def body(loop: VirtualLoop) -> None:
        dialler = Dialler()
        await main(dialler)
        await dialler.client.close()

    run(body, limit_s=300.0)


def test_an_idle_connection_is_closed_well_before_the_holder_would() -> None:
    async def main(dialler: Dialler) -> None:
        await dialler.pull()
        await asyncio.sleep(IDLE_S / 8)
        assert dialler.closed == [False]
        await asyncio.sleep(IDLE_S / 2)
        assert dialler.closed == [True]

    on_virtual_time(main)


def test_a_connection_that_is_used_in_between_is_kept() -> None:
    async def main(dialler: Dialler) -> None:
        for _ in range(40):
            await dialler.pull()
            await asyncio.sleep(IDLE_S / 5)
        assert dialler.closed == [False]
        await asyncio.sleep(IDLE_S / 2)
        assert dialler.closed == [True]

    on_virtual_time(main)


def test_only_what_is_idle_is_closed() -> None:
    async def main(dialler: Dialler) -> None:
        await dialler.pull("a")
        for _ in range(10):
            await dialler.pull("b")
            await asyncio.sleep(IDLE_S / 5)
        assert dialler.closed == [True, False]

    on_virtual_time(main)


def test_of_several_connections_to_one_holder_those_that_nobody_needs_go() -> None:
    async def main(dialler: Dialler) -> None:
        pulls = [await dialler.client.open("a", REQUEST, Any, 1.0) for _ in range(3)]  # type: ignore[arg-type]
        for pull in pulls:
            await pull.close()
        assert dialler.closed == [False] * 3
        for _ in range(10):
            await dialler.pull()
            await asyncio.sleep(IDLE_S / 5)
        assert sorted(dialler.closed) == [False, True, True]

    on_virtual_time(main)


def test_nothing_is_due_where_nothing_is_idle_and_it_begins_again() -> None:
    async def main(dialler: Dialler) -> None:
        for number in (1, 2):
            await dialler.pull()
            assert dialler.client._sweep is not None
            await asyncio.sleep(3 * IDLE_S)
            assert dialler.client._sweep is None
            assert dialler.closed == [True] * number

    on_virtual_time(main)


def test_closing_hangs_up_and_leaves_nothing_due() -> None:
    async def main(dialler: Dialler) -> None:
        await dialler.pull("a")
        await dialler.pull("b")
        sweep = dialler.client._sweep
        assert sweep is not None
        await dialler.client.close()
        assert sweep.cancelled()
        assert dialler.closed == [True, True]

    on_virtual_time(main)
