"""KV events: whatever order and loss, the applied set is the worker's, or nothing is known."""

from hypothesis import given
from hypothesis import strategies as st

from router.fleet.kv_feed import Action, Change, Forget, KvFeed, Piece, Replace, slices
from tandem.core.messages import KvDelta, KvSnapshot


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


Known = dict[str, set[bytes]]


def unpacked(packed: bytes) -> set[bytes]:
    return {some[at : at + 16] for some in slices(packed, 3) for at in range(0, len(some), 16)}


def apply(known: Known, actions: tuple[Action, ...]) -> Known:
    for action in actions:
        match action:
            case Replace():
                known = {}
                for piece in action.pieces:
                    known.setdefault(piece.tier, set()).update(unpacked(piece.names))
            case Change():
                known.setdefault(action.tier, set()).update(unpacked(action.stored))
                known[action.tier] -= unpacked(action.removed)
            case Forget():
                known = {}
    return {tier: names for tier, names in known.items() if names}


def test_deltas_before_the_first_snapshot_are_not_used() -> None:
    feed = KvFeed(1)
    assert feed.idle
    assert feed.take(KvDelta(1, 4, name(1), b"")) == ()
    assert feed.take(KvSnapshot(1, 6, name(2), True)) == (Replace((Piece("hbm", name(2)),)),)
    assert feed.take(KvDelta(1, 6, name(9), b"")) == ()
    assert feed.take(KvDelta(1, 7, name(3), name(2))) == (Change(name(3), name(2)),)


def test_deltas_between_the_pieces_of_a_snapshot_are_applied_after_it() -> None:
    feed = KvFeed(1)
    assert feed.take(KvSnapshot(1, 6, name(1), False)) == ()
    assert not feed.idle
    assert feed.take(KvDelta(1, 6, name(8), b"")) == ()
    assert feed.take(KvDelta(1, 7, name(3), b"")) == ()
    actions = feed.take(KvSnapshot(1, 6, name(2), True))
    assert actions == (Replace((Piece("hbm", name(1)), Piece("hbm", name(2)))), Change(name(3), b""))


def test_gaps_foreign_epochs_and_torn_names_forget_everything() -> None:
    for bad in (KvDelta(1, 9, name(3), b""), KvDelta(2, 7, name(3), b""), KvDelta(1, 7, b"torn", b"")):
        feed = KvFeed(1)
        feed.take(KvSnapshot(1, 6, name(1), True))
        (action,) = feed.take(bad)
        assert isinstance(action, Forget)
        assert feed.idle
        assert feed.take(KvDelta(1, 7, name(3), b"")) == ()


TIERS = ("hbm", "dram", "nvme")


@given(
    changes=st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.sampled_from(TIERS)), max_size=30),
    lost=st.sets(st.integers(1, 30)),
    snapshots=st.lists(st.integers(0, 30), max_size=3),
)
def test_what_is_known_is_the_workers_sets_or_nothing(
    changes: list[tuple[int, bool, str]], lost: set[int], snapshots: list[int]
) -> None:
    truth: Known = {tier: set() for tier in TIERS}
    feed = KvFeed(1)
    known = apply({}, feed.take(KvSnapshot(1, 0, b"", True)))
    for count, (number, stored, tier) in enumerate(changes, start=1):
        changed = name(number)
        truth[tier] = truth[tier] | {changed} if stored else truth[tier] - {changed}
        there = {each: names for each, names in truth.items() if names}
        if count not in lost:
            delta = KvDelta(1, count, changed if stored else b"", b"" if stored else changed, tier)
            known = apply(known, feed.take(delta))
            assert feed.idle or known == there
        if count in snapshots:
            for each, names in truth.items():
                for piece in sorted(names):
                    known = apply(known, feed.take(KvSnapshot(1, count, piece, False, each)))
            known = apply(known, feed.take(KvSnapshot(1, count, b"", True)))
            assert known == there
