"""Prompts on their way count as cached where they will be; bursts with a new prefix stay together, but not on one."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from kv_transfer.index.protocol import Held
from router.placement import (
    Breakdown,
    Candidate,
    CostModel,
    Placement,
    PlacementRequest,
    WorkerView,
    make_policy,
)
from router.placement.policies.speculative import SpeculativeEntries, marks
from router.settings import CostPriors, PlacementSettings
from tandem.core.entropy import SeededEntropy
from tandem.core.kv import BlockNames, chain_names, pack_tokens
from tests.unit.router.placement.test_router_placement import LAYOUT, view

ROOT = b"r" * 16
BLOCK = LAYOUT.block_tokens


def prompt(*tokens: int) -> PlacementRequest:
    names = chain_names(ROOT, pack_tokens(tokens), BLOCK)
    return PlacementRequest("demo", len(tokens), 1, 64, names={ROOT: names})


def placement(decode: str, prefill: str | None = None) -> Placement:
    settings = PlacementSettings(prefer="disaggregated" if prefill else "local")
    policy = make_policy(settings, SeededEntropy(0))
    workers = [view(decode, "decode"), *([view(prefill, "prefill")] if prefill else [])]
    found = policy.choose(prompt(*range(64)), workers, CostModel(CostPriors()), settings, None, 0.0)
    assert isinstance(found, Placement)
    return found


A, B = tuple(range(1600)), tuple(range(5000, 6600))


def test_what_was_sent_is_promised_to_those_who_will_have_it_for_a_while() -> None:
    promises = SpeculativeEntries(2.0, 1000)
    promises.placed(prompt(*A), placement("d", "p"), 10.0)
    assert dict(promises.leading(prompt(*A), 10.0)) == {(ROOT, "p"): 100, (ROOT, "d"): 100}
    assert promises.leading(prompt(*B), 10.0) == {}
    assert promises.leading(prompt(*A), 11.9) != {}
    assert promises.leading(prompt(*A), 99.0) == {}


def test_a_common_part_is_known_to_a_sixteenth() -> None:
    promises = SpeculativeEntries(2.0, 1000)
    promises.placed(prompt(*A), placement("d"), 0.0)
    found = promises.leading(prompt(*A[:1200], *B), 0.0)[ROOT, "d"]
    assert 75 - 75 // 16 <= found <= 75


def test_a_lost_worker_has_nothing_and_comes_back_with_nothing() -> None:
    promises = SpeculativeEntries(2.0, 1000)
    promises.placed(prompt(*A), placement("d"), 0.0)
    promises.forget("d")
    assert promises.leading(prompt(*A), 0.0) == {}
    promises.placed(prompt(*A), placement("d"), 0.0)
    assert promises.leading(prompt(*A), 0.0) != {}


def test_memory_is_bounded() -> None:
    promises = SpeculativeEntries(1e9, 50)
    for start in range(0, 100_000, 1000):
        asked = structs.replace(prompt(*range(start, start + 1600)), prompt_cache_key=str(start))
        promises.placed(asked, placement("d"), 0.0)
    assert promises.names <= 50
    assert promises.leading(prompt(*range(1600)), 0.0) == {}


def test_packed_names_promise_the_same() -> None:
    plain = prompt(*A)
    packed = structs.replace(plain, names={ROOT: BlockNames(b"".join(plain.names[ROOT]))})
    promises = SpeculativeEntries(2.0, 1000)
    promises.placed(packed, placement("d"), 0.0)
    assert promises.leading(plain, 0.0) == promises.leading(packed, 0.0) == {(ROOT, "d"): 100}


@given(st.integers(0, 9000))
def test_marks_grow_and_end_at_the_end(count: int) -> None:
    found = marks(count)
    assert list(found) == sorted(set(found))
    assert (found[-1] if found else 0) == count
    assert len(found) < 130
    assert all(after - before <= max(1, before // 16) for before, after in pairwise(found))


def burst(count: int, tokens: tuple[int, ...], own: int, workers: int) -> Counter[str]:
    """So many requests at once that share `tokens` and have `own` more each; nobody tells of blocks meanwhile."""
    settings, costs = PlacementSettings(), CostModel(CostPriors())
    policy = make_policy(settings, SeededEntropy(0))
    views: dict[str, WorkerView] = {f"w{number}": view(f"w{number}", "unified") for number in range(workers)}
    where: Counter[str] = Counter()
    for number in range(count):
        asked = prompt(*tokens, *range(100_000 * (number + 1), 100_000 * (number + 1) + own))
        found = policy.choose(asked, list(views.values()), costs, settings, None, 0.0)
        assert isinstance(found, Placement)
        policy.placed(asked, found, 0.0)
        views[found.decode].submitted(0.0, found.work(1)[0])
        where[found.decode] += 1
    return where


def test_a_burst_with_a_new_prefix_neither_goes_everywhere_nor_all_to_one() -> None:
    assert len(burst(6, tuple(range(6400)), 32, 16)) == 1
    many = burst(120, tuple(range(6400)), 64, 16)
    assert 2 <= len(many) < 6
    assert max(many.values()) < 100


def test_a_burst_of_different_prompts_is_spread_evenly() -> None:
    where = burst(64, (), 3200, 8)
    assert set(where.values()) == {8}


@pytest.mark.parametrize(
    ("workers", "prefer"),
    [
        ([view(f"w{number}", "unified") for number in range(4)], "auto"),
        ([view(f"w{number}", "unified") for number in range(10)], "auto"),
        ([view("p1", "prefill"), *(view(f"w{number}", "decode") for number in range(10))], "local"),
    ],
)
def test_equal_costs_are_decided_by_the_kin_of_a_cache_key(workers: list[WorkerView], prefer: str) -> None:
    """Also of more workers than are paired with each other."""
    settings, costs = PlacementSettings(prefer=prefer), CostModel(CostPriors())
    policy = make_policy(settings, SeededEntropy(0))
    first = structs.replace(prompt(*A), prompt_cache_key="key")
    found = policy.choose(first, workers[-1:], costs, settings, None, 0.0)
    assert isinstance(found, Placement)
    policy.placed(first, found, 0.0)
    other = structs.replace(prompt(*range(8)), prompt_cache_key="key")
    again = policy.choose(other, workers, costs, settings, None, 500.0)
    nobody = policy.choose(structs.replace(other, prompt_cache_key="new"), workers, costs, settings, None, 500.0)
    assert isinstance(again, Placement)
    assert isinstance(nobody, Placement)
    assert (again.decode, nobody.decode) == (found.decode, "w0")


class Plain:
    """Promises name by name, as simply as they can be kept."""

    def __init__(self) -> None:
        self.known: dict[bytes, dict[str, tuple[float, int]]] = {}
        self.lives: Counter[str] = Counter()

    def placed(self, request: PlacementRequest, found: Placement, until: float) -> None:
        names = request.names[ROOT]
        for worker in dict.fromkeys((found.computing, found.decode if request.max_tokens > 1 else found.computing)):
            held = request.held.get(worker)
            for count in marks(len(names)):
                if count > (held.hbm if held is not None else 0):
                    workers = self.known.setdefault(names[count - 1], {})
                    workers.pop(worker, None)
                    workers[worker] = (until, self.lives[worker])
                    while len(workers) > 4:
                        del workers[next(iter(workers))]

    def leading(self, request: PlacementRequest, now: float) -> dict[tuple[bytes, str], int]:
        names, found = request.names[ROOT], dict[tuple[bytes, str], int]()
        for count in marks(len(names)):
            for worker, (until, life) in self.known.get(names[count - 1], {}).items():
                if until > now and life == self.lives[worker]:
                    found[ROOT, worker] = count
        return found

    def begins(self, request: PlacementRequest, now: float) -> bool:
        """Whether something holds for the prompt's first block, or for the first one that a worker lacks."""
        names = request.names[ROOT]
        counts = marks(len(names))
        firsts = {0, *(sum(count <= held.hbm for count in counts) for held in request.held.values())}
        starts = (names[counts[first] - 1] for first in firsts if first < len(counts))
        return any(
            until > now and life == self.lives[worker]
            for name in starts
            for worker, (until, life) in self.known.get(name, {}).items()
        )


