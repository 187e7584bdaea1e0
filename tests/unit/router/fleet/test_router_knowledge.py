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
from router.fleet.orphaned_holders import IndexScope
from router.fleet.peer import Peer
from router.placement.view import WorkerView
from router.settings import FleetSettings
from tandem.core.messages import Hello, KvDelta, KvSnapshot
from tandem.engine.protocol import KvChange
from tandem.link.protocol import RouterLink
from tandem.worker.block_events import BlockEvents
from tests.worlds.redis_stage import hello

SCOPE = IndexScope("", "m")
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
    assert blocks.leading(NAMES, SCOPE) == {"near": Held(2, 2)}
    await blocks.seek(NAMES, SCOPE)
    assert blocks.leading(NAMES, SCOPE) == {"near": Held(2, 2), "far": redis(7)}, "a link knows better than Redis"
    (view,) = blocks.beyond(NAMES, SCOPE)
    assert (view.worker_id, view.role, view.epoch) == ("far", "store", 3)
    holder = blocks.holder("far", SCOPE)
    assert holder is not None
    assert (holder.epoch, holder.addresses_by("")) == (3, ("tcp://far:1",))
    clock.time = 6.0
    assert blocks.leading(NAMES, SCOPE) == {"near": Held(2, 2)}, "an old answer is not believed"


class Services(Shared):
    """An index with the records of several services."""

    def __init__(self, told: Mapping[str, Mapping[str, RedisHolder]]) -> None:
        super().__init__({})
        self.by_service = told

    def holders(self, service: str = "") -> frozenset[str]:
        return frozenset(self.by_service[service])

    async def longest(self, names: Sequence[bytes], service: str = "") -> Mapping[str, RedisHolder]:
        return self.by_service[service]


def record(worker_id: str, model: str, address: str) -> RedisHolder:
    told = msgspec.structs.replace(hello(worker_id), model=model, addresses=(address,))
    return RedisHolder(told, redis(7))


async def test_what_one_service_records_says_nothing_of_the_holders_of_another() -> None:
    """Not even of a worker of the same name and for the same prompt: its tickets would go to another's address."""
    mine, theirs = IndexScope("a.svc", "a/m"), IndexScope("b.svc", "b/m")
    shared = Services(
        {
            "a.svc": {"store": record("store", "a/m", "tcp://a:1")},
            "b.svc": {"store": record("store", "b/m", "tcp://b:1"), "other": record("other", "b/m", "tcp://b:2")},
        }
    )
    for order in ((mine, theirs), (theirs, mine)):
        blocks, _ = knowledge(shared=shared)
        for scope in order:
            await blocks.seek(NAMES, scope)
        for scope, address in ((mine, "tcp://a:1"), (theirs, "tcp://b:1")):
            holder = blocks.holder("store", scope)
            assert holder is not None
            assert holder.addresses_by("") == (address,)
        assert blocks.leading(NAMES, mine) == {"store": redis(7)}
        assert [view.worker_id for view in blocks.beyond(NAMES, mine)] == ["store"]
        assert blocks.holder("other", mine) is None
        assert set(blocks.leading(NAMES, theirs)) == {"store", "other"}


async def test_a_record_for_another_model_than_the_services_is_refused() -> None:
    told = {"far": record("far", "a/m", "tcp://b:1"), "near": record("near", "b/m", "tcp://b:2")}
    blocks, _ = knowledge(shared=Services({"b.svc": told, "a.svc": {}}))
    scope = IndexScope("b.svc", "b/m")
    await blocks.seek(NAMES, scope)
    assert blocks.leading(NAMES, scope) == {"near": redis(7)}
    assert [view.worker_id for view in blocks.beyond(NAMES, scope)] == ["near"]
    assert blocks.holder("far", scope) is None
    assert blocks.holder("far", IndexScope("a.svc", "a/m")) is None


async def test_a_service_that_records_ever_new_holders_does_not_fill_the_router() -> None:
    told: dict[str, RedisHolder] = {}
    shared = Services({"a.svc": {"w": record("w", "a/m", "tcp://a:1")}, "b.svc": told})
    blocks, _ = knowledge(shared=shared)
    mine, theirs = IndexScope("a.svc", "a/m"), IndexScope("b.svc", "b/m")
    await blocks.seek(NAMES, mine)
    for number in range(1100):
        told.clear()
        told[f"w{number}"] = record(f"w{number}", "b/m", "tcp://b:1")
        await blocks.seek(NAMES, theirs)
    assert blocks.holder("w0", theirs) is None
    assert blocks.holder("w1099", theirs) is not None
    assert blocks.holder("w", mine) is not None


async def test_a_worker_whose_feed_has_a_gap_is_looked_up_meanwhile() -> None:
    shared = Shared({"w": RedisHolder(hello("w", 1), redis(4))})
    worker = peer_of(hello("w", 1))
    blocks, _ = knowledge(worker, shared=shared)
    await blocks.seek(NAMES, SCOPE)
    assert blocks.leading(NAMES, SCOPE) == {"w": redis(4)}
    assert blocks.beyond(NAMES, SCOPE) == ()
    worker.feed.take(KvSnapshot(1, 0, b"", True))
    assert blocks.leading(NAMES, SCOPE) == {}
    shared.asked = 0
    await blocks.seek(NAMES, SCOPE)
    assert shared.asked == 0, "nobody asks while links tell of everybody"


async def test_another_incarnation_of_a_linked_worker_is_not_believed() -> None:
    blocks, _ = knowledge(peer_of(hello("w", 2)), shared=Shared({"w": RedisHolder(hello("w", 1), redis(4))}))
    await blocks.seek(NAMES, SCOPE)
    assert blocks.leading(NAMES, SCOPE) == {}


def test_what_was_sent_to_a_worker_that_tells_nothing_is_known_approximately() -> None:
    silent = peer_of(msgspec.structs.replace(hello("w", 1), kv_events=False))
    telling = peer_of(hello("v", 1))
    blocks, _ = knowledge(silent, telling)
    blocks.sent(silent, NAMES[:5])
    blocks.sent(telling, NAMES)
    assert blocks.leading(NAMES, SCOPE) == {"w": Held(5, 5, known_by="approximate")}
    blocks.forget("w")
    assert blocks.leading(NAMES, SCOPE) == {}


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
