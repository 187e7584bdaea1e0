"""The `Link` seam: what every implementation promises, over TCP and in memory."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.messages import (
    KvSnapshot,
    Ping,
    Pong,
    SequenceOutput,
    SnapshotRequest,
    StepOutputs,
)
from tandem.link.address import parse_address
from tandem.link.memory_link import MemoryLinks
from tandem.link.proof import LinkKeys
from tandem.link.protocol import Dialer, LinkServer, RouterLink, WorkerLink
from tandem.link.queue import LinkLimits
from tandem.link.tcp_dialer import TcpDialer
from tandem.link.tcp_server import TcpLinkServer

LIMITS = LinkLimits(flush_s=0.2)


@dataclass
class Network:
    """One implementation under test, and the servers it has to stop."""

    make_server: Callable[[LinkLimits], LinkServer]
    make_dialer: Callable[[str, LinkLimits], Dialer]
    servers: list[LinkServer] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Nobody needs the links of `pair` any more: servers need not wait for whoever accepted them."""

    async def serve(self, accept: Callable[[WorkerLink], Awaitable[None]], limits: LinkLimits = LIMITS) -> str:
        server = self.make_server(limits)
        self.servers.append(server)
        return await server.start(accept)

    def dialer(self, name: str = "router-a", limits: LinkLimits = LIMITS) -> Dialer:
        return self.make_dialer(name, limits)

    async def pair(self, limits: LinkLimits = LIMITS) -> tuple[RouterLink, WorkerLink]:
        """A link whose worker end stays open until it is closed."""
        accepted: asyncio.Future[WorkerLink] = asyncio.get_running_loop().create_future()

        async def accept(link: WorkerLink) -> None:
            accepted.set_result(link)
            await self.over.wait()

        address = await self.serve(accept, limits)
        router = await self.dialer(limits=limits).dial(address, 5.0)
        return router, await accepted


def _tcp(keys: LinkKeys | None = None) -> Network:
    return Network(
        lambda limits: TcpLinkServer("127.0.0.1:0", limits, keys=keys),
        lambda name, limits: TcpDialer(name, SeededEntropy(1, name), limits, keys=keys),
    )


def _memory() -> Network:
    networks: dict[LinkLimits, MemoryLinks] = {}
    count = iter(range(100))

    def links(limits: LinkLimits) -> MemoryLinks:
        return networks.setdefault(limits, MemoryLinks(limits=limits))

    return Network(
        lambda limits: links(limits).server(f"worker-{next(count)}"),
        lambda name, limits: links(limits).dialer(name),
    )


KEYS = LinkKeys([bytes(range(32))])
NETWORKS: dict[str, Callable[[], Network]] = {
    "tcp": _tcp,
    "memory": _memory,
    "tcp with a key": lambda: _tcp(KEYS),
}


