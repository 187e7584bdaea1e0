"""The in-memory network: delays, partitions, cuts and dead nodes, on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.errors import TandemError
from tandem.core.messages import KvSnapshot, Ping, Pong
from tandem.link.memory_link import MemoryLinks
from tandem.link.protocol import RouterLink, WorkerLink
from tandem.link.queue import LinkLimits


class Scripted:
    """Delays per direction; None holds a direction."""

    def __init__(self) -> None:
        self.delays: dict[tuple[str, str], float | None] = {}

    def delay_s(self, source: str, target: str) -> float | None:
        return self.delays.get((source, target), 0.01)

    def repeats(self, source: str, target: str) -> bool:
        return False


Body = Callable[[VirtualLoop, MemoryLinks, Scripted, RouterLink, WorkerLink], Awaitable[None]]


def on_link(body: Body, limits: LinkLimits | None = None) -> None:
    async def main(loop: VirtualLoop) -> None:
        policy = Scripted()
        links = MemoryLinks(policy, limits)
        accepted: asyncio.Future[WorkerLink] = loop.create_future()

        async def accept(link: WorkerLink) -> None:
            accepted.set_result(link)
            await asyncio.Event().wait()

        server = links.server("w")
        await server.start(accept)
        router = await links.dialer("r").dial("w", 5.0)
        await body(loop, links, policy, router, await accepted)
        await server.stop()

    run(main, limit_s=100.0)


def test_each_direction_has_its_delay_and_keeps_its_order() -> None:
    async def body(
        loop: VirtualLoop, links: MemoryLinks, policy: Scripted, router: RouterLink, worker: WorkerLink
    ) -> None:
        policy.delays["w", "r"] = 0.5
        started = loop.time()
        worker.tokens.send(Pong(1, 1))
        await asyncio.sleep(0.1)
        policy.delays["w", "r"] = 0.0
        worker.tokens.send(Pong(1, 2))
        assert await router.tokens.receive() == (Pong(1, 1),)
        assert loop.time() - started == pytest.approx(0.5)
        assert await router.tokens.receive() == (Pong(1, 2),)
        started = loop.time()
        router.tokens.send(Ping(1))
        assert await worker.tokens.receive() == (Ping(1),)
        assert loop.time() - started == pytest.approx(0.01)

    on_link(body)


def test_frames_travel_at_the_same_time() -> None:
    async def body(
        loop: VirtualLoop, links: MemoryLinks, policy: Scripted, router: RouterLink, worker: WorkerLink
    ) -> None:
        policy.delays["r", "w"] = 1.0
        started = loop.time()
        for count in range(10):
            router.tokens.send(Ping(count))
            await asyncio.sleep(0.01)
        got = [message for _ in range(10) for message in await worker.tokens.receive()]
        assert got == [Ping(count) for count in range(10)]
        assert loop.time() - started < 1.2

    on_link(body)


def test_a_partition_holds_messages_until_it_heals() -> None:
    async def body(
        loop: VirtualLoop, links: MemoryLinks, policy: Scripted, router: RouterLink, worker: WorkerLink
    ) -> None:
        policy.delays["r", "w"] = None
        for count in range(3):
            router.tokens.send(Ping(count))
            await asyncio.sleep(1.0)
        worker.tokens.send(Pong(1, 1))
        assert await router.tokens.receive() == (Pong(1, 1),)
        policy.delays["r", "w"] = 0.01
        links.reconsider()
        assert [await worker.tokens.receive() for _ in range(3)] == [(Ping(0),), (Ping(1),), (Ping(2),)]

    on_link(body)


def test_a_cut_is_seen_at_both_ends_on_both_streams() -> None:
    async def body(
        loop: VirtualLoop, links: MemoryLinks, policy: Scripted, router: RouterLink, worker: WorkerLink
    ) -> None:
        worker.tokens.send(Pong(1, 1))
        await asyncio.sleep(0)
        links.cut("r", "w", "cable pulled")
        for channel in (router.tokens, router.state, worker.tokens, worker.state):
            with pytest.raises(TandemError, match="cable pulled"):
                await channel.receive()

    on_link(body)


def test_a_dead_worker_is_seen_after_its_last_messages_and_cannot_be_dialled() -> None:
    async def body(
        loop: VirtualLoop, links: MemoryLinks, policy: Scripted, router: RouterLink, worker: WorkerLink
    ) -> None:
        worker.tokens.send(Pong(1, 1))
        links.kill("w")
        worker.tokens.send(Pong(1, 2))
        assert await router.tokens.receive() == (Pong(1, 1),)
        with pytest.raises(TandemError, match="w is gone"):
            await router.tokens.receive()
        with pytest.raises(TandemError, match="refused"):
            await links.dialer("r").dial("w", 5.0)

    on_link(body)


def test_a_dead_worker_behind_a_partition_is_not_seen_before_it_heals() -> None:
    async def body(
        loop: VirtualLoop, links: MemoryLinks, policy: Scripted, router: RouterLink, worker: WorkerLink
    ) -> None:
        policy.delays["w", "r"] = None
        links.kill("w")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(router.tokens.receive(), 10.0)
        with pytest.raises(TandemError, match="did not answer within 2 s"):
            await links.dialer("r").dial("w", 2.0)
        policy.delays["w", "r"] = 0.0
        links.reconsider()
        with pytest.raises(TandemError, match="is gone"):
            await router.tokens.receive()

    on_link(body)


def test_messages_to_a_held_peer_overflow() -> None:
    async def body(
        loop: VirtualLoop, links: MemoryLinks, policy: Scripted, router: RouterLink, worker: WorkerLink
    ) -> None:
        policy.delays["w", "r"] = None
        for count in range(11):
            worker.state.send(KvSnapshot(1, count, b"", True))
        with pytest.raises(TandemError, match="does not read"):
            await worker.tokens.receive()
        policy.delays["w", "r"] = 0.0
        links.reconsider()
        with pytest.raises(TandemError, match="does not read"):
            await router.tokens.receive()

    on_link(body, LinkLimits(queue_messages=10))
