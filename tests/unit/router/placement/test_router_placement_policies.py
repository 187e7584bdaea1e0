"""All placement policies: what each goes by, and what none may ever do."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kv_transfer.index.protocol import Held
from router.placement import (
    CostModel,
    Placement,
    PlacementRequest,
    Policy,
    Unplaced,
    WorkerView,
    make_policy,
)
from router.placement.pairs import Pairs, PairView
from router.placement.policies import POLICIES
from router.settings import CostPriors, PlacementSettings
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.messages import TierCost
from tests.unit.router.placement.test_router_placement import LAYOUT, ask, load, view

ROOT = b"r" * 16
WORKERS = [view(f"w{number}", "unified") for number in range(5)]


def chosen(policy: Policy, request: PlacementRequest, workers: list[WorkerView], name: str) -> Placement:
    found = policy.choose(request, workers, CostModel(CostPriors()), PlacementSettings(policy=name), None, 0.0)
    assert isinstance(found, Placement), found
    policy.placed(request, found, 0.0)
    return found


def policy_of(name: str) -> Policy:
    return make_policy(PlacementSettings(policy=name), SeededEntropy(7))


def named(first: int) -> PlacementRequest:
    names = tuple(number.to_bytes(16, "little") for number in range(first, first + 100))
    return ask(1600, names={ROOT: names}, request_id=str(first))


def test_a_policy_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(TandemError) as refused:
        make_policy(PlacementSettings(policy="best"), SeededEntropy(0))
    assert refused.value.code == "bad_setting"
    assert "'best'" in refused.value.message
    assert "prefix_aware" in refused.value.message


def test_round_robin_takes_one_after_the_other_and_asking_is_not_taking() -> None:
    policy = policy_of("round_robin")
    costs, plain = CostModel(CostPriors()), PlacementSettings(policy="round_robin")
    asked = [policy.choose(ask(), WORKERS, costs, plain, None, 0.0) for _ in range(3)]
    assert all(isinstance(found, Placement) and found.decode == "w0" for found in asked)
    order = [chosen(policy, ask(), WORKERS, "round_robin").decode for _ in range(7)]
    assert order == ["w0", "w1", "w2", "w3", "w4", "w0", "w1"]
    without = [worker for worker in WORKERS if worker.worker_id != "w2"]
    assert [chosen(policy, ask(), without, "round_robin").decode for _ in range(2)] == ["w3", "w4"]


def test_least_loaded_counts_sequences_to_generate_and_tokens_to_compute() -> None:
    workers = [
        view("d0", "decode", load=load(running=9)),
        view("d1", "decode", load=load(running=3)),
        view("p0", "prefill", load=load(queued_prompt_tokens=100, running=1)),
        view("p1", "prefill", load=load(queued_prompt_tokens=50, running=9)),
    ]
    found = chosen(
        policy_of("least_loaded"), ask(held={"d0": Held(20, 20), "p0": Held(20, 20)}), workers, "least_loaded"
    )
    assert (found.decode, found.prefill) == ("d1", "p1")
    assert "it has the least to do" in found.reasons[0]


def test_power_of_two_draws_all_and_avoids_the_busiest() -> None:
    busiest = [view("w9", "unified", load=load(running=200)), *WORKERS]
    policy = policy_of("power_of_two")
    where = Counter(chosen(policy, ask(), busiest, "power_of_two").decode for _ in range(300))
    assert set(where) == {worker.worker_id for worker in WORKERS}
    assert max(where.values()) < 120


def test_hashing_keeps_equal_beginnings_together_and_moves_few_when_a_worker_goes() -> None:
    policy = policy_of("consistent_hash")
    before = {first: chosen(policy, named(first), WORKERS, "consistent_hash").decode for first in range(200)}
    assert {chosen(policy, named(first), WORKERS[::-1], "consistent_hash").decode for first in (5,)} == {before[5]}
    assert len(Counter(before.values())) == 5
    after = {first: chosen(policy, named(first), WORKERS[:4], "consistent_hash").decode for first in before}
    assert all(after[first] == before[first] for first in before if before[first] != "w4")


def test_hashing_prefers_the_cache_key_and_does_without_any_block() -> None:
    policy = policy_of("consistent_hash")
    keyed = {
        chosen(policy, structs.replace(named(first), prompt_cache_key="k"), WORKERS, "consistent_hash").decode
        for first in range(30)
    }
    assert len(keyed) == 1
    strange = {b"x" * 16: named(1).names[ROOT]}
    for names in ({}, {ROOT: ()}, strange):
        asked = [ask(5, request_id=str(one), names=names) for one in range(60)]
        assert len({chosen(policy, each, WORKERS, "consistent_hash").decode for each in asked}) == 5
    rolled = structs.replace(named(1), names={**strange, **named(1).names})
    assert len({chosen(policy, each, WORKERS, "consistent_hash").decode for each in (rolled, named(1))}) == 1


@pytest.mark.parametrize("name", POLICIES)
def test_stores_lend_blocks_and_never_run_anything(name: str) -> None:
    store = view("a-store", "store")
    request = ask(4800, held={"a-store": Held(300, 0, 300)})
    lender = replace(store, tiers=(TierCost("dram", 1000, 1e11, 1e-6),))
    found = chosen(policy_of(name), request, [lender, view("w0", "unified")], name)
    assert (found.decode, found.prefill) == ("w0", None)
    assert [(source.holder, source.kind, source.blocks) for source in found.sources] == [("a-store", "store", 300)]
    alone = policy_of(name).choose(request, [lender], CostModel(CostPriors()), PlacementSettings(), None, 0.0)
    assert isinstance(alone, Unplaced)
    assert alone.code == "no_workers"


def test_who_holds_no_more_than_the_worker_itself_is_no_source() -> None:
    """However slow it is: nothing is asked of it, so its slowness saves nothing."""
    fast = view("fast", "store", tiers=(TierCost("dram", 1000, 1e11, 1e-6),))
    slow = view("slow", "store", tiers=(TierCost("dram", 1000, 1e3, 1e-6),))
    held = {"fast": Held(300, 0, 300), "slow": Held(50, 0, 50), "w0": Held(100, 100, 0)}
    found = chosen(
        policy_of("prefix_aware"), ask(4800, held=held), [fast, slow, view("w0", "unified")], "prefix_aware"
    )
    assert [source.holder for source in found.sources] == ["fast"]


def a_worker(
    number: int, role: str, figures: tuple[int, int, int, int], state: tuple[bool, bool, int, int]
) -> WorkerView:
    running, waiting, queued, free = figures
    ready, draining, pairing, epoch = state
    return view(
        f"w{number}",
        role,
        epoch=epoch,
        pairing=pairing,
        root=b"r" * 15 + bytes([pairing]),
        ready=ready,
        draining=draining,
        load=load(
            running=running, waiting=waiting, queued_prompt_tokens=queued, blocks_free=free, blocks_cached=free
        ),
        tiers=(TierCost("dram", 500, 2e9, 0.001),),
    )


workers_drawn = st.lists(
    st.builds(
        a_worker,
        st.integers(0, 30),
        st.sampled_from(["prefill", "decode", "unified", "store"]),
        st.tuples(st.integers(0, 300), st.integers(0, 9), st.integers(0, 20_000), st.integers(0, 1000)),
        st.tuples(st.booleans(), st.booleans(), st.integers(0, 1), st.integers(1, 2)),
    ),
    max_size=12,
    unique_by=lambda each: each.worker_id,
)


def a_holding(total: int, hbm: float, dram: float) -> Held:
    in_pool = int(hbm * total)
    below = int(dram * (total - in_pool))
    return Held(total, in_pool, below, total - in_pool - below)


holdings = st.builds(a_holding, st.integers(1, 500), st.floats(0, 1), st.floats(0, 1))
requests = st.builds(
    lambda tokens, held, excluded, local_only: ask(
        tokens, held=held, excluded=excluded, local_only=local_only, names={ROOT: ()}
    ),
    st.integers(1, 9000),
    st.dictionaries(st.integers(0, 30).map(lambda number: f"w{number}"), holdings, max_size=6),
    st.lists(st.tuples(st.integers(0, 30).map(lambda number: f"w{number}"), st.integers(1, 2)), max_size=4).map(
        tuple
    ),
    st.booleans(),
)
pairs_drawn = st.none() | st.dictionaries(
    st.tuples(st.integers(0, 30).map("w{}".format), st.integers(0, 30).map("w{}".format)),
    st.builds(PairView, st.booleans(), st.just("open")),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(POLICIES),
    workers_drawn,
    requests,
    pairs_drawn,
    st.sampled_from(["auto", "disaggregated", "local"]),
)
def test_no_policy_places_on_who_may_not_and_every_answer_gives_reasons(
    name: str, workers: list[WorkerView], request: PlacementRequest, pairs: Pairs | None, prefer: str
) -> None:
    chosen_by = PlacementSettings(policy=name, prefer=prefer)
    policy, costs = make_policy(chosen_by, SeededEntropy(1)), CostModel(CostPriors())
    found = policy.choose(request, workers, costs, chosen_by, pairs, 0.0)
    assert found.reasons
    if isinstance(found, Unplaced):
        assert found.code in ("no_workers", "queue_full", "out_of_blocks")
        return
    by_id = {worker.worker_id: worker for worker in workers}
    decode = by_id[found.decode]
    used = [decode]
    assert decode.role in ("decode", "unified")
    if (decode.worker_id, decode.epoch) in request.excluded:
        assert "only workers that already failed this request are left" in found.reasons
    if found.prefill is not None:
        prefill = by_id[found.prefill]
        used.append(prefill)
        assert (prefill.role, prefill.pairing) == ("prefill", decode.pairing)
        assert (prefill.worker_id, prefill.epoch) not in request.excluded
        assert not request.local_only
        assert pairs is None or pairs[found.prefill, found.decode].usable
    assert all(worker.ready and not worker.draining for worker in used)
    assert found.costs
    assert found.costs[0][0].decode == found.decode
    assert found.prefill_tokens + found.cached_tokens == request.prompt_tokens
    assert found.prefill_tokens >= 1
    assert len(found.sources) <= 2
    computing = by_id[found.computing]
    for source in found.sources:
        holder = by_id[source.holder]
        assert holder is not computing
        assert (holder.pairing, holder.ready) == (computing.pairing, True)
        assert (source.kind == "store") == (holder.role == "store")
        assert source.blocks == request.held[source.holder].total
        assert (holder.worker_id, holder.epoch) not in request.excluded


def cost_of(worker_id: str, request: PlacementRequest, workers: list[WorkerView]) -> float | None:
    """What the worker would cost when it does everything; None when it may not."""
    plain = PlacementSettings(prefer="local", sequences_per_worker_max=10_000)
    policy = make_policy(plain, SeededEntropy(0))
    found = policy.choose(request, workers, CostModel(CostPriors()), plain, None, 0.0)
    if isinstance(found, Unplaced):
        return None
    costs = {candidate.decode: cost.total_ms for candidate, cost in found.costs if not candidate.prefill}
    assert costs[found.decode] <= min(costs.values()) + 0.002
    return costs.get(worker_id)


few = workers_drawn.map(lambda workers: workers[:6])


@settings(max_examples=150, deadline=None)
@given(few, requests, st.integers(0, 500), st.integers(0, 500))
def test_more_in_the_cache_never_costs_a_worker_more(
    workers: list[WorkerView], request: PlacementRequest, blocks: int, more: int
) -> None:
    for worker in workers:
        held = {each: holding for each, holding in request.held.items() if each != worker.worker_id}
        some = structs.replace(request, held=held | ({worker.worker_id: Held(blocks, blocks)} if blocks else {}))
        larger = structs.replace(request, held=held | {worker.worker_id: Held(blocks + more + 1, blocks + more + 1)})
        before, after = cost_of(worker.worker_id, some, workers), cost_of(worker.worker_id, larger, workers)
        if before is not None and after is not None:
            assert after <= before + 1e-6


@settings(max_examples=150, deadline=None)
@given(few, requests, st.integers(1, 50_000))
def test_a_longer_queue_never_costs_a_worker_less(
    workers: list[WorkerView], request: PlacementRequest, more: int
) -> None:
    for worker in workers:
        assert worker.load is not None
        figures = {name: getattr(worker.load, name) for name in worker.load.__struct_fields__}
        longer = load(**{**figures, "queued_prompt_tokens": worker.load.queued_prompt_tokens + more})
        busier = [replace(each, load=longer) if each is worker else each for each in workers]
        before, after = cost_of(worker.worker_id, request, workers), cost_of(worker.worker_id, request, busier)
        if before is not None and after is not None:
            assert after >= before - 1e-6


def test_a_peers_blocks_are_fetched_when_that_beats_computing_and_waiting() -> None:
    tokens = 4800
    busy = view("busy", "unified", load=load(queued_prompt_tokens=50_000, running=9, waiting=5))
    idle = view("idle", "unified")
    request = ask(tokens, held={"busy": Held(290, 290)})
    fast = CostPriors(transfer_bytes_per_s=1e10)
    policy = policy_of("prefix_aware")
    found = policy.choose(request, [busy, idle], CostModel(fast), PlacementSettings(), None, 0.0)
    assert isinstance(found, Placement)
    assert (found.decode, found.sources[0].holder, found.sources[0].kind) == ("idle", "busy", "peer")
    assert found.prefill_tokens == tokens - 290 * LAYOUT.block_tokens
    assert found.costs[0][1].fetch_ms == found.sources[0].expected_ms
    assert "290 blocks from busy" in found.reasons[0]
    slow = CostModel(CostPriors(transfer_bytes_per_s=1e6))
    far = policy_of("prefix_aware").choose(request, [busy, idle], slow, PlacementSettings(), None, 0.0)
    assert isinstance(far, Placement)
    assert (far.decode, far.sources, far.prefill_tokens) == ("idle", (), tokens)


def test_a_workers_own_tiers_count_as_far_as_they_are_fast() -> None:
    quick = view("quick", "unified", tiers=(TierCost("dram", 999, 1e10, 0.0001), TierCost("nvme", 999, 1e9, 0.0001)))
    slow = view("slow", "unified", tiers=(TierCost("dram", 999, 1e3, 0.0001),))
    silent, stuck = view("silent", "unified"), view("stuck", "unified", tiers=(TierCost("dram", 999, 0.0, 0.0001),))
    held = {"quick": Held(200, 50, 100, 50), **dict.fromkeys(("slow", "silent", "stuck"), Held(200, 50, 150))}
    alone = PlacementSettings(prefer="local")
    for worker, fetched in ((quick, True), (slow, False), (silent, False), (stuck, False)):
        request = ask(3300, held={worker.worker_id: held[worker.worker_id]})
        found = make_policy(alone, SeededEntropy(0)).choose(
            request, [worker], CostModel(CostPriors()), alone, None, 0.0
        )
        assert isinstance(found, Placement)
        assert (found.cached_tokens == 200 * LAYOUT.block_tokens) is fetched
        assert (found.costs[0][1].fetch_ms > 0) is fetched
        assert found.sources == ()


def test_short_prompts_with_long_answers_are_spread_like_least_loaded_whatever_is_cached() -> None:
    views = {f"w{number}": view(f"w{number}", "unified") for number in range(8)}
    policy, costs = policy_of("prefix_aware"), CostModel(CostPriors())
    for number in range(160):
        request = ask(48, max_tokens=2000, held={"w3": Held(2, 2)}, request_id=str(number))
        found = policy.choose(request, list(views.values()), costs, PlacementSettings(), None, number / 10)
        assert isinstance(found, Placement)
        policy.placed(request, found, number / 10)
        views[found.decode].submitted(number / 10, found.work(1)[0])
        views[found.decode].computed(found.work(1)[0])
    sequences = [worker.sequences for worker in views.values()]
    assert max(sequences) - min(sequences) <= 5, sequences


@pytest.mark.parametrize("name", POLICIES)
def test_where_hand_offs_are_off_no_policy_makes_one(name: str) -> None:
    """An operator turns them off where they do harm, and a resumed request of several branches cannot be one."""
    workers = [view("p1", "prefill"), view("d1", "decode")]
    for request, prefer in ((ask(5000), "local"), (ask(5000, local_only=True), "disaggregated")):
        settings = PlacementSettings(policy=name, prefer=prefer)
        policy = make_policy(settings, SeededEntropy(7))
        found = policy.choose(request, workers, CostModel(CostPriors()), settings, None, 0.0)
        assert isinstance(found, Placement)
        assert (found.mode, found.decode, found.prefill) == ("local", "d1", None)


def test_nobody_fetches_from_who_failed_the_request() -> None:
    """What it failed with may be just these blocks."""
    held = {"broken": Held(290, 290)}
    workers = [view("broken", "unified"), view("idle", "unified")]
    for excluded, sources in (((), 1), ((("broken", 1),), 0)):
        found = chosen(
            policy_of("prefix_aware"),
            ask(4800, held=held, excluded=(*excluded, ("another", 1))),
            [replace(workers[0], load=load(queued_prompt_tokens=50_000, running=9)), workers[1]],
            "prefix_aware",
        )
        assert (found.decode, len(found.sources)) == ("idle", sources)


def test_power_of_two_compares_every_two() -> None:
    """Each of three workers meets each other: the one in the middle wins against the busiest alone."""
    workers = [
        view(f"w{number}", "unified", load=load(running=running)) for number, running in enumerate((200, 9, 0))
    ]
    policy = policy_of("power_of_two")
    where = Counter(chosen(policy, ask(), workers, "power_of_two").decode for _ in range(300))
    assert where["w0"] == 0
    assert 70 <= where["w1"] <= 130


def test_who_prefers_hand_offs_gets_one_where_the_least_loaded_worker_has_nobody_to_get_prompts_from() -> None:
    workers = [
        view("p0", "prefill"),
        view("d0", "decode", pairing=1),
        view("d1", "decode", load=load(running=3)),
    ]
    plain = PlacementSettings(policy="least_loaded", prefer="disaggregated")
    found = policy_of("least_loaded").choose(ask(), workers, CostModel(CostPriors()), plain, None, 0.0)
    assert isinstance(found, Placement)
    assert (found.prefill, found.decode) == ("p0", "d1")