def agree(promises: SpeculativeEntries, plain: Plain, asked: PlacementRequest, now: float) -> bool:
    """What is promised is what is promised name by name; nothing need be where it does not begin with what is lacking
    now, as when a worker has lost the blocks before it."""
    ours, theirs = dict(promises.leading(asked, now)), plain.leading(asked, now)
    return ours == theirs if plain.begins(asked, now) else ours in ({}, theirs)


WORKERS = st.sampled_from("abcdef")
PLACED = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=6),
    WORKERS,
    st.none() | WORKERS,
    st.integers(1, 2),
    st.dictionaries(WORKERS, st.integers(0, 6)),
    st.floats(0.0, 5.0),
)
"""A prompt by the kinds of its blocks, so that many begin alike; decode, prefill, tokens, who has how many blocks,
and how long it takes."""
STEPS = st.lists(st.tuples(st.floats(0.0, 3.0), PLACED, st.none() | WORKERS), max_size=30)


def kinds(blocks: list[int]) -> tuple[int, ...]:
    return tuple(kind for kind in blocks for _ in range(BLOCK))


@given(STEPS)
def test_promises_are_those_of_every_name_by_itself(
    steps: list[tuple[float, tuple[list[int], str, str | None, int, dict[str, int], float], str | None]],
) -> None:
    promises, plain, now = SpeculativeEntries(2.0, 1000), Plain(), 0.0
    for later, (blocks, decode, prefill, tokens, held, takes_s), lost in steps:
        now += later
        asked = structs.replace(
            prompt(*kinds(blocks)),
            max_tokens=tokens,
            held={worker: Held(count, count) for worker, count in held.items()},
        )
        assert agree(promises, plain, asked, now)
        cost = Breakdown(0.0, 1e3 * takes_s, 0.0, 7.0, 0.0)
        prefill = None if prefill == decode else prefill
        mode = "local" if prefill is None else "disaggregated"
        found = Placement(mode, decode, prefill, 1, 0, ((Candidate(decode, prefill or ""), cost),), ())
        promises.placed(asked, found, now)
        plain.placed(asked, found, now + 2.0 + (cost.completion_ms - cost.decode_ms) / 1e3)
        if lost is not None:
            promises.forget(lost)
            plain.lives[lost] += 1
        assert agree(promises, plain, asked, now)
    promises.leading(prompt(*A), 1e9)
    assert promises.names == 0


