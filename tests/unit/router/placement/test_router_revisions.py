"""New requests are split by weight, a conversation stays where it is, and so does what has begun."""

import math
from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.splitting import key_of, routes_of, usable
from router.fleet.services import ServiceFacts
from router.generation import Generation
from router.placement import CostModel, Placement, PlacementRequest, Unplaced, WorkerView, make_policy
from router.placement.policies import POLICIES
from router.placement.revisions import Weights, ranked, routes, unplaced
from router.settings import CostPriors, PlacementSettings
from tandem.core.entropy import SeededEntropy
from tandem.core.kv import Layout
from tandem.core.request import Sampling, Stopping
from tandem.core.spans import TraceContext

KEYS = 2000
LAYOUT = Layout("torch", "block", "float32", 4, 2, 16, 2, 8)
NAMES = st.text("abcdef0123456789", min_size=10, max_size=10)
WEIGHTS = st.dictionaries(NAMES, st.integers(0, 100), min_size=1, max_size=6).filter(
    lambda found: any(found.values())
)


def generation_of() -> Generation:
    return Generation(
        request_id="req-1",
        model="m",
        tenant="t",
        tenant_salt="salt",
        prompt=b"\x01\x00\x00\x00" * 8,
        n=1,
        seed=1,
        sampling=Sampling(),
        stopping=Stopping(max_tokens=8),
        timeout_s=60.0,
        received=0.0,
        received_wall=0.0,
        trace=TraceContext("a" * 32, "b" * 16),
    )


def split(weights: dict[str, int], seed: str = "default/chat") -> Weights:
    found = Weights.of(seed, weights)
    assert found is not None
    return found


def first(weights: Weights, number: int) -> str:
    return ranked(weights, f"conversation {number}")[0]


@given(WEIGHTS, st.text(max_size=20))
def test_every_revision_gets_its_share(weights: dict[str, int], seed: str) -> None:
    found, total = split(weights, seed), sum(weights.values())
    counts = dict.fromkeys(weights, 0)
    for number in range(KEYS):
        counts[first(found, number)] += 1
    for revision, weight in weights.items():
        share = weight / total
        # Five standard deviations of as many independent draws, and a little more where few are expected.
        bound = 5 * math.sqrt(share * (1 - share) / KEYS) + 5 / KEYS
        assert abs(counts[revision] / KEYS - share) <= bound, revision
        assert weight or not counts[revision], f"{revision} has no weight"


@given(WEIGHTS, st.data())
def test_changed_weights_move_conversations_only_to_what_grew(weights: dict[str, int], data: st.DataObject) -> None:
    grown = data.draw(st.sampled_from(sorted(weights)))
    before = split(weights)
    after = split({**weights, grown: weights[grown] + data.draw(st.integers(1, 100))})
    for number in range(300):
        old, new = first(before, number), first(after, number)
        assert old == new or new == grown


@given(WEIGHTS, st.text(max_size=50))
def test_a_key_is_answered_alike_everywhere_and_ranks_all_with_weight(weights: dict[str, int], key: str) -> None:
    order = ranked(split(weights), key)
    assert order == ranked(split(dict(reversed(weights.items()))), key)
    assert sorted(order) == sorted(revision for revision, weight in weights.items() if weight)


def test_without_any_weight_nothing_is_split() -> None:
    assert Weights.of("s", {}) is None
    assert Weights.of("s", {"old": 0, "new": 0}) is None
    assert split({"old": 100, "new": 0}).only == "old"


def test_what_has_begun_stays_while_its_revision_has_a_worker_even_without_weight() -> None:
    weights = split({"new": 100, "other": 50})
    assert [route.revision for route in routes(weights, "k", "old", {"old", "new"})] == ["old"]
    fallen = routes(weights, "k", "old", {"new"})
    assert [route.revision for route in fallen] == list(ranked(weights, "k"))
    assert "no worker of revision old, on which it has begun, is left" in fallen[0].why


def test_where_all_workers_are_of_the_one_revision_nothing_is_looked_at() -> None:
    facts, generation = ServiceFacts("n/s", "m", split({"r1": 100})), generation_of()
    assert routes_of(generation, "", facts, ("r1",), ()) == ()
    assert routes_of(generation, "", None, ("r1", "r2"), ()) == ()
    assert [route.revision for route in routes_of(generation, "", facts, ("r1", "r2"), ())] == ["r1"]
    asked = msgspec.structs.replace(generation, revision="r0")
    assert [route.revision for route in routes_of(asked, "", None, ("r1",), ())] == ["r0"]


