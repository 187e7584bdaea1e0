"""What outlives a hub, and which hub may write it."""

import asyncio
from typing import Any

import pytest

from tandem.apps.ray.event_log import EventLog
from tandem.apps.ray.gates import Comparison, VerifyProcess
from tandem.apps.ray.hub_store import EPOCH, STATE, StateKeeper
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.kube.kinds import CONFIG_MAP, Json
from tandem.kube.memory_cluster import MemoryCluster
from tandem.process.system import SystemClock


class Kept:
    """A store in memory that counts what is put, and fails when told so."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.puts = 0
        self.fails = False

    async def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    async def put(self, key: str, value: bytes) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise TandemError("link_lost", "the store is away")
        self.puts += 1
        self.values[key] = value


def keeper(store: Kept, seed: int = 1) -> tuple[StateKeeper, MemoryCluster]:
    cluster = MemoryCluster(SystemClock())
    return StateKeeper(store, cluster, SeededEntropy(seed)), cluster


def config_map(name: str) -> Json:
    metadata = {"name": name, "namespace": "ray"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}}


async def test_what_was_saved_is_there_for_the_next_hub() -> None:
    store = Kept()
    first, cluster = keeper(store)
    await first.open()
    await cluster.create(config_map("a"))
    first.meet("gang", "127.0.0.1")
    first.state.started_serve = first.state.routers_seen = True
    await first.save()
    second, restored = keeper(store, seed=2)
    await second.open()
    assert (first.epoch, second.epoch) == (1, 2)
    assert restored.objects(CONFIG_MAP) == cluster.objects(CONFIG_MAP)
    assert second.state.key == first.state.key
    assert len(second.state.key) == 64
    assert second.state.gangs == {"gang": "127.0.0.1"}
    assert second.state.started_serve
    assert second.state.routers_seen


async def test_nothing_is_written_while_nothing_changes() -> None:
    store = Kept()
    first, cluster = keeper(store)
    await first.open()
    puts = store.puts
    await first.save()
    assert store.puts == puts
    await cluster.create(config_map("a"))
    await first.save()
    await first.save()
    assert store.puts == puts + 1


async def test_a_save_that_failed_is_made_again() -> None:
    store = Kept()
    first, cluster = keeper(store)
    await first.open()
    await cluster.create(config_map("a"))
    store.fails = True
    with pytest.raises(TandemError, match="the store is away"):
        await first.save()
    store.fails = False
    await first.save()
    second, restored = keeper(store)
    await second.open()
    assert restored.objects(CONFIG_MAP)


async def test_an_older_hub_may_not_save() -> None:
    store = Kept()
    first, cluster = keeper(store)
    await first.open()
    second, _ = keeper(store)
    await second.open()
    kept = store.values[STATE]
    await cluster.create(config_map("late"))
    with pytest.raises(TandemError, match="a younger one acts") as raised:
        await first.save()
    assert raised.value.code == "stale_epoch"
    assert first.superseded
    assert store.values[STATE] == kept


async def test_versions_of_a_lost_life_are_never_given_again() -> None:
    """A hub that dies before its first save has shown versions to nobody: it kept them when it began."""
    store = Kept()
    versions = []
    for _ in range(3):
        each, cluster = keeper(store)
        await each.open()
        versions.append(int(cluster.version))
        await cluster.create(config_map(f"lost-{each.epoch}"))
        versions.append(int(cluster.version))
    assert versions == sorted(set(versions))


async def test_a_state_that_cannot_be_read_is_named() -> None:
    store = Kept()
    store.values[STATE] = b"nothing"
    each, _ = keeper(store)
    with pytest.raises(TandemError, match="state cannot be read"):
        await each.open()
    assert store.values[STATE] == b"nothing"
    store.values[EPOCH] = b"many"
    with pytest.raises(TandemError, match="epoch cannot be read"):
        await each.open()


async def test_few_gangs_are_remembered() -> None:
    each, _ = keeper(Kept())
    await each.open()
    for number in range(1000):
        each.meet(f"g{number}", "127.0.0.1")
    assert len(each.state.gangs) <= 256
    assert "g999" in each.state.gangs


async def test_the_log_gives_what_is_new_and_waits_for_it() -> None:
    log = EventLog()
    log.begin(3)
    log.say("a")
    log.say("a")
    log.say("b")
    since, sentences = await log.after(0, 0.0)
    assert sentences == ("a", "b")
    waiting = asyncio.create_task(log.after(since, 20.0))
    await asyncio.sleep(0)
    log.say("c")
    assert await waiting == (since + 1, ("c",))
    later = EventLog()
    later.begin(4)
    later.say("d")
    assert (await later.after(since, 0.0))[1] == ("d",)


async def test_a_trouble_is_said_once_and_its_end_too() -> None:
    log = EventLog()
    for _ in range(3):
        for what in ("Serve", "the store"):
            with log.guarding(what):
                raise TandemError("link_lost", f"{what} is away")
    with log.guarding("Serve"):
        pass
    with log.guarding("Serve"):
        pass
    assert (await log.after(0, 0.0))[1] == ("Serve is away", "the store is away", "Serve can be reached again")
    with pytest.raises(TandemError), log.guarding("Serve"):
        raise TandemError("stale_epoch", "a younger one acts")


async def test_a_comparison_without_a_router_could_not_be_made() -> None:
    with pytest.raises(TandemError, match="no router"):
        await VerifyProcess(lambda: None)(Comparison((), ""))


async def test_a_comparison_is_a_process_of_tandem_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    class Ended:
        returncode = 3

        async def wait(self) -> int:
            return 3

    async def start(*argv: Any, **settings: Any) -> Ended:
        with open(argv[-1], encoding="utf-8") as prompts:  # noqa: ASYNC230
            seen.append((*argv[1:-1], prompts.read(), settings["env"].get("OPENAI_API_KEY")))
        return Ended()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    made = await VerifyProcess(lambda: "http://r:1", "secret")(Comparison(("--model-a", "m@a"), "lines\n"))
    assert made == 3
    argv = ("-m", "tandem.apps.cli", "verify", "http://r:1", "http://r:1", "--model-a", "m@a", "--prompts")
    assert seen == [(*argv, "lines\n", "secret")]