@pytest.fixture(params=NETWORKS)
async def network(request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    network = NETWORKS[request.param]()
    yield network
    network.over.set()
    for server in network.servers:
        await server.stop()


async def _collect(channel: Any, count: int, within_s: float = 20.0) -> list[Any]:
    got: list[Any] = []
    async with asyncio.timeout(within_s):
        while len(got) < count:
            got.extend(await channel.receive())
    return got


async def _lost(channel: Any, within_s: float = 30.0) -> str:
    async def read_on() -> None:
        while True:
            await channel.receive()

    with pytest.raises(TandemError) as caught:
        await asyncio.wait_for(read_on(), within_s)
    assert caught.value.code == "link_lost"
    return caught.value.message


async def test_both_streams_carry_messages_both_ways(network: Network) -> None:
    router, worker = await network.pair()
    router.tokens.send(Ping(7))
    worker.tokens.send(Pong(2**63 + 1, 8))
    router.state.send(SnapshotRequest())
    worker.state.send(KvSnapshot(5, 6, b"n" * 16, True))
    assert await worker.tokens.receive() == (Ping(7),)
    assert await router.tokens.receive() == (Pong(2**63 + 1, 8),)
    assert await worker.state.receive() == (SnapshotRequest(),)
    assert await router.state.receive() == (KvSnapshot(5, 6, b"n" * 16, True),)
    assert worker.peer == "router-a"


async def test_ten_thousand_messages_arrive_once_and_in_order(network: Network) -> None:
    router, worker = await network.pair()

    async def send(channel: Any, make: Callable[[int], Any]) -> None:
        for number in range(10_000):
            channel.send(make(number))
            if number % 97 == 0:
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(send(router.tokens, Ping))
        group.create_task(send(worker.tokens, lambda number: Pong(1, number)))
        down = group.create_task(_collect(worker.tokens, 10_000))
        up = group.create_task(_collect(router.tokens, 10_000))
    assert [message.count for message in down.result()] == list(range(10_000))
    assert [message.count for message in up.result()] == list(range(10_000))


async def test_messages_of_one_tick_share_a_frame(network: Network) -> None:
    router, worker = await network.pair()
    for number in range(50):
        router.tokens.send(Ping(number))
    assert await worker.tokens.receive() == tuple(Ping(number) for number in range(50))


async def test_big_snapshots_travel_whole_and_in_order(network: Network) -> None:
    router, worker = await network.pair()
    pieces = [KvSnapshot(1, 2, bytes([number]) * 1_000_000, number == 11) for number in range(12)]
    for piece in pieces:
        worker.state.send(piece)
    assert await _collect(router.state, 12) == pieces


async def test_step_outputs_keep_every_field(network: Network) -> None:
    router, worker = await network.pair()
    outputs = (
        SequenceOutput(2**60, 0, 1, (5,), "é", 0),
        SequenceOutput(2, 3, 9, (7, 8, 9), "", 70_000, "stop", "END"),
        SequenceOutput(4, 0, 2, (), "tail", 3, "length"),
        SequenceOutput(4, 1, 2, (1,), "x", 3, "stop", 151_645),
    )
    worker.tokens.send(StepOutputs(outputs))
    worker.tokens.send(StepOutputs(()))
    assert await _collect(router.tokens, 2) == [StepOutputs(outputs), StepOutputs(())]


async def test_closing_one_end_is_seen_on_both_streams_of_the_other(network: Network) -> None:
    router, worker = await network.pair()
    worker.close("drained for good")
    assert "drained for good" in await _lost(router.tokens)
    assert "drained for good" in await _lost(router.state)
    assert "drained for good" in await _lost(worker.tokens)
    router.tokens.send(Ping(1))


async def test_a_closing_router_is_seen_by_the_worker(network: Network) -> None:
    router, worker = await network.pair()
    router.close("not wanted any more")
    await _lost(worker.tokens)
    await _lost(worker.state)
    assert "not wanted" in await _lost(router.state)


async def test_what_was_sent_before_closing_arrives(network: Network) -> None:
    router, worker = await network.pair()
    for number in range(500):
        worker.tokens.send(Pong(1, number))
        worker.state.send(KvSnapshot(1, number, b"k" * 1600, True))
    worker.close("last words")
    assert [message.count for message in await _collect(router.tokens, 500)] == list(range(500))
    assert [message.count for message in await _collect(router.state, 500)] == list(range(500))
    await _lost(router.tokens)


async def test_the_end_of_an_empty_stream_does_not_cut_the_other_one(network: Network) -> None:
    limits = LinkLimits(frame_bytes=4096, inbox_frames=4, flush_s=30)
    router, worker = await network.pair(limits)
    for number in range(30_000):
        worker.tokens.send(Pong(1, number))
    worker.close("last words")
    counts: list[int] = []
    while len(counts) < 30_000:
        counts += [message.count for message in await router.tokens.receive() if isinstance(message, Pong)]
        await asyncio.sleep(0.001)
    assert counts == list(range(30_000))
    await _lost(router.tokens)
    await _lost(router.state)


async def test_a_routers_last_commands_arrive_too(network: Network) -> None:
    router, worker = await network.pair()
    for number in range(500):
        router.tokens.send(Ping(number))
    router.close("last words")
    assert await _collect(worker.tokens, 500) == [Ping(number) for number in range(500)]
    await _lost(worker.state)


async def test_a_link_closes_when_accept_returns(network: Network) -> None:
    async def accept(link: WorkerLink) -> None:
        link.tokens.send(Pong(1, 1))

    router = await network.dialer().dial(await network.serve(accept), 5.0)
    assert await router.tokens.receive() == (Pong(1, 1),)
    await _lost(router.tokens)
    await _lost(router.state)


async def test_a_reader_that_waits_is_woken_by_its_own_close(network: Network) -> None:
    router, _worker = await network.pair()
    waiting = asyncio.create_task(_lost(router.tokens))
    await asyncio.sleep(0)
    router.close("enough")
    assert "enough" in await waiting


async def test_a_peer_that_does_not_read_is_cut_off(network: Network) -> None:
    limits = LinkLimits(queue_messages=200, queue_bytes=8 << 20, inbox_frames=4, flush_s=0.5)
    router, worker = await network.pair(limits)

    async def flood() -> None:
        for _ in range(400):
            worker.state.send(KvSnapshot(1, 1, b"f" * 500_000, False))
            await asyncio.sleep(0)

    await flood()
    assert "does not read" in await _lost(worker.tokens)
    assert "does not read" in await _lost(worker.state)
    await _lost(router.tokens)
    await _lost(router.state)


async def test_two_routers_do_not_disturb_each_other(network: Network) -> None:
    links: dict[str, WorkerLink] = {}
    both = asyncio.Event()

    async def accept(link: WorkerLink) -> None:
        links[link.peer] = link
        if len(links) == 2:
            both.set()
        await asyncio.Event().wait()

    address = await network.serve(accept)
    one = await network.dialer("one").dial(address, 5.0)
    two = await network.dialer("two").dial(address, 5.0)
    one.tokens.send(Ping(1))
    two.tokens.send(Ping(2))
    await asyncio.wait_for(both.wait(), 5.0)
    one.close("bye")
    await _lost(links["one"].state)
    links["two"].tokens.send(Pong(9, 9))
    assert await two.tokens.receive() == (Pong(9, 9),)
    assert await links["two"].tokens.receive() == (Ping(2),)


async def test_dialling_nobody_is_link_lost_in_time(network: Network) -> None:
    started = asyncio.get_running_loop().time()
    with pytest.raises(TandemError) as caught:
        await network.dialer().dial("tcp://127.0.0.1:1", 3.0)
    assert caught.value.code == "link_lost"
    assert asyncio.get_running_loop().time() - started < 4.0


async def test_a_stopped_server_ends_its_links_and_takes_no_more(network: Network) -> None:
    router, worker = await network.pair()
    worker.tokens.send(Pong(1, 1))
    await network.servers[0].stop()
    assert await router.tokens.receive() == (Pong(1, 1),)
    await _lost(router.tokens)
    with pytest.raises(TandemError):
        await network.dialer().dial(router.peer, 1.0)


REAL = {"tcp": (TcpLinkServer, TcpDialer)}
real = pytest.mark.parametrize(("server_of", "dialer_of"), REAL.values(), ids=REAL)


@real
async def test_strangers_versions_are_refused_and_neighbours_work(server_of: Any, dialer_of: Any) -> None:
    async def accept(link: WorkerLink) -> None:
        await link.tokens.receive()

    server = server_of("127.0.0.1:0", LIMITS, protocol=4)
    address = await server.start(accept)
    try:
        with pytest.raises(TandemError) as caught:
            await dialer_of("old", SeededEntropy(1), LIMITS, protocol=2).dial(address, 5.0)
        assert caught.value.code == "protocol_mismatch"
        assert "protocol 2" in caught.value.message
        neighbour = await dialer_of("n-1", SeededEntropy(2), LIMITS, protocol=3).dial(address, 5.0)
        neighbour.close("done")
    finally:
        await server.stop()


@real
async def test_an_address_in_use_is_a_bad_setting(server_of: Any, dialer_of: Any) -> None:
    async def accept(link: WorkerLink) -> None:
        return None

    first = server_of("127.0.0.1:0", LIMITS)
    bound = parse_address(await first.start(accept)).target
    with pytest.raises(TandemError) as caught:
        await server_of(bound, LIMITS).start(accept)
    assert caught.value.code == "bad_setting"
    assert bound in caught.value.message
    await first.stop()


PEER = """
import asyncio
from tandem.core.messages import Pong
from tandem.link.{module} import {server}

async def accept(link):
    link.tokens.send(Pong(1, 1))
    await asyncio.Event().wait()

async def main():
    print(await {server}("127.0.0.1:0").start(accept), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@real
async def test_a_killed_process_is_seen_on_both_streams(server_of: Any, dialer_of: Any) -> None:
    source = PEER.format(module=server_of.__module__.rpartition(".")[2], server=server_of.__name__)
    peer = await asyncio.create_subprocess_exec(sys.executable, "-c", source, stdout=asyncio.subprocess.PIPE)
    try:
        assert peer.stdout is not None
        address = (await peer.stdout.readline()).decode().strip()
        link = await dialer_of("router", SeededEntropy(3), LIMITS).dial(address, 10.0)
        assert await link.tokens.receive() == (Pong(1, 1),)
        peer.send_signal(signal.SIGKILL)
        await _lost(link.tokens, 3.0)
        await _lost(link.state, 3.0)
    finally:
        if peer.returncode is None:
            peer.kill()
        await peer.wait()
