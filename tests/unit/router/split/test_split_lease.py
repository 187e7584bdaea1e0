"""Who of several routers decides a split: workers lend the right to one of them, and tell the others."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from router.split.lease import Lease, LeaseSettings
from tandem.core.messages import PublishSplit, RouterMessage, SplitPublished, SplitRecord
from tandem.worker.split_registry import SplitRegistry

SETTINGS = LeaseSettings(lease_s=15.0, listen_s=1.0)


@dataclass
class Router:
    """Looks every second while it runs; what workers tell a paused one waits."""

    name: str
    workers: "list[Worker]"
    lease: Lease = field(init=False)
    waiting: list[SplitPublished] = field(default_factory=list)
    paused: bool = False
    published_at: float = float("-inf")
    term: int = 0

    def __post_init__(self) -> None:
        self.lease = Lease(self.name, SETTINGS)

    def tell(self, message: RouterMessage) -> None:
        assert isinstance(message, SplitPublished)
        self.waiting.append(message)

    def listen(self, now: float) -> None:
        told, self.waiting = self.waiting, []
        for message in told:
            if self.lease.heard(message.record, message.left_s, now):
                self.publish(now, 0.0)

    def look(self, now: float) -> None:
        held = self.lease.holds
        if self.lease.look(now) and (not held or now >= self.published_at + 5.0):
            self.publish(now, SETTINGS.lease_s)

    def publish(self, now: float, lease_s: float) -> None:
        self.published_at = now
        if lease_s:
            self.term = self.lease.term
        record = SplitRecord(self.term, self.name, (self.name,))
        for worker in self.workers:
            worker.take(self, PublishSplit(record, lease_s), now)


@dataclass
class Worker:
    routers: list[Router] = field(default_factory=list)
    board: SplitRegistry = field(default_factory=SplitRegistry)
    up: bool = True

    def take(self, sender: Router, command: PublishSplit, now: float) -> None:
        if not self.up:
            return
        before = self.board.record
        self.board.publish(command, sender, self.routers, now)
        after = self.board.record
        assert before is None or after is not None
        if before is not None and after is not None and before.holder != after.holder:
            assert (after.term, after.holder) > (before.term, before.holder), "an older record replaced a newer one"


def fleet(routers: int, workers: int) -> tuple[list[Router], list[Worker]]:
    of_fleet = [Worker() for _ in range(workers)]
    deciding = [Router(f"r{number}", of_fleet) for number in range(routers)]
    for worker in of_fleet:
        worker.routers = deciding
    return deciding, of_fleet


def run(routers: list[Router], since: float, seconds: int) -> float:
    for second in range(seconds):
        now = since + second
        for router in routers:
            if not router.paused:
                router.listen(now)
                router.look(now)
    for router in routers:
        if not router.paused:
            router.listen(since + seconds)
    return since + seconds


def holders(routers: list[Router]) -> list[str]:
    return [router.name for router in routers if router.lease.holds and not router.paused]


def test_a_router_alone_decides_after_a_moment_of_listening() -> None:
    (router,), (worker,) = fleet(1, 1)
    assert not router.lease.look(0.0)
    assert not router.lease.look(0.9)
    assert router.lease.look(4.0)
    router.publish(4.0, 15.0)
    assert worker.board.record is not None
    assert (worker.board.record.term, worker.board.record.holder) == (1, "r0")


def test_of_several_one_decides_and_the_others_follow_it() -> None:
    routers, _ = fleet(3, 4)
    run(routers, 0.0, 40)
    assert len(holders(routers)) == 1
    assert len({router.lease.record.holder for router in routers if router.lease.record is not None}) == 1


def test_what_is_lost_is_taken_over_and_a_paused_holder_overwrites_nothing() -> None:
    routers, workers = fleet(2, 3)
    now = run(routers, 0.0, 40)
    (first,) = holders(routers)
    paused = next(router for router in routers if router.name == first)
    other = next(router for router in routers if router.name != first)
    paused.paused = True
    now = run(routers, now, 10)
    assert not other.lease.holds, "the lease has not lapsed yet"
    assert other.lease.record is not None
    assert other.lease.record.holder == first, "the last split stays"
    now = run(routers, now, 20)
    assert other.lease.holds
    # It goes on where it was stopped: it publishes what it had decided before it has heard anything.
    paused.paused = False
    record = SplitRecord(paused.lease.term, paused.name, ("old",))
    for worker in workers:
        worker.take(paused, PublishSplit(record, 15.0), now)
        assert worker.board.record is not None
        assert worker.board.record.holder == other.name
    assert not paused.lease.look(now), "its time is over"
    run(routers, now, 10)
    assert holders(routers) == [other.name]


def test_two_that_claimed_at_once_end_with_one() -> None:
    routers, workers = fleet(2, 2)
    for router, worker in zip(routers, workers, strict=True):
        router.lease.look(0.0)
        assert router.lease.look(4.0)
        router.workers = [worker]
        router.publish(4.0, 15.0)
        router.workers = workers
    assert holders(routers) == ["r0", "r1"]
    run(routers, 5.0, 40)
    (holder,) = holders(routers)
    assert {worker.board.record.holder for worker in workers if worker.board.record is not None} == {holder}


def test_a_lease_is_bounded_and_ends_at_once_where_it_is_given_back() -> None:
    board, heard = SplitRegistry(), Router("r", [])
    board.publish(PublishSplit(SplitRecord(1, "a", ()), 1e9), heard, (heard,), 0.0)
    assert heard.waiting[-1].left_s <= 60.0
    board.publish(PublishSplit(SplitRecord(9, "b", ()), 15.0), heard, (heard,), 1.0)
    assert heard.waiting[-1].record.holder == "a", "whatever its term, another one waits"
    board.publish(PublishSplit(SplitRecord(1, "a", ()), 0.0), heard, (heard,), 1.0)
    assert heard.waiting[-1].left_s == 0.0
    board.publish(PublishSplit(SplitRecord(9, "b", ()), 15.0), heard, (heard,), 1.0)
    assert heard.waiting[-1].record.holder == "b"


@settings(max_examples=60, deadline=None)
@given(
    routers=st.integers(1, 4),
    workers=st.integers(1, 4),
    events=st.lists(
        st.tuples(
            st.sampled_from(["pause", "resume", "down", "up", "restart"]), st.integers(0, 3), st.integers(1, 25)
        ),
        max_size=12,
    ),
)
def test_whatever_stops_in_between_one_decides_in_the_end(
    routers: int, workers: int, events: list[tuple[str, int, int]]
) -> None:
    deciding, of_fleet = fleet(routers, workers)
    now = run(deciding, 0.0, 5)
    for kind, which, seconds in events:
        router, worker = deciding[which % routers], of_fleet[which % workers]
        if kind in ("pause", "resume"):
            router.paused = kind == "pause"
        elif kind == "restart":
            worker.board = SplitRegistry()
        else:
            worker.up = kind == "up"
        now = run(deciding, now, seconds)
    for router in deciding:
        router.paused = False
    for worker in of_fleet:
        worker.up = True
    run(deciding, now, 60)
    (holder,) = holders(deciding)
    assert {worker.board.record.holder for worker in of_fleet if worker.board.record is not None} == {holder}
