"""What a lower layer delivers twice has the effect of once: snapshots, deltas, submits, frames."""

import asyncio

from kv_transfer.transport.memory import MemoryNetwork
from router.fleet.kv_feed import Change, KvFeed, Replace
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.messages import KvDelta, KvSnapshot, Ping, Pong
from tandem.core.request import Stopping
from tandem.link.memory_link import MemoryLinks
from tandem.link.protocol import WorkerLink
from tests.worlds.worker_stage import build_decode, dial, memory_transport, parts, prompt, running, submit

EPOCH = 5


def name(number: int) -> bytes:
    return number.to_bytes(16, "little")


def test_a_repeated_piece_of_a_snapshot_is_not_taken_for_the_whole() -> None:
    feed = KvFeed(EPOCH)
    first, last = KvSnapshot(EPOCH, 3, name(1), False), KvSnapshot(EPOCH, 3, name(2), True)
    assert feed.take(first) == ()
    assert feed.take(first) == ()
    (replace,) = feed.take(last)
    assert isinstance(replace, Replace)
    assert {piece.names for piece in replace.pieces} == {name(1), name(2)}
    assert feed.take(last) == ()
    delta = KvDelta(EPOCH, 4, name(3), b"")
    assert feed.take(delta) == (Change(name(3), b""),)
    assert feed.take(delta) == ()
    assert feed.take(last) == (), "an old snapshot does not take the delta back"
    assert feed.last == (EPOCH, 4)


class Doubling:
    """A network on which every frame arrives twice."""

    def delay_s(self, source: str, target: str) -> float | None:
        return 0.001

    def repeats(self, source: str, target: str) -> bool:
        return True


def test_a_frame_that_comes_twice_is_counted_once() -> None:
    async def main(loop: VirtualLoop) -> None:
        links = MemoryLinks(Doubling())
        accepted: list[WorkerLink] = []

        async def accept(link: WorkerLink) -> None:
            accepted.append(link)
            await asyncio.sleep(100.0)

        server = links.server("w")
        await server.start(accept)
        link = await links.dialer("r").dial("w", 1.0)
        await asyncio.sleep(0.01)
        for count in range(3):
            link.tokens.send(Ping(count))
            accepted[0].tokens.send(Pong(EPOCH, count))
            await asyncio.sleep(0.01)
        assert [await accepted[0].tokens.receive() for _ in range(6)] == [(Ping(n // 2),) for n in range(6)]
        assert [await link.tokens.receive() for _ in range(6)] == [(Pong(EPOCH, n // 2),) for n in range(6)]
        assert link.tokens._on_the_way == 0  # type: ignore[attr-defined]
        await server.stop()

    run(main)


def test_a_submit_that_comes_twice_runs_once_even_after_its_end() -> None:
    async def main(loop: VirtualLoop) -> None:
        links, fabric = MemoryLinks(), MemoryNetwork()
        worker = build_decode(parts(LoopClock(loop), "d"), links.server("d"), [memory_transport(fabric, "d")])
        async with running(worker):
            router = await dial(links.dialer("router"), "d")
            local = submit(1, "local", prompt(40), stopping=Stopping(max_tokens=4))
            router.link.tokens.send(local)
            await asyncio.sleep(0.005)
            router.link.tokens.send(local)
            await router.ended(1)
            router.link.tokens.send(local)
            await asyncio.sleep(2.0)
            assert router.failed == []
            assert len(router.reports) == 1
            assert len(router.tokens(1)) == 4

    run(main)
