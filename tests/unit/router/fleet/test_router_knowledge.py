"""What routers know of blocks: exactly and alike, beyond their links, and of workers that tell nothing."""

import random
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.index.compact_index import CompactIndex
from kv_transfer.index.memory_index import MemoryIndex
from kv_transfer.index.protocol import TIERS, BlockIndex, Held
from kv_transfer.index.redis_wire import RedisHolder
from router.fleet.approximate_index import ApproximateIndex
from router.fleet.knowledge import BlockKnowledge, LiveWorkers
from router.fleet.kv_feed import Change, Forget, KvFeed, Replace
from router.fleet.peer import Peer
from router.placement.view import WorkerView
from router.settings import FleetSettings
from tandem.core.messages import Hello, KvDelta, KvSnapshot
from tandem.engine.protocol import KvChange
from tandem.link.protocol import RouterLink
from tandem.worker.block_events import BlockEvents
from tests.worlds.redis_stage import hello

NAMES = tuple(bytes([number]) * 16 for number in range(12))


class Router:
    """A router's end of one worker's state stream."""

    def __init__(self, index: BlockIndex) -> None:
        self.index = index
        self.feed = KvFeed(1)
        self.wants_snapshot = False

    def hear(self, update: KvDelta | KvSnapshot) -> None:
        for action in self.feed.take(update):
            match action:
                case Replace():
                    self.index.drop("w")
                    for piece in action.pieces:
                        self.index.change("w", piece.names, b"", piece.tier)
                case Change():
                    self.index.change("w", action.stored, action.removed, action.tier)
                case Forget():
                    self.index.drop("w")
                    self.wants_snapshot = True


@given(
    changes=st.lists(
        st.tuples(st.sampled_from(TIERS), st.sampled_from(NAMES), st.booleans(), st.booleans(), st.booleans()),
        max_size=60,
    )
)
def test_routers_know_the_same_of_a_worker_whatever_each_has_missed(
    changes: list[tuple[str, bytes, bool, bool, bool]],
) -> None:
    held: dict[str, dict[bytes, None]] = {tier: {} for tier in TIERS}
    lower = {tier: held[tier] for tier in TIERS[1:]}
    events = BlockEvents(1, lambda: tuple(held["hbm"]), lambda: {tier: tuple(names) for tier, names in lower.items()})
    routers = [Router(CompactIndex(5)), Router(MemoryIndex())]
    for router in routers:
        for piece in events.snapshot():
            router.hear(piece)
    for tier, name, storing, *lost in changes:
        if storing == (name in held[tier]):
            continue
        if storing:
            held[tier][name] = None
        else:
            del held[tier][name]
        told = (name,)
        for delta in events.change(KvChange(told if storing else (), () if storing else told), tier):
            for router, loses in zip(routers, lost, strict=True):
                if not loses:
                    router.hear(delta)
        for router in routers:
            if router.wants_snapshot:
                router.wants_snapshot = False
                for piece in events.snapshot():
                    router.hear(piece)
    for router in routers:
        # Silence: whoever missed the last events hears of that with the next.
        for piece in events.snapshot() if router.feed.last != events.last else ():
            router.feed = KvFeed(1) if router.feed.idle else router.feed
            router.hear(piece)
    truth = MemoryIndex()
    for tier, names in held.items():
        truth.stored("w", tuple(names), tier)
    for start in range(len(NAMES)):
        expected = truth.longest(NAMES[start:])
        assert [router.index.longest(NAMES[start:]) for router in routers] == [expected, expected]


class Stopped:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time


class Shared:
    """An index beyond the links, with given answers."""

    def __init__(self, told: Mapping[str, RedisHolder]) -> None:
        self.told = told
        self.asked = 0

    def holders(self, service: str = "") -> frozenset[str]:
        return frozenset(self.told)

    async def longest(self, names: Sequence[bytes], service: str = "") -> Mapping[str, RedisHolder]:
        self.asked += 1
        return self.told


def peer_of(hello: Hello) -> Peer:
    return Peer(f"mem://{hello.worker_id}", cast(RouterLink, None), hello, WorkerView.of(hello, 0), 0.0)


