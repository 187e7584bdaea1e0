"""A service becomes ready when routers have heard of it, and a router that never hears holds nobody back."""

from collections.abc import Awaitable, Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.observe.pods import PodLoad
from control_plane.operator.routers import RouterReports, serving
from control_plane.reconcile.service_status import HEARD_WITHIN_S
from control_plane.reports.aggregator import ReportAggregate
from control_plane.reports.poller import Poller
from control_plane.reports.wire import read_report
from tandem.apps.simulation.loop import run
from tandem.kube.kinds import EVENT, Json
from tests.unit.control_plane.operator.test_operator_sequences import CALM, Step, finish, judge, play, quiet
from tests.worlds.loop_clock import LoopClock
from tests.worlds.operator_world import World

NAMES = ("router-1", "router-2")


def in_world(story: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        try:
            await story(world)
        finally:
            await world.close()

    run(lambda _loop: main(), limit_s=100_000)


def hear(world: World, *names: str) -> None:
    """These routers have read the service; the others are as they were."""
    shared = frozenset(each.name for each in world.status.revisions if each.weight)
    world.routers.heard |= dict.fromkeys(names, shared)


def ready(world: World) -> tuple[str, str]:
    stated = {each.type: each for each in world.status.conditions}
    return (stated["Ready"].status, stated["Ready"].reason) if stated else ("", "")


async def until(world: World, wanted: tuple[str, str]) -> float:
    """How many seconds it takes."""
    began = world.clock.now()
    while ready(world) != wanted:
        assert world.clock.now() - began < 600.0, ready(world)
        await world.tick()
    return world.clock.now() - began


def test_a_service_is_ready_once_every_router_has_heard_of_it() -> None:
    async def story(world: World) -> None:
        world.routers.heard = dict.fromkeys(NAMES, frozenset())
        await world.submit()
        await until(world, ("Unknown", "RoutersNotReached"))
        assert world.condition("Reconciling")["status"] == "True"
        assert world.condition("Available")["status"] == "True"
        hear(world, NAMES[0])
        await world.run(5.0)
        assert ready(world) == ("Unknown", "RoutersNotReached")
        assert NAMES[1] in world.condition("Ready")["message"]
        assert NAMES[0] not in world.condition("Ready")["message"]
        hear(world, NAMES[1])
        assert await until(world, ("True", "Complete")) <= 3.0
        assert world.condition("Reconciling")["status"] == "False"
        world.routers.heard = dict.fromkeys(NAMES, frozenset())
        await world.run(60.0)
        assert ready(world) == ("True", "Complete"), "a router that starts again makes nothing unready"

    in_world(story)


def test_a_router_that_never_hears_is_named_and_waited_for_no_longer() -> None:
    async def story(world: World) -> None:
        world.routers.heard = dict.fromkeys(NAMES, frozenset())
        await world.submit()
        await until(world, ("Unknown", "RoutersNotReached"))
        hear(world, NAMES[0])
        assert HEARD_WITHIN_S - 2.0 <= await until(world, ("True", "Complete")) <= HEARD_WITHIN_S + 3.0
        await world.settle()
        said = [each["note"] for each in world.of(EVENT) if each["reason"] == "Complete"]
        assert [NAMES[1] in each and NAMES[0] not in each for each in said] == [True]
        assert ready(world) == ("True", "Complete")

    in_world(story)


def test_without_routers_nobody_is_waited_for() -> None:
    async def story(world: World) -> None:
        await world.submit()
        seen = set[tuple[str, str]]()
        while ("True", "Complete") not in seen:
            await world.tick()
            seen.add(ready(world))
        assert all(status != "Unknown" for status, _ in seen)

    in_world(story)


HEARING = st.lists(st.sampled_from(["both", "one", "nobody", "restart"]), min_size=1, max_size=12)


@given(CALM, HEARING, st.integers(1, 9))
@settings(max_examples=12, deadline=None)
def test_whenever_routers_hear_it_always_gets_there(steps: list[Step], hearing: list[str], every: int) -> None:
    async def story(world: World) -> None:
        world.routers.heard = dict.fromkeys(NAMES, frozenset())
        looks = 0

        def hears() -> None:
            nonlocal looks
            looks += 1
            what = hearing[looks // every % len(hearing)]
            if what == "restart":
                world.routers.heard = dict.fromkeys(NAMES, frozenset())
            elif what != "nobody":
                hear(world, *NAMES[: 1 + (what == "both")])

        world.cluster.seen = hears
        await world.submit()
        await world.settle(quiet_s=30)
        await play(world, steps)
        world.cluster.writes_left = None
        await finish(world)
        judge(world)
        await quiet(world)

    in_world(story)


def pod(name: str, *, ready: bool = True, leaving: bool = False) -> Json:
    metadata = {"name": name, **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {})}
    return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": str(ready)}]}}


def test_a_worker_tells_how_it_moves_kv_and_why() -> None:
    listed = b"""{"data": [{"id": "chat-0", "service": "llm/chat", "kv_path": "nixl/ucx-tcp", "load": {"running": 2},
        "problems": ["tcp: transfer_failed: gone", "nixl: only 8 MiB can be locked"]}]}"""
    poller = Poller(dict, LoopClock.__new__(LoopClock))
    poller.books = ReportAggregate().round(("a",), {"a": read_report(listed, b"{}")}, 1.0)
    told = RouterReports(poller, tuple).loads(("llm", "chat"))
    assert told == {"chat-0": PodLoad(2, kv_path="nixl/ucx-tcp", kv_problem="nixl: only 8 MiB can be locked")}


def test_routers_that_take_requests_tell_to_which_revisions_they_give_them() -> None:
    listed = b"""{"incarnation": "i", "data": [
        {"service": "llm/chat", "namespace": "llm", "revision": "old", "weight": 0, "requests": 3},
        {"service": "llm/chat", "namespace": "llm", "revision": "new", "weight": 100},
        {"service": "llm/chat", "namespace": "llm", "revision": "unknown", "weight": null},
        {"service": "llm/other", "namespace": "llm", "revision": "else", "weight": 1}]}"""
    poller = Poller(dict, LoopClock.__new__(LoopClock))
    poller.books = ReportAggregate().round(("a", "b"), {"a": read_report(b"{}", listed)}, 1.0)
    pods = [pod("a"), pod("b"), pod("c", ready=False), pod("d", leaving=True), {"metadata": {"name": "e"}}]
    reports = RouterReports(poller, lambda: sorted(serving(pods)))
    assert reports.routers(("llm", "chat")) == {"a": frozenset({"new"}), "b": frozenset()}
    assert reports.routers(("llm", "none")) == {"a": frozenset(), "b": frozenset()}
