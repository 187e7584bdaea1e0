"""What prompts leave to compute as memory for prefixes grows or shrinks."""

from collections import OrderedDict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.split import reuse
from router.split.offered import Offered, growing
from router.split.reuse import MARK_TOKENS, Reuse, held_tokens, marks_of
from router.split.values import ObservedRequest, WorkTimes
from router.split.work import Demand, Present, demands, memory_tokens
from tandem.core.slo import Slo

TIMES = WorkTimes(0.02, 1e-4, 1e-8, 5e-5, 1e-9, 0.002, 1e-6, 2048)
SLO = Slo(ttft_s=2.0, tpot_s=0.05)


def marks(session: int, count: int) -> tuple[bytes, ...]:
    return tuple(session.to_bytes(8, "big") + place.to_bytes(8, "big") for place in range(count))


class LeastRecentlyUsed:
    """A memory for so many marks: the reference."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: OrderedDict[bytes, None] = OrderedDict()

    def held(self, names: Sequence[bytes]) -> int:
        """Leading ones that it holds; then it has all of them, the last ones as the least recent."""
        found = 0
        while found < len(names) and names[found] in self._held:
            found += 1
        for name in reversed(names):
            self._held[name] = None
            self._held.move_to_end(name)
        while len(self._held) > self._size:
            self._held.popitem(last=False)
        return found


PROMPTS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), max_size=60)


@given(prompts=PROMPTS, size=st.integers(1, 60))
def test_a_memory_that_forgets_the_oldest_holds_what_lies_within_its_size(
    prompts: list[tuple[int, int]], size: int
) -> None:
    """Told to an epoch, which is shorter than any prompt here: between a memory that is an epoch and a prompt smaller
    and one that is as much larger."""
    known = Reuse()
    slack = reuse._EPOCH_TOKENS // MARK_TOKENS + 10
    smaller, larger = LeastRecentlyUsed(max(0, size - slack)), LeastRecentlyUsed(size + slack)
    for session, count in prompts:
        names = marks(session, count)
        distances = known.distances(names)
        assert list(distances) == sorted(distances)
        found = held_tokens(distances, size * MARK_TOKENS) // MARK_TOKENS
        assert smaller.held(names) <= found <= larger.held(names)


def test_distances_are_what_came_since_each_counted_once() -> None:
    known = Reuse()
    assert known.distances(marks(1, 64)) == ()
    for _ in range(3):
        known.distances(marks(2, 64))
    (first, *_, last) = known.distances(marks(1, 64))
    assert first == last == 128 * MARK_TOKENS, "64 of another prompt, however often it came, and its own"
    assert known.distances(marks(3, 5)) == ()
    assert len(known.distances(marks(1, 64) + marks(9, 3))) == 64, "up to the first that is new"


def test_what_was_not_used_for_long_is_forgotten() -> None:
    known = Reuse()
    known.distances(marks(0, 1))
    for session in range(1, 2 * reuse._EPOCHS_MAX + 2):
        known.distances(marks(session, 64))
    assert known.distances(marks(0, 1)) == ()
    assert len(known._used) <= 2 * 64 * (reuse._EPOCHS_MAX + 1)
    assert len(known._tokens) <= reuse._EPOCHS_MAX
    assert sum(known._tokens) <= 64 * MARK_TOKENS * (reuse._EPOCHS_MAX + 1)


def test_marks_are_names_of_whole_stretches_and_not_too_many() -> None:
    names = [bytes([place % 251]) for place in range(200)]
    assert marks_of(names, 16) == (names[63], names[127], names[191])
    assert marks_of(names[:63], 16) == ()
    assert marks_of(names, 4096) == tuple(names[: reuse.MARKS_MAX])
    assert len(marks_of(names * 200, 16)) == reuse.MARKS_MAX


# ---- requests as a way has them to compute ----


def fleet(workers: int, memory: float) -> Present:
    return Present(workers, 0.0, 0.0, 0.0, 1e9, 256, memory)


def demanded(offered: Offered, prefills: int, load: float = 1.0) -> Sequence[Demand]:
    for _ in offered.remember():
        pass
    turns = offered.at(prefills, load)
    while True:
        try:
            next(turns)
        except StopIteration as end:
            found: Sequence[Demand] = end.value
            return found


def of_sessions(distance: float, prefills: int = 0, uncached: int = 512) -> list[ObservedRequest]:
    """Prompts of 8 k tokens of which 7 k came before, so many tokens ago."""
    return [
        ObservedRequest(0.1 * each, 8192, uncached, 100.0, distances=(distance,) * 7, prefills=prefills)
        for each in range(50)
    ]


def uncached_of(offered: Offered, prefills: int, load: float = 1.0) -> list[int]:
    """Prompt tokens that a way leaves to compute."""
    return [round(demand.pieces * TIMES.max_batched_tokens) for demand in demanded(offered, prefills, load)]


def test_a_way_with_too_little_memory_has_more_to_compute_and_more_load_needs_more_memory() -> None:
    offered = Offered(fleet(8, 100_000.0), TIMES, SLO)
    offered.add(of_sessions(450_000.0))
    here = demanded(offered, 0)
    assert here == demands(of_sessions(450_000.0), TIMES, SLO)
    assert demanded(offered, 2) is here, "four fifths of 600,000 tokens hold what was used 450,000 ago"
    assert demanded(offered, 6) is here, "who takes prompts holds as much"
    assert set(uncached_of(offered, 4)) == {7680}
    assert set(uncached_of(offered, 2, 1.5)) == {7680}
    assert set(uncached_of(offered, 0, 1.5)) == {7680}
    assert set(uncached_of(offered, 0, 1.2)) == {512}
    assert demanded(offered, 2, 1.5)[-1].at_s == here[-1].at_s / 1.5


def test_where_memory_was_short_a_way_with_more_of_it_has_less_to_compute() -> None:
    offered = Offered(fleet(8, 100_000.0), TIMES, SLO)
    offered.add(of_sessions(350_000.0, prefills=4, uncached=7680))
    assert set(uncached_of(offered, 0)) == {512}
    assert set(uncached_of(offered, 4)) == {7680}


def growing_sessions(each_s: float, count: int = 60) -> list[ObservedRequest]:
    """Two prompts a second, whose prefixes were used 200,000 tokens ago, and every second so many more."""
    return [
        ObservedRequest(0.5 * place, 8192, 512, 100.0, distances=(10.0, 200_000.0 + each_s * 0.5 * place))
        for place in range(count)
    ]


@pytest.mark.parametrize("each_s", [1_000.0, 9_000.0])
def test_what_grows_is_taken_to_go_on_as_it_did_for_half_of_the_time_it_took(each_s: float) -> None:
    assert growing(growing_sessions(each_s), 30.0) == pytest.approx(200_000 + each_s * 29.5 * 1.5)
    assert growing(growing_sessions(each_s), 5.0) == pytest.approx(200_000 + each_s * (29.5 + 5.0))


def test_what_does_not_grow_or_is_not_known_to_says_nothing_of_the_future() -> None:
    assert growing(growing_sessions(0.0), 30.0) == growing(growing_sessions(-2_000.0), 30.0) == 0.0
    assert growing(growing_sessions(9_000.0, 19), 30.0) == growing([], 30.0) == 0.0
    new = [seen._replace(distances=()) for seen in growing_sessions(9_000.0)]
    assert growing(new, 30.0) == 0.0


def test_a_way_has_to_hold_what_conversations_will_have_grown_to() -> None:
    """The larger side of 3 of 8 has 500,000 tokens of which four fifths are of use."""
    for then, left in ((0.0, {512}), (350_000.0, {512}), (450_000.0, {7680}), (9e9, {7680})):
        offered = Offered(fleet(8, 100_000.0), TIMES, SLO, then)
        offered.add(of_sessions(350_000.0))
        assert set(uncached_of(offered, 3)) == left
        assert set(uncached_of(offered, 0)) == {512 if then < 9e9 else 7680}
    offered = Offered(fleet(8, 100_000.0), TIMES, SLO, 9e9)
    offered.add(of_sessions(300_000.0))
    assert set(uncached_of(offered, 0)) == {512}, "no more than twice as much is believed"


@pytest.mark.parametrize("share", [0.4, 0.6, 0.9])
def test_how_much_memory_is_of_use_follows_from_what_was_left_to_compute(share: float) -> None:
    """Prefixes used 10,000 to 800,000 tokens ago, of which a memory of 800,000 held so large a share."""
    offered = Offered(fleet(8, 100_000.0), TIMES, SLO)
    distances = [10_000.0 * each for each in range(1, 81)]
    offered.add(
        [
            ObservedRequest(
                0.1 * place, 8192, 512 if distance <= 800_000 * share else 7680, 100.0, distances=(distance,) * 7
            )
            for place, distance in enumerate(distances)
        ]
    )
    halves = uncached_of(offered, 4)
    found = [distance for distance, uncached in zip(distances, halves, strict=True) if uncached < 7680]
    assert max(found) == pytest.approx(400_000 * share, abs=15_000)


def test_prompts_that_find_more_than_marks_tell_find_it_everywhere() -> None:
    """Their prefixes end close before the next mark."""
    offered = Offered(fleet(8, 100_000.0), TIMES, SLO)
    offered.add(of_sessions(450_000.0, uncached=112))
    assert set(uncached_of(offered, 0)) == {112}
    assert set(uncached_of(offered, 4)) == {7280}


@given(
    prompts=st.lists(
        st.tuples(st.integers(1, 9000), st.floats(0.0, 1e6), st.integers(0, 7)), min_size=2, max_size=30
    ),
    prefills=st.integers(0, 7),
    load=st.floats(0.1, 2.0),
)
def test_a_prompt_never_leaves_less_than_nothing_nor_more_than_itself(
    prompts: list[tuple[int, float, int]], prefills: int, load: float
) -> None:
    requests = [
        ObservedRequest(0.1 * place, 9000, uncached, 10.0, distances=(distance,) * 8, prefills=before)
        for place, (uncached, distance, before) in enumerate(prompts)
    ]
    offered = Offered(fleet(8, 50_000.0), TIMES, SLO)
    offered.add(requests)
    most = demands([ObservedRequest(0.0, 9000, 9000, 10.0)], TIMES, SLO)[0]
    for demand in demanded(offered, prefills, load):
        assert 0.0 < demand.prompt_s <= most.prompt_s * 1.0001
        assert demand.pieces <= most.pieces


def test_memory_counts_on_the_larger_side_and_as_far_as_it_is_seen() -> None:
    assert [memory_tokens(each, fleet(4, 10.0)) for each in range(4)] == [40.0, 30.0, 20.0, 30.0]
