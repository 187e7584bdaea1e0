"""Answers that go on over other routers as when it was written down: routers and workers die, clients come back.

Whatever happens, what a client has is the beginning of the one right answer. Beyond that the same worker goes on with
it, the same positions come again, and the same reasons are told as before.
"""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from router.generation import Running
from router.settings import PlacementSettings, RetrySettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.apps.simulation.quiet import quiet_logs
from tandem.core.entropy import SeededEntropy, below, unit
from tandem.core.errors import TandemError
from tandem.core.spans import Span
from tests.unit.router.dispatch.test_resume import PAIRED, Sink, World, heard, joined
from tests.worlds.golden import assert_as_written, digest
from tests.worlds.golden_world import spelled

SETTINGS = {
    "disaggregated": PAIRED,
    "any": RouterSettings(retry=RetrySettings(hedge_after_s=0.02, share=0.5)),
    "local": replace(PAIRED, placement=PlacementSettings(prefer="local")),
}
SEEDS = range(5)
CLIENTS = 5


class Returning:
    """A client that keeps what it has, and comes back with it."""

    def __init__(self, world: World, name: str, entropy: SeededEntropy) -> None:
        self.world = world
        self.name = name
        self.entropy = entropy
        self.n, self.most = 1 + below(entropy, 2), 20 + below(entropy, 200)
        self.logprobs = (None, 1)[below(entropy, 2)]
        self.had: list[Sink] = []
        self.last = Sink()
        self.told: list[str] = []

    def place(self) -> tuple[int, ...]:
        return tuple(sum(sink.place(self.n)[sequence] for sink in self.had) for sequence in range(self.n))

    async def whole(self) -> list[tuple[object, ...]]:
        asked = self.world.generation(f"whole-{self.name}", self.n, self.most, self.logprobs)
        return joined(await self.world.whole(asked), n=self.n)

    async def live(self) -> str:
        """Ask, break off and return, at drawn moments, until the answer is whole or nobody knows it."""
        await asyncio.sleep(unit(self.entropy) * 0.3)
        sink = Sink()
        asked = self.world.generation(self.name, self.n, self.most, self.logprobs)
        await self.reachable()
        running: Running = self.world.dispatcher.start(asked, sink)
        for turn in range(12):
            broke = await self.listened(sink, running)
            self.last = sink
            self.had.append(heard(sink))
            if sink.usage is not None or (sink.error is not None and not broke):
                return f"{turn} {sink.usage} {sink.error}"
            await asyncio.sleep(unit(self.entropy) * 0.5)
            await self.reachable()
            try:
                found = await self.world.dispatcher.resume(self.name, "tenant")
                self.told.append(f"{turn} {found.chars(self.place())}")
                sink = Sink()
                running = found.listen(sink, self.place())
            except TandemError as error:
                return f"{turn} {error}"
            self.told.append(f"{turn} {running.standing()}")
        return "never whole"

    async def reachable(self) -> None:
        while not self.world.platform.router.can_be_asked():  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def listened(self, sink: Sink, running: Running) -> bool:
        """Whether the connection broke, by the client or with the router."""
        until = self.world.clock.now() + (0.05 + unit(self.entropy) * 0.6, 60.0)[below(self.entropy, 3) == 0]
        router = self.world.platform.router.life
        while not sink.ended.is_set() and self.world.clock.now() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if sink.error is not None and "process is dead" in sink.error.message:
            return True
        if sink.ended.is_set():
            return False
        if router is self.world.platform.router.life:
            running.cancel("its client left")
        return True


async def trouble(world: World, entropy: SeededEntropy) -> None:
    """The router dies twice, and a worker or two."""
    for _ in range(4):
        await asyncio.sleep(unit(entropy) * 0.5)
        if below(entropy, 2):
            await world.restart(unit(entropy))
            continue
        nodes = list(world.platform.nodes.values())
        node = nodes[below(entropy, len(nodes))]
        node.kill()
        await asyncio.sleep(unit(entropy))
        node.start()


def spans_of(world: World) -> list[str]:
    kept = world.recorder.kept.items()
    return [f"{name} {spelled(span)}" for name, spans in sorted(kept) for span in spans if isinstance(span, Span)]


def lived(seed: int, settings: RouterSettings) -> tuple[Counter[str], list[str]]:
    async def main(loop: VirtualLoop) -> tuple[Counter[str], list[str]]:
        world = World(loop, settings, 2, 2)
        world.platform.start()
        await world.platform.until(world.platform.ready, 30.0, "not ready")
        entropy = SeededEntropy(seed, "returning")
        clients = [Returning(world, f"req-{number}", entropy.fork(f"{number}")) for number in range(CLIENTS)]
        whole = [await client.whole() for client in clients]
        async with asyncio.TaskGroup() as group:
            lives = [group.create_task(client.live()) for client in clients]
            group.create_task(trouble(world, entropy.fork("trouble")))
        story, ends = list[str](), Counter[str]()
        for client, right, life in zip(clients, whole, lives, strict=True):
            got, last = joined(*client.had, n=client.n), client.last
            if last.usage is not None:
                assert got == right, "the answer is another than without any trouble"
            for (tokens, text, _), (all_tokens, all_text, _) in zip(got, right, strict=True):
                assert all_tokens[: len(tokens)] == tokens  # type: ignore[index, arg-type]
                assert str(all_text).startswith(str(text))
            ends["whole" if last.usage is not None else last.error.code if last.error else "unknown"] += 1
            story += [f"{client.name} {line}" for line in [*client.told, life.result(), str(client.place())]]
        await world.free(60.0)
        return ends, [*story, *spans_of(world)]

    with quiet_logs():
        return run(main, limit_s=3000.0)


@pytest.mark.parametrize("name", SETTINGS)
def test_answers_go_on_as_they_did_when_it_was_written_down(name: str) -> None:
    stories = {}
    for seed in SEEDS:
        ends, story = lived(seed, SETTINGS[name])
        told = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
        stories[f"{seed}: {digest(story)}, {told}, {len(story)} lines"] = story
    assert_as_written(f"returning_{name}", list(stories), stories)