def knowledge(*peers: Peer, shared: Shared | None = None) -> tuple[BlockKnowledge, Stopped]:
    clock, layout = Stopped(), hello("any").layout
    known = LiveWorkers({peer.worker_id: peer for peer in peers}, {("r1", bytes(16), layout): 0})
    return BlockKnowledge(CompactIndex(1), known, clock, FleetSettings(guess_s=60.0, answer_s=5.0), shared), clock


def redis(total: int) -> Held:
    return Held(total, total, known_by="redis")


async def test_a_holder_without_a_link_is_found_and_can_be_fetched_from() -> None:
    shared = Shared({"far": RedisHolder(hello("far", 3), redis(7)), "near": RedisHolder(hello("near", 1), redis(9))})
    near = peer_of(hello("near", 1))
    near.feed.take(KvSnapshot(1, 0, b"", True))
    blocks, clock = knowledge(near, shared=shared)
    blocks.index.stored("near", NAMES[:2])
    assert blocks.leading(NAMES) == {"near": Held(2, 2)}
    await blocks.seek(NAMES)
    assert blocks.leading(NAMES) == {"near": Held(2, 2), "far": redis(7)}, "a link knows better than Redis"
    (view,) = blocks.beyond(NAMES)
    assert (view.worker_id, view.role, view.epoch) == ("far", "store", 3)
    holder = blocks.holder("far")
    assert holder is not None
    assert (holder.epoch, holder.addresses_by("")) == (3, ("tcp://far:1",))
    clock.time = 6.0
    assert blocks.leading(NAMES) == {"near": Held(2, 2)}, "an old answer is not believed"


async def test_a_worker_whose_feed_has_a_gap_is_looked_up_meanwhile() -> None:
    shared = Shared({"w": RedisHolder(hello("w", 1), redis(4))})
    worker = peer_of(hello("w", 1))
    blocks, _ = knowledge(worker, shared=shared)
    await blocks.seek(NAMES)
    assert blocks.leading(NAMES) == {"w": redis(4)}
    assert blocks.beyond(NAMES) == ()
    worker.feed.take(KvSnapshot(1, 0, b"", True))
    assert blocks.leading(NAMES) == {}
    shared.asked = 0
    await blocks.seek(NAMES)
    assert shared.asked == 0, "nobody asks while links tell of everybody"


async def test_another_incarnation_of_a_linked_worker_is_not_believed() -> None:
    blocks, _ = knowledge(peer_of(hello("w", 2)), shared=Shared({"w": RedisHolder(hello("w", 1), redis(4))}))
    await blocks.seek(NAMES)
    assert blocks.leading(NAMES) == {}


def test_what_was_sent_to_a_worker_that_tells_nothing_is_known_approximately() -> None:
    silent = peer_of(msgspec.structs.replace(hello("w", 1), kv_events=False))
    telling = peer_of(hello("v", 1))
    blocks, _ = knowledge(silent, telling)
    blocks.sent(silent, NAMES[:5])
    blocks.sent(telling, NAMES)
    assert blocks.leading(NAMES) == {"w": Held(5, 5, known_by="approximate")}
    blocks.forget("w")
    assert blocks.leading(NAMES) == {}


def test_guesses_are_bounded_and_expire() -> None:
    guesses, known = ApproximateIndex(names_max=6, ttl_s=10.0), set[bytes]()

    def follow(stored: Sequence[bytes], removed: Sequence[bytes]) -> None:
        known.update(stored)
        known.difference_update(removed)

    follow(*guesses.used(NAMES[:4], 0.0))
    assert known == set(NAMES[:4])
    follow(*guesses.used(NAMES[6:10], 1.0))
    assert known == {*NAMES[:2], *NAMES[6:10]}, "the end of the oldest prefix goes first"
    follow(*guesses.used(NAMES[:2], 8.0))
    follow(*guesses.expired(11.0))
    assert known == set(NAMES[:2])
    follow(*guesses.expired(18.0))
    assert not known


def test_guesses_follow_any_use() -> None:
    draw, guesses, known = random.Random(1), ApproximateIndex(names_max=5, ttl_s=3.0), set[bytes]()
    for now in range(200):
        changed = guesses.used(NAMES[(start := draw.randrange(12)) : start + draw.randrange(9)], float(now))
        assert not known.intersection(changed.stored)
        known.update(changed.stored)
        assert known.issuperset(changed.removed)
        known.difference_update(changed.removed)
        assert len(known) <= 5