def test_what_one_worker_will_have_is_not_taken_to_be_anywhere_else() -> None:
    """Who was promised nothing computes or fetches the whole prompt, and is priced and told so."""
    policy, settings = make_policy(PlacementSettings(), SeededEntropy(0)), PlacementSettings()
    costs = CostModel(CostPriors())
    one, other, lender = (view(worker_id, "unified") for worker_id in ("w1", "w2", "w3"))
    found = policy.choose(prompt(*A), [one], costs, settings, None, 0.0)
    assert isinstance(found, Placement)
    policy.placed(prompt(*A), found, 0.0)
    again = policy.choose(prompt(*A), [one], costs, settings, None, 0.0)
    elsewhere = policy.choose(prompt(*A), [other], costs, settings, None, 0.0)
    assert isinstance(again, Placement)
    assert isinstance(elsewhere, Placement)
    assert (again.prefill_tokens, elsewhere.prefill_tokens) == (1, len(A))
    lender.ready, lender.draining = True, True
    held = structs.replace(prompt(*A), held={"w3": Held(50, 50)})
    brought = policy.choose(held, [other, lender], costs, settings, None, 0.0)
    assert isinstance(brought, Placement)
    assert brought.decode == "w2"
    assert brought.sources[0].expected_ms == brought.costs[0][1].fetch_ms
    whole_ms = settings.transfer_setup_ms + costs.transfer_ms(50 * LAYOUT.block_bytes)
    assert brought.sources[0].expected_ms == pytest.approx(whole_ms)


def test_what_a_worker_has_already_counts_where_it_was_promised_less() -> None:
    policy, settings = make_policy(PlacementSettings(), SeededEntropy(0)), PlacementSettings()
    worker, costs = view("w1", "unified"), CostModel(CostPriors())
    found = policy.choose(prompt(*A[:160]), [worker], costs, settings, None, 0.0)
    assert isinstance(found, Placement)
    policy.placed(prompt(*A[:160]), found, 0.0)
    later = policy.choose(
        structs.replace(prompt(*A), held={"w1": Held(60, 60)}), [worker], costs, settings, None, 0.0
    )
    assert isinstance(later, Placement)
    assert later.cached_tokens == 60 * BLOCK
