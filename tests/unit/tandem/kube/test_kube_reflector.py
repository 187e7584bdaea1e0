"""The reflector: whatever happens to its watch, its store ends up as the list."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.kube.cluster import Page, Selector, WatchEvent
from tandem.kube.kinds import CONFIG_MAP, Json, Ref
from tandem.kube.memory_cluster import MemoryCluster
from tandem.kube.reflector import Reflector, ReflectorSettings
from tandem.kube.store import Key, Store
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
        assert reflector.store.labelled("value", "1") == []

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


class Whole(dict[str, object]):
    """An object as it arrives, of which one can ask whether it is still held."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Pages(Sequence[Json]):
    """Items that are made when they are read, as a client makes them that decodes."""

    def __init__(self, cluster: "PagedCluster", items: Sequence[Json]) -> None:
        self._cluster, self._items = cluster, items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Json:  # type: ignore[override]
        found = Whole(self._items[index])
        self._cluster.arrived.add(found)
        self._cluster.most = max(self._cluster.most, len(self._cluster.arrived))
        return found


class PagedCluster(FlakyCluster):
    """Counts the whole objects that anything still holds."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(clock)
        self.arrived: weakref.WeakSet[Whole] = weakref.WeakSet()
        self.most = 0
        self.pages = 0

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        page = await super().list_page(selector, limit, token)
        self.pages += 1
        return Page(Pages(self, page.items), page.version, page.token)


def test_no_list_is_ever_held_whole() -> None:
    """Of two lists of 40 objects, one after the other, at most two objects are there as they arrived."""

    async def main(loop: VirtualLoop) -> None:
        cluster = PagedCluster(LoopClock(loop))
        for number in range(40):
            await cluster.apply(config_map(f"map-{number}", number), "test")
        reflector = Reflector(cluster, Selector(CONFIG_MAP), LoopClock(loop), SeededEntropy(1), SETTINGS)
        task = asyncio.create_task(reflector.run())
        await reflector.synced()
        cluster.disconnect()
        cluster.compact()
        await cluster.delete(Ref(CONFIG_MAP, "n", "map-7"))
        cluster.compact()
        await asyncio.sleep(60)
        assert cluster.pages >= 40
        assert len(reflector.store) == 39
        assert cluster.most <= 2
        task.cancel()

    gc.disable()  # What is let go of is gone at once, or it is held.
    try:
        run(main)
    finally:
        gc.enable()


def test_a_list_tells_only_of_what_has_changed() -> None:
    store, told = Store(), list[tuple[Key, bool]]()
    store.replace([config_map(f"map-{number}", number) for number in range(4)])
    store.on_change(lambda key, old, new: told.append((key, new is not None)))
    listed = {store.renew(config_map(f"map-{number}", number + (number == 2))) for number in (0, 2, 3)}
    assert told == [(("n", "map-2"), True)]
    store.retain(listed)
    assert told[1:] == [(("n", "map-1"), False)]


def test_objects_are_found_by_any_label_however_they_came() -> None:
    store = Store()
    store.put(config_map("a", 1))
    assert [obj["metadata"]["name"] for obj in store.labelled("value", "1", "n")] == ["a"]
    store.put(config_map("b", 1))
    store.put(config_map("a", 2))
    assert [obj["metadata"]["name"] for obj in store.labelled("value", "1")] == ["b"]
    assert [obj["metadata"]["name"] for obj in store.labelled("value", "0")] == ["a"]
    store.remove(config_map("b", 1))
    assert store.labelled("value", "1") == []
    assert store.labelled("value", "0", "m") == []


def test_what_others_note_for_themselves_is_not_kept() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = FlakyCluster(LoopClock(loop))
        noted = config_map("a", 1)
        noted["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "x"}
        await cluster.apply(noted, "test")
        reflector = Reflector(cluster, Selector(CONFIG_MAP), LoopClock(loop), SeededEntropy(1), SETTINGS)
        task = asyncio.create_task(reflector.run())
        await reflector.synced()
        (kept,) = reflector.store
        assert kept["metadata"]["annotations"] == {"mine": "x"}
        assert kept["data"] == {"value": "1"}
        task.cancel()

    run(main)
