"""Services at a router: revisions by weight, fail-over within one, sleeping models, bounds of their own, figures."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from router.dispatch.serving_status import RevisionListing, ServiceListing
from router.fleet.services import MemberFacts, ServiceFacts, ServiceRegistry
from router.placement.revisions import Weights
from router.settings import AdmissionSettings, PlacementSettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.core.messages import ITL_TARGET, Draining, Submit, Tune
from tandem.core.slo import DEFAULT, Slo
from tests.worlds.router_world import Client, World

OLD, NEW = "0000000001", "0000000002"


def told(weights: Mapping[str, int], **more: Any) -> ServiceFacts:
    name = "default/chat"
    facts = ServiceFacts(name, "demo", Weights.of(name, weights), revisions=tuple(sorted(weights)))
    return replace(facts, **more)


def scenario(
    body: Callable[[World], Awaitable[None]],
    *,
    roles: tuple[str, ...] = ("prefill", "decode"),
    settings: RouterSettings | None = None,
) -> None:
    """Two revisions with a worker of each role: `p1`, `d1` are old, `p2`, `d2` new."""

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, settings or RouterSettings(placement=PlacementSettings(prefer="disaggregated")))
        for number, revision in ((1, OLD), (2, NEW)):
            for role in roles:
                worker = world.worker(f"{role[0]}{number}", role)
                worker.revision = revision
        await world.start()
        await body(world)
        await world.stop()

    run(main)


def tell(world: World, *facts: ServiceFacts) -> None:
    world.fleet.set_services(facts, ())


def submits(world: World, worker_id: str) -> list[Submit]:
    return world.workers[worker_id].submits


async def all_end(clients: list[Client]) -> None:
    for client in clients:
        async with asyncio.timeout(60):
            await client.ended.wait()
        client.check_whole()


def listed(world: World) -> tuple[dict[str, RevisionListing], ServiceListing]:
    found = world.dispatcher.standings()
    (service,) = found.services
    return {each.revision: each for each in found.data}, service


def test_new_requests_follow_the_weights_and_never_mix_revisions() -> None:
    async def body(world: World) -> None:
        tell(world, told({OLD: 80, NEW: 20}))
        clients = [world.ask() for _ in range(200)]
        await all_end(clients)
        old, new = (
            {submit.request_id for worker in each for submit in submits(world, worker)}
            for each in (("p1", "d1"), ("p2", "d2"))
        )
        assert len(old | new) == 200
        assert not old & new, "prefill and decode are of one revision"
        assert 20 <= len(new) <= 65, len(new)
        revisions, service = listed(world)
        assert (revisions[OLD].requests, revisions[NEW].requests) == (len(old), len(new))
        assert (revisions[OLD].weight, revisions[NEW].weight) == (80, 20)
        assert (service.requests, service.output_tokens) == (200, 200 * 8)
        assert service.prompt_tokens > 0

    scenario(body)


def test_a_revision_without_weight_gets_nothing_new_and_ends_what_it_runs() -> None:
    async def body(world: World) -> None:
        tell(world, told({OLD: 100, NEW: 0}))
        long = [world.ask(max_tokens=200) for _ in range(3)]
        await asyncio.sleep(0.5)
        tell(world, told({OLD: 0, NEW: 100}))
        later = [world.ask() for _ in range(5)]
        await all_end([*later, *long])
        assert {len(submits(world, each)) for each in ("p1", "d1")} == {3}
        assert {len(submits(world, each)) for each in ("p2", "d2")} == {5}
        reasons = [span for each in later for span in world.recorder.spans(each.generation.request_id)]
        assert any(f"of revision {OLD}, and this request is for {NEW}" in str(span.attributes) for span in reasons)

    scenario(body)


def test_without_weights_all_workers_are_used() -> None:
    async def body(world: World) -> None:
        tell(world, told({OLD: 0, NEW: 0}))
        await all_end([world.ask() for _ in range(20)])
        assert all(len(submits(world, each)) > 0 for each in ("d1", "d2"))

    scenario(body)


def test_a_lost_stream_goes_on_within_its_revision_though_that_has_no_weight_any_more() -> None:
    async def body(world: World) -> None:
        extra = world.worker("d3", "decode")
        extra.revision = OLD
        await extra.start()
        world.fleet.set_members(world.workers)
        await asyncio.sleep(0.2)
        tell(world, told({OLD: 100, NEW: 0}))
        client = world.ask(max_tokens=100)
        await asyncio.sleep(0.4)
        tell(world, told({OLD: 0, NEW: 100}))
        (ran,) = (each for each in ("d1", "d3") if submits(world, each))
        world.workers[ran].die()
        await all_end([client])
        assert submits(world, "d2") == []
        (other,) = {"d1", "d3"} - {ran}
        assert len(submits(world, other)) == 1
        revisions, _ = listed(world)
        assert (revisions[OLD].requests, revisions[OLD].errors) == (1, 0)

    scenario(body)


def test_it_leaves_its_revision_only_when_none_of_it_is_left_and_says_so() -> None:
    async def body(world: World) -> None:
        tell(world, told({OLD: 100, NEW: 0}))
        client = world.ask(max_tokens=100)
        await asyncio.sleep(0.4)
        world.workers["d1"].die()
        await asyncio.sleep(1.0)
        assert submits(world, "d2") == [], "the old revision has all the weight: it is waited for"
        tell(world, told({OLD: 0, NEW: 100}))
        await all_end([client])
        assert len(submits(world, "d2")) == 1
        spans = world.recorder.spans(client.generation.request_id)
        assert any(f"no worker of revision {OLD}, on which it has begun, is left" in str(s.attributes) for s in spans)
        revisions, _ = listed(world)
        assert (revisions[OLD].requests, revisions[OLD].errors) == (1, 1)
        assert (revisions[NEW].requests, revisions[NEW].errors) == (1, 0)

    scenario(body)


def test_a_full_revision_gives_way_to_another_with_weight() -> None:
    async def body(world: World) -> None:
        tell(world, told({OLD: 50, NEW: 50}))
        clients = [world.ask(max_tokens=50) for _ in range(6)]
        await asyncio.sleep(0.3)
        assert {len(submits(world, each)) for each in ("d1", "d2")} == {3}
        await all_end(clients)

    scenario(body, settings=RouterSettings(placement=PlacementSettings(sequences_per_worker_max=3)))


def test_a_revision_can_be_asked_for_by_name_and_waits_in_a_line_of_its_own() -> None:
    async def body(world: World) -> None:
        tell(world, told({OLD: 100, NEW: 0}))
        assert world.dispatcher.models()[0].revisions == (OLD, NEW)
        world.workers["d2"].die()
        await asyncio.sleep(0.1)
        generation = msgspec.structs.replace(world.generation(), revision=NEW)
        pinned = Client(world, generation)
        world.dispatcher.start(generation, pinned)
        others = [world.ask() for _ in range(5)]
        await all_end(others)
        assert not pinned.ended.is_set(), "those for it have not come, and nobody waited behind it"
        await world.workers["d2"].revive()
        await all_end([pinned])
        assert len(submits(world, "d2")) == 1

    scenario(body)


def test_a_sleeping_model_is_listed_waits_for_its_worker_and_counts_as_waiting() -> None:
    async def body(world: World) -> None:
        asleep = ServiceFacts("team/big", "big", queue_s=20.0, context_tokens=777, revisions=(NEW,))
        tell(world, told({OLD: 100}), asleep)
        served = {model.name: model for model in world.dispatcher.models()}
        assert (served["big"].context_tokens, served["big"].revisions) == (777, (NEW,))
        generation = msgspec.structs.replace(world.generation(tokens=33), model="big")
        client = Client(world, generation)
        world.dispatcher.start(generation, client)
        await asyncio.sleep(5.0)
        (big,) = [each for each in world.dispatcher.standings().services if each.model == "big"]
        assert (big.service, big.namespace) == ("team/big", "team")
        assert (big.queued_requests, big.queued_prompt_tokens, big.requests) == (1, 33, 1)
        assert 4.9 < big.oldest_wait_s < 5.1
        await all_end([world.ask()])
        woken = world.worker("b1", "unified")
        woken.model, woken.revision = "big", NEW
        await woken.start()
        world.fleet.set_members(world.workers)
        await all_end([client])

    scenario(body)


def test_a_model_that_does_not_wake_is_refused_after_its_own_bound_with_the_reason() -> None:
    async def body(world: World) -> None:
        tell(world, ServiceFacts("team/big", "big", queue_s=3.0))
        generation = msgspec.structs.replace(world.generation(), model="big")
        client = Client(world, generation)
        world.dispatcher.start(generation, client)
        await asyncio.sleep(2.9)
        assert not client.ended.is_set()
        await asyncio.sleep(0.2)
        assert client.error is not None
        assert (client.error.code, client.error.kind.http) == ("no_workers", 503)
        assert "the service team/big is asleep or starting" in client.error.message
        (big,) = [each for each in world.dispatcher.standings().services if each.model == "big"]
        assert (big.unplaced, big.queued_requests) == (1, 0)

    scenario(body)


def test_what_workers_could_do_is_remembered_while_they_sleep_and_forgotten_with_the_service() -> None:
    async def body(world: World) -> None:
        tell(world, told({OLD: 100}))
        assert world.dispatcher.models()[0].context_tokens == 4096
        world.fleet.set_members(())
        await asyncio.sleep(0.1)
        (model,) = world.dispatcher.models()
        assert (model.name, model.context_tokens) == ("demo", 4096)
        tell(world)
        assert world.dispatcher.models() == ()

    scenario(body)


def test_a_router_that_watches_is_ready_once_it_knows_and_stays_it() -> None:
    async def body(world: World) -> None:
        world.fleet.services.watched = True
        assert world.dispatcher.ready() == "nobody has told yet which services and workers there are"
        world.fleet.set_members(())
        await asyncio.sleep(0.1)
        awaited = MemberFacts("d1", "default/chat", "decode", True)
        world.fleet.set_services([told({OLD: 100})], [awaited])
        assert "no decode or unified worker" in (world.dispatcher.ready() or "")
        world.fleet.set_members(("d1", "p1"))
        await asyncio.sleep(3.0)
        assert world.dispatcher.ready() is None
        assert {each.id: (each.service, each.pool) for each in world.fleet.listing()} == {
            "d1": ("default/chat", "decode"),
            "p1": ("", ""),
        }
        world.fleet.set_members(())
        await asyncio.sleep(0.1)
        assert world.dispatcher.ready() is None

    scenario(body)


def test_a_router_for_services_that_all_sleep_is_ready() -> None:
    async def body(world: World) -> None:
        world.fleet.services.watched = True
        tell(world, told({}))
        assert world.dispatcher.ready() is None

    scenario(body, roles=())


def test_late_answers_miss_the_slo_of_their_service() -> None:
    async def body(world: World) -> None:
        tell(world, told({OLD: 100, NEW: 0}, slo=Slo(ttft_s=0.2, tpot_s=0.05)))
        await all_end([world.ask()])
        assert listed(world)[0][OLD].slo_misses == 0
        world.workers["p1"].prefill_s = 0.5
        await all_end([world.ask()])
        assert listed(world)[0][OLD].slo_misses == 1
        world.workers["p1"].prefill_s, world.workers["d1"].step_s = 0.05, 0.1
        await all_end([world.ask()])
        revisions, _ = listed(world)
        assert (revisions[OLD].requests, revisions[OLD].errors, revisions[OLD].slo_misses) == (3, 0, 2)

    scenario(body)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(("tpot_s", "misses"), [(0.012, 0), (0.008, 1)])
def test_the_pace_of_an_answer_is_that_of_each_of_its_sequences(n: int, tpot_s: float, misses: int) -> None:
    """A service is not late, nor in time, for having been asked for two answers at once."""

    async def body(world: World) -> None:
        tell(world, told({OLD: 100, NEW: 0}, slo=Slo(tpot_s=tpot_s)))
        await all_end([world.ask(max_tokens=40, n=n)])
        assert listed(world)[0][OLD].slo_misses == misses

    scenario(body)


def test_a_service_that_bounds_nothing_but_the_pace_refuses_nobody_for_a_late_first_token() -> None:
    async def body(world: World) -> None:
        tell(world, told({OLD: 100, NEW: 0}, slo=Slo(tpot_s=5.0)))
        await all_end([world.ask(tokens=100) for _ in range(3)])

    scenario(body)


@pytest.mark.parametrize(
    ("slo", "bound"),
    [(Slo(ttft_s=1.5), "its first token within 1.5 s"), (Slo(tpot_s=5.0), "may wait 1 s for its turn")],
)
def test_who_stands_too_far_behind_in_line_is_refused_by_what_its_service_is_to_hold(slo: Slo, bound: str) -> None:
    async def body(world: World) -> None:
        tell(world, told({OLD: 100, NEW: 0}, slo=slo))
        clients: list[Client] = []

        def ask_many() -> None:
            for _ in range(1000):
                clients.append(world.ask(max_tokens=4))

        with pytest.raises(TandemError) as refused:
            ask_many()
        assert refused.value.code == "queue_full"
        assert bound in refused.value.message
        assert len(clients) > 1
        for client in clients:
            await client.ended.wait()

    placement = PlacementSettings(prefer="local", sequences_per_worker_max=1)
    settings = RouterSettings(placement=placement, deadlines=Deadlines(queue_s=1.0))
    scenario(body, roles=("decode",), settings=settings)


def test_a_stream_that_is_moved_to_another_revision_is_no_error_of_the_one_it_leaves() -> None:
    """A scale-down of the old revision must not look like its failure, which would roll the new one back."""

    async def body(world: World) -> None:
        tell(world, told({OLD: 100, NEW: 0}))
        client = world.ask(max_tokens=100)
        await asyncio.sleep(0.2)
        tell(world, told({OLD: 0, NEW: 100}))
        link = world.workers["d1"].link
        assert link is not None
        link.tokens.send(Draining(0.2))
        await all_end([client])
        assert len(submits(world, "d2")) == 1
        revisions, _ = listed(world)
        assert {revision: (each.requests, each.errors) for revision, each in revisions.items()} == {NEW: (1, 0)}

    scenario(body, roles=("decode",))


def test_counts_are_of_a_service_by_its_name_and_of_a_router_by_one_for_as_long_as_it_runs() -> None:
    """Who reads them knows by it when they begin anew."""

    async def body(world: World) -> None:
        tell(world, told({OLD: 100, NEW: 0}))
        first, second = (world.dispatcher.standings().incarnation for _ in range(2))
        assert first == second != ""
        revisions, service = listed(world)
        named = {(each.service, each.namespace, each.model) for each in revisions.values()}
        assert named == {(service.service, service.namespace, service.model)} == {("default/chat", "default", "demo")}

    scenario(body)


def test_workers_whose_steps_can_be_bounded_are_told_what_the_service_is_to_hold() -> None:
    def told_to(worker_id: str) -> list[float | None]:
        commands = world.workers[worker_id].commands
        return [command.itl_target_s for command in commands if isinstance(command, Tune)]

    world: World

    async def main(loop: VirtualLoop) -> None:
        nonlocal world
        world = World(loop)
        for name, features in (("u1", (ITL_TARGET,)), ("u2", ())):
            world.worker(name, "unified").features = features
        await world.start()
        assert (told_to("u1"), told_to("u2")) == ([], [])
        for slo in (
            Slo(ttft_s=2.0),
            Slo(tpot_s=0.04),
            Slo(tpot_s=0.04, itl_s=0.03),
            Slo(tpot_s=0.04, itl_s=0.03),
            Slo(),
        ):
            tell(world, told({}, slo=slo))
            await asyncio.sleep(0.1)
        assert (told_to("u1"), told_to("u2")) == ([0.04, 0.03, None], [])
        tell(world, told({}, slo=Slo(itl_s=0.02)))
        await asyncio.sleep(0.1)
        world.workers["u1"].die()
        await world.workers["u1"].revive()
        await asyncio.sleep(5)
        assert told_to("u1")[3:] == [0.02, 0.02], "another link, another telling"
        await world.stop()

    run(main)


def test_a_service_that_leaves_bounds_open_is_judged_by_the_default() -> None:
    services = ServiceRegistry()
    assert services.slo("demo") == DEFAULT
    services.tell([told({}, slo=Slo(tpot_s=0.03, itl_s=0.2))], ())
    assert services.slo("demo") == Slo(2.0, 0.03, 0.2)
    services.default_slo = Slo(7.0, 0.5)
    services.tell([told({}, slo=Slo(ttft_s=0.4))], ())
    assert (services.slo("demo"), services.slo("other")) == (Slo(0.4, 0.5), Slo(7.0, 0.5))
    assert (services.itl_target_s("demo"), services.itl_target_s("other")) == (None, None)


def test_what_a_revision_fails_counts_as_its_error_and_what_clients_do_wrong_does_not() -> None:
    async def body(world: World) -> None:
        tell(world, told({OLD: 100, NEW: 0}))
        world.workers["d1"].fail_with = "engine_failed", "broken"
        failed = world.ask()
        await failed.ended.wait()
        world.workers["d1"].fail_with = "invalid_request", "no"
        wrong = world.ask()
        await wrong.ended.wait()
        revisions, _ = listed(world)
        assert (revisions[OLD].requests, revisions[OLD].errors) == (2, 1)
        assert {failed.error.code, wrong.error.code} == {"engine_failed", "invalid_request"}  # type: ignore[union-attr]

    scenario(body)


def test_each_service_is_placed_by_its_own_policy() -> None:
    async def body(world: World) -> None:
        tell(world, told({OLD: 0, NEW: 0}, policy="round_robin"))
        clients = []
        for _ in range(6):
            clients.append(world.ask(max_tokens=2))
            await asyncio.sleep(0.5)
        await all_end(clients)
        assert {len(submits(world, each)) for each in ("d1", "d2")} == {3}
        reasons = str([span.attributes for span in world.recorder.spans(clients[-1].generation.request_id)])
        assert "it is its turn" in reasons

    scenario(body, roles=("decode",))


def test_lines_are_bounded_per_model() -> None:
    async def body(world: World) -> None:
        tell(world, ServiceFacts("a/x", "x", queue_s=1.0), ServiceFacts("a/y", "y", queue_s=1.0))
        clients = []
        for model in ("x", "x", "y"):
            generation = msgspec.structs.replace(world.generation(), model=model)
            clients.append(Client(world, generation))
            world.dispatcher.start(generation, clients[-1])
        generation = msgspec.structs.replace(world.generation(), model="x")
        with pytest.raises(TandemError, match="wait already"):
            world.dispatcher.start(generation, Client(world, generation))
        await asyncio.sleep(1.5)
        assert all(client.error is not None for client in clients)

    scenario(body, settings=RouterSettings(admission=AdmissionSettings(queued_max=2), deadlines=Deadlines()))