def test_turns_of_a_conversation_have_one_key_and_requests_without_one_their_own() -> None:
    generation = generation_of()
    begun = msgspec.structs.replace(generation, beginning="system\x00hello")
    later = msgspec.structs.replace(begun, request_id="another", prompt=begun.prompt * 2)
    assert key_of(begun) == key_of(later) != key_of(msgspec.structs.replace(begun, tenant_salt="other"))
    assert key_of(generation) == generation.request_id
    assert key_of(msgspec.structs.replace(begun, cache_key="t\x00mine")) == "t\x00mine"


def test_only_workers_that_generate_and_stay_make_a_revision_usable() -> None:
    workers = [
        worker("p", "prefill", "r1"),
        replace(worker("d", "decode", "r2"), draining=True),
        replace(worker("e", "decode", "r3"), ready=False),
        worker("u", "unified", "r4"),
        worker("s", "store", "r5"),
    ]
    assert usable(workers) == {"r4"}


def worker(worker_id: str, role: str, revision: str) -> WorkerView:
    return WorkerView(worker_id, 1, role, "m", revision, int(revision[1:]), b"r" * 16, LAYOUT, 1000, 4096)


def test_no_policy_leaves_the_revision_or_pairs_across_it() -> None:
    workers = [worker(f"{role[0]}{number}{at}", role, f"r{number}") for role in ("prefill", "decode", "unified")
               for number in (1, 2) for at in range(2)]  # fmt: skip
    request = PlacementRequest("m", 500, 1, 50, request_id="r", revision="r2")
    for name in POLICIES:
        for prefer in ("auto", "disaggregated", "local"):
            settings = PlacementSettings(policy=name, prefer=prefer)
            policy, costs = make_policy(settings, SeededEntropy(3)), CostModel(CostPriors())
            for turn in range(6):
                found = policy.choose(request, workers, costs, settings, None, float(turn))
                assert isinstance(found, Placement), name
                chosen = {found.decode, *([found.prefill] if found.prefill else [])}
                assert all(each[1] == "2" for each in chosen), (name, chosen)
                assert "it is of revision r1, and this request is for r2" in " ".join(found.reasons)
                policy.placed(request, found, float(turn))


def test_nobody_of_the_revision_is_no_workers_with_the_reason() -> None:
    settings = PlacementSettings()
    policy, costs = make_policy(settings, SeededEntropy(3)), CostModel(CostPriors())
    request = PlacementRequest("m", 500, 1, 50, revision="r3")
    found = policy.choose(request, [worker("d", "decode", "r1")], costs, settings, None, 0.0)
    assert found == Unplaced("no_workers", ("d left out: it is of revision r1, and this request is for r3",))


def test_a_request_never_fits_only_where_no_revision_can_ever_take_it() -> None:
    never, none, full = (Unplaced(code, (code,)) for code in ("out_of_blocks", "no_workers", "queue_full"))
    assert unplaced([never, never]).code == "out_of_blocks"
    assert unplaced([never, none]).code == "no_workers"
    assert unplaced([never, none, full]) == Unplaced("queue_full", ("out_of_blocks", "no_workers", "queue_full"))


def test_a_new_request_tries_its_revision_then_the_others_and_says_why() -> None:
    """A router that began with another would give revisions other shares than their weights."""
    weights = split({"blue": 30, "green": 60, "red": 10})
    for number in range(30):
        key = f"conversation {number}"
        first_of_all, *others = ranked(weights, key)
        found = routes(weights, key, "", ())
        assert [route.revision for route in found] == [first_of_all, *others]
        share = dict(weights.shares)[first_of_all]
        assert found[0].why == f"revision {first_of_all} has {share} of 100 parts of new requests"
        assert [route.why for route in found[1:]] == [
            f"revision {first_of_all} cannot take it now: revision {other}" for other in others
        ]


def test_a_tenth_of_the_keys_is_a_tenth_and_the_same_keys_on_every_router() -> None:
    """Routers of two versions serve one conversation in turn: they must send it to one revision."""
    weights = Weights.of("ns/service", {"old": 90, "new": 10})
    assert weights is not None
    new = [number for number in range(3000) if ranked(weights, f"key {number}")[0] == "new"]
    assert (len(new), new[:5], sum(new)) == (334, [36, 60, 62, 64, 75], 500_793)
