"""The hub over a Ray cluster in memory, on virtual time: services come up, scale, roll over, sleep, and go."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tandem.apps.ray.hub import END_LOOK_S, REFUSE_S, Hub
from tandem.apps.ray.hub_end import IDLE_S, ROUTERS_GONE_S
from tandem.apps.ray.hub_store import STATE, HubState
from tandem.apps.ray.pods import NAMESPACE
from tandem.apps.simulation.loop import run
from tandem.core.errors import TandemError
from tandem.kube.cluster import Conflict, Expired, NotFound, Selector
from tandem.kube.kinds import POD
from tandem.spec.rollout import TOO_DIFFERENT
from tandem.spec.service import ModelService
from tests.worlds.loop_clock import LoopClock
from tests.worlds.memory_serving import MemoryServing
from tests.worlds.ray_world import NAME, SPEC, Demand, Life, RayWorld, in_world, scaled, service

OTHER = {"type": "simulated", "kvMemory": "64Mi"}
"""Another engine, which makes another revision."""


def story(tell: Callable[[RayWorld], Awaitable[None]], **settings: Any) -> RayWorld:
    return run(lambda _loop: in_world(tell, **settings))


async def up(world: RayWorld, wanted: ModelService | None = None, **counts: int) -> str:
    """The service with one prefill and two decode workers, or as wanted; its revision."""
    wanted = wanted or service()
    revision: str = await world.ask(lambda hub: hub.want(wanted))
    await world.settled(revision, **(counts or {"prefill": 1, "decode": 2}))
    return revision


def test_a_service_comes_up_and_routers_find_its_workers() -> None:
    async def tell(world: RayWorld) -> None:
        revision = await up(world)
        found = await world.discovered()
        assert {each.service for each in found} == {f"{NAMESPACE}/{NAME}"}
        assert {each.address for each in found} == {f"tcp://{told.address}" for told in world.serving.workers()}
        status = await world.status()
        assert {each.name: each.weight for each in status.revisions} == {revision: 100}

        async def ready() -> bool:
            return any(each.type == "Ready" and each.status == "True" for each in (await world.status()).conditions)

        await world.until(ready, "a router has said that it knows the revision", within_s=10.0)
        assert world.serving.deployed == [f"{NAME}-{revision}"]

    story(tell)


def test_numbers_change_without_another_application() -> None:
    async def tell(world: RayWorld) -> None:
        revision = await up(world)
        first = {told.name for told in world.serving.workers()}
        await world.ask(lambda hub: hub.scale(NAME, {"decode": 4}))
        await world.settled(revision, prefill=1, decode=4)
        await world.ask(lambda hub: hub.scale(NAME, {"decode": 1, "prefill": 2}))
        await world.settled(revision, prefill=2, decode=1)
        await world.ask(lambda hub: hub.want(service(pools=scaled(decode=3))))
        await world.settled(revision, prefill=1, decode=3)
        assert world.serving.deployed == [f"{NAME}-{revision}"]
        assert first & {told.name for told in world.serving.workers()}, "workers that stay are left alone"

    story(tell)


def test_a_pool_that_others_scale_keeps_its_number() -> None:
    async def tell(world: RayWorld) -> None:
        pools = [{"name": "prefill", "role": "prefill"}, {"name": "decode", "role": "decode"}]
        revision = await up(world, service(pools=pools), prefill=1, decode=1)
        await world.ask(lambda hub: hub.scale(NAME, {"decode": 3}))
        await world.settled(revision, prefill=1, decode=3)
        world.crash()
        await asyncio.sleep(20.0)
        await world.settled(revision, prefill=1, decode=3)

    story(tell)


@pytest.mark.parametrize(
    ("name", "counts", "error"),
    [("nobody", {"decode": 1}, NotFound), (NAME, {"nothing": 1}, NotFound), (NAME, {"decode": -1}, TandemError)],
)
def test_a_wrong_number_is_refused_with_a_sentence(
    name: str, counts: dict[str, int], error: type[TandemError]
) -> None:
    async def tell(world: RayWorld) -> None:
        await up(world)
        with pytest.raises(error):
            await world.ask(lambda hub: hub.scale(name, counts))

    story(tell)


def test_a_revision_replaces_the_other_pool_by_pool_under_weights() -> None:
    async def tell(world: RayWorld) -> None:
        old = await up(world)
        seen: list[dict[str, int]] = []

        async def watch() -> None:
            while True:
                status = await world.status()
                weights = {each.name: each.weight for each in status.revisions if each.weight}
                if not seen or seen[-1] != weights:
                    seen.append(weights)
                for revision in weights:
                    workers = [told for told in world.serving.workers(f"{NAME}-{revision}") if told.ready]
                    assert {told.pool for told in workers} == {"prefill", "decode"}, (
                        "only whole revisions get requests"
                    )
                await asyncio.sleep(0.1)

        watching = asyncio.create_task(watch())
        new: str = await world.ask(lambda hub: hub.want(service(engine=OTHER)))
        assert new != old
        await world.settled(new, prefill=1, decode=2)
        watching.cancel()
        results = await asyncio.gather(watching, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError), results
        assert seen[0] == {old: 100}
        assert seen[-1] == {new: 100}
        assert world.serving.deployed == [f"{NAME}-{old}", f"{NAME}-{new}"]

    story(tell)


def test_a_revision_that_never_gets_ready_goes_back() -> None:
    async def tell(world: RayWorld) -> None:
        old = await up(world)
        world.serving.broken = {"extra"}
        pools = [*SPEC["pools"], {"name": "extra", "role": "decode", "replicas": 1}]
        new: str = await world.ask(lambda hub: hub.want(service(pools=pools)))

        async def stalled() -> bool:
            return any(each.type == "Stalled" and each.status == "True" for each in (await world.status()).conditions)

        await world.until(stalled, "the rollout fails", within_s=600.0)
        await world.until(lambda: _no_workers(world, new), "the new revision goes", within_s=60.0)
        assert len([told for told in world.serving.workers(f"{NAME}-{old}") if told.ready]) == 3

    story(tell)


def test_an_application_that_serve_gives_up_is_deployed_anew() -> None:
    async def tell(world: RayWorld) -> None:
        world.serving.failing = {"decode"}
        revision: str = await world.ask(lambda hub: hub.want(service()))
        await asyncio.sleep(30.0)
        assert not world.serving.workers()
        _, sentences = await world.ask(lambda hub: hub.events(0, 0.0))
        assert f"application {NAME}-{revision} is failed: its replicas cannot start" in sentences
        world.serving.failing = set()
        await world.settled(revision, prefill=1, decode=2)
        assert world.serving.deployed == [f"{NAME}-{revision}"] * 2

    story(tell)


@pytest.mark.parametrize(("verdict", "passes"), [(0, True), (TOO_DIFFERENT, False)])
def test_a_gate_decides_whether_a_revision_gets_requests(verdict: int, passes: bool) -> None:
    async def tell(world: RayWorld) -> None:
        gate = {**SPEC["rollout"], "gate": {}}
        old = await up(world, service(rollout=gate))
        world.verdicts = [1, verdict]
        new: str = await world.ask(lambda hub: hub.want(service(rollout=gate, engine=OTHER)))
        if passes:
            await world.settled(new, prefill=1, decode=2)
        else:

            async def over() -> bool:
                return len(world.compared) == 2 and await _no_workers(world, new)

            await world.until(over, "the new revision goes")
            assert len(world.serving.workers(f"{NAME}-{old}")) == 3
        assert len(world.compared) == 2, "a comparison that could not be made is made again"
        assert world.compared[0].flags[:4] == ("--model-a", f"{NAME}@{old}", "--model-b", f"{NAME}@{new}")
        assert world.compared[0].prompts

    story(tell)


def test_a_service_sleeps_and_a_request_wakes_it() -> None:
    async def tell(world: RayWorld) -> None:
        scaling = {"minReplicas": 0, "maxReplicas": 3, "idleAfterSeconds": 30, "scaleDownStabilizationSeconds": 0}
        pools = [
            {"name": "prefill", "role": "prefill", "autoscaling": scaling, "drainSeconds": 5},
            {"name": "decode", "role": "decode", "autoscaling": scaling, "drainSeconds": 5},
        ]
        revision = await up(world, service(pools=pools), prefill=1, decode=1)
        await world.until(lambda: _no_workers(world), "it falls asleep")
        assert set(await world.serving.running()) == {f"{NAME}-{revision}"}, "the application stays"
        world.demand[NAME] = Demand(queued=1, arrived=1)
        await world.settled(revision, prefill=1, decode=1)
        world.demand[NAME] = Demand(arrived=1)
        await world.until(lambda: _no_workers(world), "it falls asleep again")

    story(tell)


async def _no_workers(world: RayWorld, revision: str = "") -> bool:
    return not world.serving.workers(f"{NAME}-{revision}" if revision else "")


def test_a_worker_that_dies_is_gone_for_routers_and_another_comes() -> None:
    async def tell(world: RayWorld) -> None:
        revision = await up(world)
        struck = world.serving.workers(pool="decode")[0].name
        world.serving.kill(struck)

        async def forgotten() -> bool:
            return struck not in {each.name for each in await world.discovered()}

        await world.until(forgotten, "routers forget it", within_s=7.0)
        await world.settled(revision, prefill=1, decode=2)

    story(tell)


def test_a_worker_that_leaves_is_told_to_routers_before_it_is_gone() -> None:
    async def tell(world: RayWorld) -> None:
        await up(world)
        await world.ask(lambda hub: hub.scale(NAME, {"decode": 1}))

        async def leaving() -> bool:
            return any(each.drain_within_s == 5.0 for each in await world.discovered())

        await world.until(leaving, "a router is told", within_s=10.0)

    story(tell)


def test_leaving_drains_first_and_leaves_nothing() -> None:
    async def tell(world: RayWorld) -> None:
        await up(world)
        leaving = asyncio.create_task(world.ask(lambda hub: hub.leave(NAME, 30.0)))

        async def drains() -> bool:
            found = await world.discovered()
            return bool(found) and all(each.drain_within_s is not None for each in found)

        await world.until(drains, "workers drain while the service is known", within_s=10.0)
        assert (await world.status()).current_revision
        await leaving
        assert await world.serving.running() == {}
        assert await world.discovered() == []
        assert await world.ask(lambda hub: hub.services()) == ()

    story(tell)


def test_leaving_does_not_wait_for_ever_for_a_worker() -> None:
    async def tell(world: RayWorld) -> None:
        await up(world)
        for told in world.serving.workers():
            world.serving.held.add(told.name)
        with pytest.raises(TandemError, match="not gone within 5 s"):
            await world.ask(lambda hub: hub.leave(NAME, 5.0))
        world.serving.held.clear()
        await world.ask(lambda hub: hub.leave(NAME, 5.0))
        assert await world.serving.running() == {}

    story(tell)


def test_leaving_one_service_leaves_the_other_alone() -> None:
    async def tell(world: RayWorld) -> None:
        await world.ask(lambda hub: hub.want(service("other")))
        await world.ask(lambda hub: hub.want(service()))
        await world.until(lambda: _ready(world, 6), "both are up")
        before = {told.name for told in world.serving.workers() if told.service == "other"}
        await world.ask(lambda hub: hub.leave(NAME, 30.0))
        assert {told.name for told in world.serving.workers()} == before

    story(tell)


async def _ready(world: RayWorld, count: int) -> bool:
    return sum(told.ready for told in world.serving.workers()) == count


def test_a_service_that_is_wanted_again_while_it_leaves_stays() -> None:
    async def tell(world: RayWorld) -> None:
        revision = await up(world)
        leaving = asyncio.create_task(world.ask(lambda hub: hub.leave(NAME, 60.0)))
        await asyncio.sleep(0.3)
        await world.ask(lambda hub: hub.want(service()))
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await world.settled(revision, prefill=1, decode=2)

    story(tell)


async def _over(world: RayWorld) -> bool:
    return world.over


def test_a_hub_that_is_asked_to_end_does_so_when_nothing_is_left_and_refuses_what_comes_then() -> None:
    async def tell(world: RayWorld) -> None:
        await up(world)
        assert not await world.ask(lambda hub: hub.end()), "a service is there"
        leaving = asyncio.create_task(world.ask(lambda hub: hub.leave(NAME, 0.0)))
        await world.until(lambda: _no_service(world), "the service goes")
        assert await world.serving.running()
        assert await world.ask(lambda hub: hub.end())
        await leaving
        await world.until(lambda: _over(world), "the hub ends", within_s=5.0)
        assert await world.serving.running() == {}, "nobody would delete it any more"
        assert world.hub is not None
        for late in (world.hub.want(service()), world.hub.key(), world.hub.started_serve(True)):
            with pytest.raises(TandemError, match="this hub is over") as refused:
                await late
            assert (refused.value.code, refused.value.retryable) == ("link_lost", True)
        assert await world.hub.end()

    story(tell)


async def _no_service(world: RayWorld) -> bool:
    return not await world.ask(lambda hub: hub.services())


@pytest.mark.parametrize("asked", [True, False])
def test_a_service_that_is_wanted_while_the_hub_decides_on_its_end_is_kept_or_refused(asked: bool) -> None:
    """Whatever the turn of the loop at which it comes."""
    kept: list[bool] = []

    async def tell(world: RayWorld) -> None:
        world.serving.routed = ()
        await world.until(lambda: _begun(world), "the hub is there")
        hub = world.hub
        assert hub is not None
        # Its looks are at whole seconds, as nothing takes time.
        await asyncio.sleep(IDLE_S - END_LOOK_S / 2 - world.clock.now())
        if asked:
            assert await hub.end()
        await asyncio.sleep(END_LOOK_S / 2)
        for _ in range(len(kept)):
            await asyncio.sleep(0)
        try:
            revision = await hub.want(service())
        except TandemError:
            await world.until(lambda: _over(world), "the hub ends")
            kept.append(False)
        else:
            world.serving.routed = ("tandem",)
            await world.settled(revision, prefill=1, decode=2)
            kept.append(True)

    for _ in range(8):
        story(tell)
    assert set(kept) == {True, False}, kept


def test_services_leave_and_the_hub_ends_when_routers_were_taken_away_also_while_it_was_dead() -> None:
    async def tell(world: RayWorld) -> None:
        await up(world)
        world.crash()
        world.serving.routed = ()
        await world.until(lambda: _over(world), "the hub ends", within_s=60.0)
        assert await world.serving.running() == {}

    story(tell)


def test_a_service_that_is_wanted_again_without_routers_stays_until_they_come() -> None:
    async def tell(world: RayWorld) -> None:
        revision = await up(world)
        world.serving.routed = ()
        for _ in range(4):
            await asyncio.sleep(ROUTERS_GONE_S - 2.0)
            await world.ask(lambda hub: hub.want(service()))
        world.serving.routed = ("tandem",)
        await world.settled(revision, prefill=1, decode=2)
        assert not world.over

    story(tell)


def test_who_waits_for_a_service_to_leave_learns_that_it_is_wanted_again() -> None:
    async def tell(world: RayWorld) -> None:
        await up(world)
        leaving = asyncio.create_task(world.ask(lambda hub: hub.leave(NAME, 60.0)))
        await asyncio.sleep(0.3)
        await world.ask(lambda hub: hub.want(service()))
        with pytest.raises(Conflict, match="wanted again"):
            await leaving

    story(tell)


@pytest.mark.parametrize("kept", [True, False])
def test_a_leave_that_is_made_again_undoes_nothing_newer(kept: bool) -> None:
    """The hub dies after it has kept that the service leaves, or before it has heard of it."""

    async def tell(world: RayWorld) -> None:
        revision = await up(world)
        asked = await world.ask(lambda hub: hub.turn())
        if kept:
            assert world.hub is not None
            lost = asyncio.create_task(world.hub.leave(NAME, 60.0, asked))
            await asyncio.sleep(0.3)
            lost.cancel()
        world.crash()
        await world.ask(lambda hub: hub.want(service()))
        with pytest.raises(Conflict, match="wanted again: it stays"):
            await world.ask(lambda hub: hub.leave(NAME, 60.0, asked))
        await world.settled(revision, prefill=1, decode=2)
        later = await world.ask(lambda hub: hub.turn())
        await world.ask(lambda hub: hub.leave(NAME, 60.0, later))
        assert await world.serving.running() == {}

    story(tell)


def test_leaving_waits_for_an_application_that_no_look_has_seen() -> None:
    """It was deployed by the last one, its replicas have not started, and Serve takes its time to say what runs."""

    async def tell(world: RayWorld) -> None:
        world.serving.report = None
        await world.ask(lambda hub: hub.want(service()))

        async def deployed() -> bool:
            return bool(world.serving.deployed)

        await world.until(deployed, "the application is made")
        world.serving.answer_s = 3.0
        await world.ask(lambda hub: hub.leave(NAME, 0.0))
        world.serving.answer_s = 0.0
        assert await world.serving.running() == {}

    story(tell)


def test_a_service_that_is_wanted_while_it_goes_is_there_afterwards() -> None:
    """Whatever the turn of the loop at which it comes."""
    for turns in range(1, 40):

        async def tell(world: RayWorld, turns: int = turns) -> None:
            await world.ask(lambda hub: hub.want(service()))
            hub = world.hub
            assert hub is not None
            leaving = asyncio.create_task(hub.leave(NAME, 0.0))
            for _ in range(turns):
                await asyncio.sleep(0)
            await hub.want(service())
            await asyncio.gather(leaving, return_exceptions=True)
            (found,) = await hub.services()
            assert found["spec"]["pools"]

        story(tell)


def test_a_change_whose_caller_has_given_up_is_not_made() -> None:
    async def tell(world: RayWorld) -> None:
        hub = world.hub
        assert hub is not None
        until = await hub.time() + 10.0
        await hub.change(until, "want", service("early"))
        await asyncio.sleep(10.0)
        with pytest.raises(TandemError, match="after its caller had given up") as late:
            await hub.change(until, "want", service("late"))
        assert late.value.code == "deadline_exceeded"
        assert [each["metadata"]["name"] for each in await hub.services()] == ["early"]

    async def begin(world: RayWorld) -> None:
        await world.until(lambda: _begun(world), "the hub is there")
        await tell(world)

    story(begin)


async def _begun(world: RayWorld) -> bool:
    return world.hub is not None


def test_a_dead_worker_is_forgotten_although_serve_does_not_answer() -> None:
    async def tell(world: RayWorld) -> None:
        await up(world)
        world.serving.answer_s = 8.0
        await asyncio.sleep(10.0)
        struck = world.serving.workers(pool="decode")[0].name
        world.serving.kill(struck)

        async def forgotten() -> bool:
            return struck not in {each.name for each in await world.discovered()}

        await world.until(forgotten, "routers forget it", within_s=7.0)
        assert len(await world.discovered()) >= 2, "those that report stay"

    story(tell)


def test_a_change_at_the_moment_of_a_bookmark_is_not_passed_over() -> None:
    """Whatever the turn of the loop at which it comes: this call brings it, or the next."""
    for turns in range(8):

        async def tell(world: RayWorld, turns: int = turns) -> None:
            await up(world)
            hub, selector = world.hub, Selector(POD, NAMESPACE)
            assert hub is not None
            version = (await hub.list_page(selector, 100)).version
            told = msgspec.structs.replace(world.serving.workers()[0], name="one-more")

            async def write(hub: Hub = hub) -> None:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await hub.report(told)

            first, _ = await asyncio.gather(hub.changes(selector, version, 0.0), write())
            then = await hub.changes(selector, first[-1].object["metadata"]["resourceVersion"], 1.0)
            added = [each.object["metadata"]["name"] for each in (*first, *then) if each.type == "added"]
            assert added == ["one-more"]

        story(tell)


def test_a_comparison_that_the_machine_cannot_run_is_told_and_tried_again() -> None:
    async def tell(world: RayWorld) -> None:
        gate = {**SPEC["rollout"], "gate": {}}
        await up(world, service(rollout=gate))
        world.verdicts = [OSError("no more processes"), 0]
        new: str = await world.ask(lambda hub: hub.want(service(rollout=gate, engine=OTHER)))
        await world.settled(new, prefill=1, decode=2)
        _, sentences = await world.ask(lambda hub: hub.events(0, 0.0))
        assert any("the comparison could not be made: no more processes" in each for each in sentences)
        assert world.lives == 1

    story(tell)


def test_a_state_of_another_format_is_kept_and_said_by_a_hub_that_does_not_hurry_to_die() -> None:
    async def tell(world: RayWorld) -> None:
        kept = world.kept[STATE]
        life = Life(world)
        hub = world.make_hub(life)
        began = world.clock.now()
        running = asyncio.create_task(hub.run())
        for call in (hub.key(), hub.want(service()), hub.end()):
            with pytest.raises(TandemError, match=r"format 99.*install the version of Tandem") as refused:
                await call
            assert refused.value.code == "bad_setting"
        assert world.clock.now() == began, "nobody waits for it"
        with pytest.raises(TandemError, match="format 99"):
            await running
        assert world.clock.now() - began == REFUSE_S
        assert world.kept[STATE] == kept

    async def begin() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        world = RayWorld(clock, MemoryServing(clock))
        cluster = msgspec.msgpack.encode({"format": 99, "version": 1, "uids": 0, "objects": []})
        world.kept[STATE] = msgspec.msgpack.encode(HubState(cluster=cluster))
        await tell(world)

    run(lambda _loop: begin())


def test_what_is_not_for_ray_is_refused() -> None:
    async def tell(world: RayWorld) -> None:
        with pytest.raises(TandemError, match=r"spec\.store"):
            await world.ask(lambda hub: hub.want(service(store={})))

    story(tell)


def test_what_cannot_be_changed_is_refused_as_an_api_server_does() -> None:
    async def tell(world: RayWorld) -> None:
        revision = await up(world)
        pools = [{**pool, "role": "unified"} if pool["name"] == "decode" else pool for pool in SPEC["pools"]]
        with pytest.raises(TandemError, match="role cannot be changed"):
            await world.ask(lambda hub: hub.want(service(pools=pools)))
        with pytest.raises(TandemError, match="name is what clients ask for"):
            await world.ask(lambda hub: hub.want(service(model={"name": "other"})))
        await world.settled(revision, prefill=1, decode=2)

    story(tell)


def test_a_hub_that_dies_comes_back_without_a_worker_being_forgotten() -> None:
    async def tell(world: RayWorld) -> None:
        revision = await up(world)
        before = {told.name for told in world.serving.workers()}
        key = await world.ask(lambda hub: hub.key())
        for _ in range(3):
            world.crash()
            await asyncio.sleep(3.0)
            assert {each.name for each in await world.discovered()} == before
            assert all(each.ready for each in await world.discovered())
        await asyncio.sleep(30.0)
        await world.settled(revision, prefill=1, decode=2)
        assert {told.name for told in world.serving.workers()} == before
        assert await world.ask(lambda hub: hub.key()) == key

    story(tell)


def test_a_worker_that_ended_while_the_hub_was_away_is_forgotten() -> None:
    async def tell(world: RayWorld) -> None:
        revision = await up(world)
        struck = world.serving.workers(pool="decode")[0].name
        world.crash()
        world.serving.kill(struck)
        await asyncio.sleep(10.0)
        assert struck not in {each.name for each in await world.discovered()}
        await world.settled(revision, prefill=1, decode=2)

    story(tell)


def test_an_older_hub_stops_and_writes_nothing_more() -> None:
    async def tell(world: RayWorld) -> None:
        await up(world)
        old = world.hub
        assert old is not None
        younger = world.make_hub(Life(world))
        running = asyncio.create_task(younger.run())
        await asyncio.sleep(0.1)
        with pytest.raises(TandemError, match="a younger one acts"):
            await old.want(service(pools=scaled(decode=4)))
        await asyncio.sleep(5.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with pytest.raises(TandemError, match="a younger one acts"):
        story(tell)


def test_serve_that_does_not_answer_is_asked_again() -> None:
    async def tell(world: RayWorld) -> None:
        revision = await up(world)
        world.serving.lost = True
        await world.ask(lambda hub: hub.scale(NAME, {"decode": 3}))
        await asyncio.sleep(10.0)
        assert len(world.serving.workers(pool="decode")) == 2
        world.serving.lost = False
        await world.settled(revision, prefill=1, decode=3)

    story(tell)


def test_changes_come_at_once_or_as_a_bookmark() -> None:
    async def tell(world: RayWorld) -> None:
        revision = await up(world)
        selector = Selector(POD, NAMESPACE)
        page = await world.ask(lambda hub: hub.list_page(selector, 100))
        (mark,) = await world.ask(lambda hub: hub.changes(selector, page.version, 1.0))
        assert mark.type == "bookmark"
        version = mark.object["metadata"]["resourceVersion"]
        waiting = asyncio.create_task(world.ask(lambda hub: hub.changes(selector, version, 60.0)))
        await world.ask(lambda hub: hub.scale(NAME, {"decode": 3}))
        changes = await waiting
        assert {each.type for each in changes} == {"added", "modified"} or changes[0].type == "added"
        world.crash()
        await asyncio.sleep(5.0)
        with pytest.raises(Expired):
            await world.ask(lambda hub: hub.changes(selector, version, 1.0))
        await world.settled(revision, prefill=1, decode=3)

    story(tell)


def test_ranks_of_a_gang_meet_at_rank_zero_also_when_the_hub_dies() -> None:
    async def tell(world: RayWorld) -> None:
        waiting = asyncio.create_task(world.ask(lambda hub: hub.rendezvous("g", 1, "127.0.0.2", 30.0)))
        await asyncio.sleep(1.0)
        assert await world.ask(lambda hub: hub.rendezvous("g", 0, "127.0.0.1", 1.0)) == "127.0.0.1"
        world.crash()
        assert await waiting == "127.0.0.1"
        with pytest.raises(TandemError, match="rank 0 of gang h"):
            await world.ask(lambda hub: hub.rendezvous("h", 1, "127.0.0.2", 1.0))

    story(tell)


def test_what_happens_is_told_in_sentences_with_growing_numbers() -> None:
    async def tell(world: RayWorld) -> None:
        revision = await up(world)
        since, sentences = await world.ask(lambda hub: hub.events(0, 0.0))
        assert f"application {NAME}-{revision} is deployed" in sentences
        assert any("100 %" in each for each in sentences)
        again, none = await world.ask(lambda hub: hub.events(since, 1.0))
        assert (again, none) == (since, ())
        world.crash()
        await asyncio.sleep(2.0)
        await world.ask(lambda hub: hub.scale(NAME, {"decode": 3}))
        later, _ = await world.ask(lambda hub: hub.events(since, 0.0))
        assert later > since

    story(tell)


def test_the_entry_names_routers_and_workers() -> None:
    async def tell(world: RayWorld) -> None:
        await up(world)
        entry = await world.ask(lambda hub: hub.entry())
        assert entry.url == "http://127.0.0.9:8000"
        assert sorted(member.role for member in entry.members) == ["decode", "decode", "prefill", "router"]
        assert {member.state for member in entry.members} == {"ready"}

    story(tell)


def test_it_is_noted_who_started_serve() -> None:
    async def tell(world: RayWorld) -> None:
        assert not await world.ask(lambda hub: hub.started_serve())
        await world.ask(lambda hub: hub.started_serve(True))
        world.crash()
        assert await world.ask(lambda hub: hub.started_serve())

    story(tell)
