"""KV events: whatever order and loss, the applied set is the worker's, or nothing is known."""

from hypothesis import given
from hypothesis import strategies as st

from router.fleet.kv_feed import Action, Change, Forget, KvFeed, Replace, slices
from tandem.core.messages import KvDelta, KvSnapshot


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


def apply(known: set[bytes], actions: tuple[Action, ...]) -> set[bytes]:
    for action in actions:
        match action:
            case Replace():
                known = {each for piece in action.pieces for some in slices(piece, 3) for each in some}
            case Change():
                known |= {each for some in slices(action.stored, 3) for each in some}
                known -= {each for some in slices(action.removed, 3) for each in some}
            case Forget():
                known = set()
    return known


def test_deltas_before_the_first_snapshot_are_not_used() -> None:
    feed = KvFeed(1)
    assert feed.idle
    assert feed.take(KvDelta(1, 4, name(1), b"")) == ()
    assert feed.take(KvSnapshot(1, 6, name(2), True)) == (Replace((name(2),)),)
    assert feed.take(KvDelta(1, 6, name(9), b"")) == ()
    assert feed.take(KvDelta(1, 7, name(3), name(2))) == (Change(name(3), name(2)),)


def test_deltas_between_the_pieces_of_a_snapshot_are_applied_after_it() -> None:
    feed = KvFeed(1)
    assert feed.take(KvSnapshot(1, 6, name(1), False)) == ()
    assert not feed.idle
    assert feed.take(KvDelta(1, 6, name(8), b"")) == ()
    assert feed.take(KvDelta(1, 7, name(3), b"")) == ()
    actions = feed.take(KvSnapshot(1, 6, name(2), True))
    assert actions == (Replace((name(1), name(2))), Change(name(3), b""))


def test_gaps_foreign_epochs_and_torn_names_forget_everything() -> None:
    for bad in (KvDelta(1, 9, name(3), b""), KvDelta(2, 7, name(3), b""), KvDelta(1, 7, b"torn", b"")):
        feed = KvFeed(1)
        feed.take(KvSnapshot(1, 6, name(1), True))
        (action,) = feed.take(bad)
        assert isinstance(action, Forget)
        assert feed.idle
        assert feed.take(KvDelta(1, 7, name(3), b"")) == ()


@given(
    changes=st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=30),
    lost=st.sets(st.integers(1, 30)),
    snapshots=st.lists(st.integers(0, 30), max_size=3),
)
def test_what_is_known_is_the_workers_set_or_nothing(
    changes: list[tuple[int, bool]], lost: set[int], snapshots: list[int]
) -> None:
    truth: set[bytes] = set()
    feed, known = KvFeed(1), set[bytes]()
    known = apply(known, feed.take(KvSnapshot(1, 0, b"", True)))
    for count, (number, stored) in enumerate(changes, start=1):
        changed = name(number)
        truth = truth | {changed} if stored else truth - {changed}
        if count not in lost:
            delta = KvDelta(1, count, changed if stored else b"", b"" if stored else changed)
            known = apply(known, feed.take(delta))
            assert feed.idle or known == truth
        if count in snapshots:
            pieces = sorted(truth)
            for piece in pieces:
                known = apply(known, feed.take(KvSnapshot(1, count, piece, False)))
            known = apply(known, feed.take(KvSnapshot(1, count, b"", True)))
            assert known == truth
