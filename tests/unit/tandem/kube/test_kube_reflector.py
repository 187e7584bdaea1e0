"""The reflector: whatever happens to its watch, its store ends up as the list."""

import asyncio
from collections.abc import AsyncGenerator

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.kube.cluster import Page, Selector, WatchEvent
from tandem.kube.kinds import CONFIG_MAP, Json, Ref
from tandem.kube.memory_cluster import MemoryCluster
from tandem.kube.reflector import Reflector, ReflectorSettings
from tandem.kube.store import Key
from tests.worlds.loop_clock import LoopClock

SETTINGS = ReflectorSettings(page=2)


class FlakyCluster(MemoryCluster):
    """Refuses some calls, and lets watches fall silent without ending."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(clock)
        self.refusals = 0
        self.silent = False

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        self._refuse()
        return await super().list_page(selector, limit, token)

    async def watch(self, selector: Selector, version: str) -> AsyncGenerator[WatchEvent, None]:
        self._refuse()
        async for event in super().watch(selector, version):
            if self.silent:
                self.silent = False
                await asyncio.Event().wait()
            yield event

    def _refuse(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise TandemError("link_lost", "the server is away")


def config_map(name: str, value: int) -> Json:
    metadata = {"name": name, "namespace": "n", "labels": {"value": str(value % 2)}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": str(value)}}


def contents(reflector: Reflector) -> list[Json]:
    return sorted(reflector.store, key=lambda obj: str(obj["metadata"]["name"]))


STEPS = st.sampled_from(
    ["apply", "apply", "delete", "compact", "disconnect", "refuse", "silence", "bookmark", "wait"]
)


@settings(max_examples=80)
@given(st.lists(st.tuples(STEPS, st.integers(0, 4), st.integers(0, 9)), max_size=30), st.integers(0, 1000))
def test_any_interleaving_converges_to_the_list(steps: list[tuple[str, int, int]], seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster, entropy = FlakyCluster(LoopClock(loop)), SeededEntropy(seed)
        reflector = Reflector(cluster, Selector(CONFIG_MAP, "n", "value=1"), LoopClock(loop), entropy, SETTINGS)
        mirrored: dict[Key, Json] = {}

        def note(key: Key, _: Json | None, new: Json | None) -> None:
            mirrored.pop(key, None)
            if new is not None:
                mirrored[key] = new

        reflector.store.on_change(note)
        task = asyncio.create_task(reflector.run())
        for step, number, value in steps:
            await misfortune(cluster, step, f"map-{number}", value)
        await asyncio.sleep(300)
        wanted = (await MemoryCluster.list_page(cluster, Selector(CONFIG_MAP, "n", "value=1"), 100)).items
        assert reflector.has_synced
        assert contents(reflector) == list(wanted)
        assert sorted(mirrored) == sorted(("n", obj["metadata"]["name"]) for obj in wanted)
        assert len(reflector.store.labelled("value", "1")) == len(wanted)
        assert not task.done()
        task.cancel()

    run(main)


async def misfortune(cluster: FlakyCluster, step: str, name: str, value: int) -> None:
    if step == "apply":
        await cluster.apply(config_map(name, value), "test")
    elif step == "delete":
        if any(obj["metadata"]["name"] == name for obj in cluster.objects(CONFIG_MAP)):
            await cluster.delete(Ref(CONFIG_MAP, "n", name))
    elif step == "refuse":
        cluster.refusals = value
    elif step == "silence":
        cluster.silent = True
    elif step == "wait":
        await asyncio.sleep(value)
    else:
        {"compact": cluster.compact, "disconnect": cluster.disconnect, "bookmark": cluster.bookmark}[step]()


def test_a_silent_watch_is_given_up_and_continued() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = FlakyCluster(LoopClock(loop))
        reflector = Reflector(cluster, Selector(CONFIG_MAP), LoopClock(loop), SeededEntropy(1), SETTINGS)
        task = asyncio.create_task(reflector.run())
        await reflector.synced()
        await asyncio.sleep(1)
        cluster.silent = True
        await cluster.apply(config_map("late", 1), "test")
        await asyncio.sleep(SETTINGS.silence_s - 5)
        assert len(reflector.store) == 0
        await asyncio.sleep(10)
        assert len(reflector.store) == 1
        task.cancel()

    run(main)


def test_a_server_that_is_away_is_asked_ever_more_rarely() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = FlakyCluster(LoopClock(loop))
        cluster.refusals = 10_000
        reflector = Reflector(cluster, Selector(CONFIG_MAP), LoopClock(loop), SeededEntropy(1), SETTINGS)
        task = asyncio.create_task(reflector.run())
        await asyncio.sleep(600)
        assert not reflector.has_synced
        assert reflector.last_error == "the server is away"
        assert 20 < 10_000 - cluster.refusals < 60
        task.cancel()

    run(main)


def test_a_watch_on_which_nothing_happened_counts_as_one_that_worked() -> None:
    """A second failure long after a first one is a first one again."""

    async def main(loop: VirtualLoop) -> None:
        cluster = FlakyCluster(LoopClock(loop))
        reflector = Reflector(cluster, Selector(CONFIG_MAP), LoopClock(loop), SeededEntropy(1), SETTINGS)
        task = asyncio.create_task(reflector.run())
        await reflector.synced()
        for number in range(6):
            cluster.refusals = 2
            cluster.disconnect()
            await asyncio.sleep(20)
            assert not cluster.refusals
            await cluster.apply(config_map(f"again-{number}", 1), "test")
            cluster.refusals = 1
            cluster.disconnect()
            await asyncio.sleep(4)
            assert len(reflector.store) == number + 1
        task.cancel()

    run(main)
