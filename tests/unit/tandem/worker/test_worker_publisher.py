"""What a worker tells an index beyond its links: who it is, and its blocks as it tells routers of them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.messages import Hello, KvDelta
from tandem.core.request import Stopping
from tandem.link.memory_link import MemoryLinks
from tandem.worker.deps import Publisher
from tests.worlds.worker_stage import build_decode, dial, parts, prompt, running, submit

Names = Callable[[], Mapping[str, Sequence[bytes]]]


class Listening:
    """A publisher that only remembers."""

    def __init__(self, hello: Hello, names: Names) -> None:
        self.hellos = [hello]
        self.names = names
        self.held: dict[bytes, None] = {}
        self.closed = False

    def become(self, hello: Hello) -> None:
        self.hellos.append(hello)

    def change(self, tier: str, stored: Sequence[bytes], removed: Sequence[bytes]) -> None:
        assert tier == "hbm"
        self.held.update(dict.fromkeys(stored))
        for name in removed:
            del self.held[name]

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed = True


class FrozenClock(LoopClock):
    """A clock that can jump, as it does for a process that was stopped and continued."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop)
        self.frozen_s = 0.0

    def now(self) -> float:
        return super().now() + self.frozen_s


def test_a_worker_tells_its_publisher_what_it_tells_routers() -> None:
    async def main(loop: VirtualLoop) -> None:
        made: list[Listening] = []

        def make(hello: Hello, names: Names) -> Publisher:
            made.append(Listening(hello, names))
            return made[0]

        links, clock = MemoryLinks(), FrozenClock(loop)
        worker = build_decode(replace(parts(clock, "d"), open_publisher=make), links.server("d"), [])
        async with running(worker):
            router = await dial(links.dialer("router"), "d")
            router.link.tokens.send(submit(1, "local", prompt(200), stopping=Stopping(max_tokens=4)))
            await router.ended(1)
            (publisher,) = made
            told = [update for update in router.state if isinstance(update, KvDelta)]
            assert b"".join(publisher.held) == b"".join(delta.stored for delta in told) != b""
            assert set(publisher.held) == set(publisher.names()["hbm"])
            assert [hello.unready for hello in publisher.hellos] == [True, False]
            assert publisher.hellos[-1] == router.hello
            clock.frozen_s += 10.0
            await router.until(lambda: router.lost is not None)
            assert publisher.hellos[-1].epoch == worker.host.incarnation.epoch != publisher.hellos[0].epoch
            await worker.drain(1.0)
            assert publisher.closed

    run(main, limit_s=600.0)
