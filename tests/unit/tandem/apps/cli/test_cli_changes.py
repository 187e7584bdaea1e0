"""Changes of a running platform on virtual time: what they mean, their order, and their bounds."""

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.apps.cli.change_summary import sentences
from tandem.apps.cli.member import DrainReport, Member
from tandem.apps.cli.operations import Change, DrainedWorker, Operations, OperationsDeps
from tandem.apps.cli.scaling import scaling, worker_called
from tandem.apps.cli.stopping import StopTimes
from tandem.apps.cli.supervisor import ROUTER, Supervisor
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.errors import TandemError
from tandem.process.processes import Command
from tandem.spec.pool import Pool

POOLS = (Pool("prefill", "prefill", 1), Pool("decode", "decode", 2))


def member(name: str, role: str) -> Member:
    return Member(Command(name, [name], {}), role)


@dataclass
class Worker:
    """A process that drains for `drain_s` when it is asked to by its router, or by a signal; `deaf` to the router."""

    pid: int
    name: str
    drain_s: float
    deaf: bool
    signals: list[tuple[float, int]] = field(default_factory=list)
    status: "asyncio.Future[int]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    printed: "asyncio.Queue[str | None]" = field(default_factory=asyncio.Queue)

    def say(self, event: str, **fields: object) -> None:
        self.printed.put_nowait(json.dumps({"event": event, **fields}))

    def drain(self) -> None:
        self.say("draining", attempts=3)
        asyncio.get_running_loop().call_later(self.drain_s, self.leave)

    def leave(self) -> None:
        self.say("drained", finished=2, taken=1, cut=0)
        self.end(0)

    def signal(self, number: int) -> None:
        if self.status.done():
            return
        terms = sum(sent == signal.SIGTERM for _, sent in self.signals)
        self.signals.append((asyncio.get_running_loop().time(), number))
        if number == signal.SIGKILL:
            self.end(-number)
        elif terms == 0:
            self.drain()

    def end(self, status: int) -> None:
        if not self.status.done():
            self.status.set_result(status)
            self.printed.put_nowait(None)

    async def lines(self) -> Sequence[str] | None:
        line = await self.printed.get()
        return None if line is None else [line]

    async def wait(self) -> int:
        return await asyncio.shield(self.status)


class Machine:
    """Starts workers, and is the router that passes drains on. `broken` ones end before they are ready."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.drains: list[dict[str, float]] = []
        self.broken: set[str] = set()
        self.silent: set[str] = set()
        self.deaf: set[str] = set()
        self.drain_s = 1.0

    async def start(self, command: Command) -> Worker:
        worker = Worker(len(self.workers), command.name, self.drain_s, command.name in self.deaf)
        self.workers.append(worker)
        if command.name in self.broken:
            worker.say("failed", message="no such model")
            asyncio.get_running_loop().call_later(0.5, worker.end, 1)
        elif command.name not in self.silent:
            worker.say("listening", address=f"a:{worker.pid}")
            worker.say("ready")
        return worker

    def publish(self, addresses: Sequence[str], drains: Mapping[str, float]) -> None:
        for worker in self.workers:
            address = f"a:{worker.pid}"
            if address in drains and address not in (self.drains[-1] if self.drains else {}) and not worker.deaf:
                worker.drain()
        self.drains.append(dict(drains))

    def lives(self, name: str) -> list[Worker]:
        return [worker for worker in self.workers if worker.name == name]


@dataclass
class Stage:
    machine: Machine
    supervisor: Supervisor
    operations: Operations
    said: list[str]
    serving: "asyncio.Task[None]"

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.supervisor.members]


def on_stage(act: Callable[[Stage], Awaitable[None]], machine: Machine | None = None) -> None:
    """Run `act` beside a supervisor of a router, a prefill and two decode workers."""

    async def main(loop: VirtualLoop) -> None:
        used, clock, moved = machine or Machine(), LoopClock(loop), [0]
        members = [member("router", ROUTER), member("prefill-0", "prefill")]
        members += [member(f"decode-{index}", "decode") for index in range(2)]
        times = StopTimes(drain_s=5.0, hurry_s=2.0, ask_s=2.0)
        supervisor = Supervisor(used, members, used, clock, lambda _member, _sentence: None, times=times)

        async def count() -> int | None:
            moved[0] += 1
            return moved[0]

        async def linked() -> None:
            return None

        make = lambda pool, index: member(f"{pool.name}-{index}", pool.role)  # noqa: E731
        operations = Operations(supervisor, OperationsDeps(POOLS, make, linked, count, 20.0), clock)
        stage = Stage(used, supervisor, operations, [], loop.create_task(supervisor.run()))
        await supervisor.all_ready()
        await act(stage)
        supervisor.stop()
        await stage.serving

    run(main, limit_s=3600)


def test_the_newest_leaves_and_the_next_number_comes() -> None:
    members = [member("router", ROUTER), *(member(f"decode-{index}", "decode") for index in (0, 1, 3))]
    assert scaling(POOLS, members, {"decode": 1}).leave == ("decode-3", "decode-1")
    plan = scaling(POOLS, members, {"decode": 5, "prefill": 1})
    assert [(start.pool.name, start.index) for start in plan.start] == [("decode", 4), ("decode", 5), ("prefill", 0)]
    assert scaling(POOLS, members, {"decode": 3}) == scaling(POOLS, members, {})


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_a_plan_leads_to_what_was_wanted_or_is_refused(prefill: int, decode: int, to_p: int, to_d: int) -> None:
    there = [member(f"prefill-{index}", "prefill") for index in range(prefill)]
    there += [member(f"decode-{index}", "decode") for index in range(decode)]
    try:
        plan = scaling(POOLS, there, {"prefill": to_p, "decode": to_d})
    except TandemError:
        assert to_d == 0
        return
    names = {each.name for each in there} - set(plan.leave) | {
        f"{start.pool.name}-{start.index}" for start in plan.start
    }
    assert sum(name.startswith("prefill") for name in names) == to_p
    assert sum(name.startswith("decode") for name in names) == to_d
    assert not plan.start or not {start.pool.name for start in plan.start} & {name[:-2] for name in plan.leave}


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"decode": 0}, "no worker would be left that can decode"),
        ({"encode": 1}, "there is no pool 'encode'; there are prefill, decode"),
        ({"decode": -1}, "decode=-1 is not between 0 and 256"),
        ({"decode": 1000}, "decode=1000 is not between 0 and 256"),
    ],
)
def test_what_cannot_be_is_refused(wanted: dict[str, int], sentence: str) -> None:
    with pytest.raises(TandemError, match=sentence):
        scaling(POOLS, [member("decode-0", "decode")], wanted)


def test_only_a_worker_that_runs_can_be_drained() -> None:
    one = member("decode-0", "decode")
    for state, pid, sentence in (("restarting", None, "only a worker that runs"), ("loading", 5, "is loading")):
        one.state, one.pid = state, pid
        with pytest.raises(TandemError, match=sentence):
            worker_called([one], "decode-0")
    one.state, one.pid, one.drain_within_s = "ready", 5, 3.0
    with pytest.raises(TandemError, match="is leaving already"):
        worker_called([one], "decode-0")
    with pytest.raises(TandemError, match="there is no worker 'router'; there are decode-0"):
        worker_called([member("router", ROUTER), one], "router")


def test_scaling_down_drains_by_the_router_and_removes() -> None:
    async def act(stage: Stage) -> None:
        change = await stage.operations.scale({"decode": 1}, 10.0, stage.said.append)
        assert stage.names == ["router", "prefill-0", "decode-0"]
        (worker,) = stage.machine.lives("decode-1")
        assert worker.signals == []
        assert {f"a:{worker.pid}": 10.0} in stage.machine.drains
        (left,) = change.left
        assert left == DrainedWorker("decode-1", left.took_s, True, 2, 1, 0)
        assert left.took_s == pytest.approx(1.0, abs=0.2)
        assert change.workers == ("prefill-0", "decode-0")
        assert change.moved == 1
        assert "decode-1 holds 3 attempts" in stage.said
        await asyncio.sleep(60)
        assert len(stage.machine.lives("decode-1")) == 1

    on_stage(act)


def test_scaling_up_waits_until_all_are_ready() -> None:
    async def act(stage: Stage) -> None:
        change = await stage.operations.scale({"decode": 3, "prefill": 2}, 10.0, stage.said.append)
        assert set(change.started) == {"decode-2", "prefill-1"}
        assert {each.name for each in stage.supervisor.members if each.state == "ready"} == set(stage.names)
        stage.machine.lives("decode-2")[0].end(1)
        await asyncio.sleep(5)
        assert len(stage.machine.lives("decode-2")) == 2

    on_stage(act)


def test_a_drained_worker_comes_back_at_once_as_a_new_process() -> None:
    async def act(stage: Stage) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            began = loop.time()
            change = await stage.operations.drain("decode-0", 10.0, False, stage.said.append)
            assert change.left[0].finished == 2
            await stage.supervisor.all_ready()
            assert loop.time() - began < 1.5
        assert len(stage.machine.lives("decode-0")) == 4
        assert stage.names == ["router", "prefill-0", "decode-0", "decode-1"]

    on_stage(act)


def test_who_does_not_hear_the_router_is_signalled_and_who_does_not_leave_is_killed() -> None:
    machine = Machine()
    machine.deaf.add("decode-1")
    machine.drain_s = 500.0

    async def act(stage: Stage) -> None:
        (worker,) = stage.machine.lives("decode-1")
        began = asyncio.get_running_loop().time()
        change = await stage.operations.drain("decode-1", 10.0, True, stage.said.append)
        assert [number for _, number in worker.signals] == [signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]
        assert [at - began for at, _ in worker.signals] == pytest.approx([2.0, 14.0, 16.0], abs=0.3)
        assert change.left[0].finished is None
        machine.drain_s = 0.1
        for each in stage.machine.workers:
            each.drain_s = 0.1

    on_stage(act, machine)


def test_a_worker_that_cannot_start_does_not_end_the_others() -> None:
    machine = Machine()
    machine.broken.add("decode-2")

    async def act(stage: Stage) -> None:
        with pytest.raises(TandemError, match="no such model"):
            await stage.operations.scale({"decode": 3}, 10.0, stage.said.append)
        assert stage.names == ["router", "prefill-0", "decode-0", "decode-1"]
        machine.broken.clear()
        await stage.operations.scale({"decode": 3}, 10.0, stage.said.append)
        assert stage.names[-1] == "decode-2"

    on_stage(act, machine)


def test_a_worker_that_never_becomes_ready_is_given_up() -> None:
    machine = Machine()
    machine.silent.add("decode-2")

    async def act(stage: Stage) -> None:
        with pytest.raises(TandemError, match="decode-2 was not ready within 20 s"):
            await stage.operations.scale({"decode": 3}, 10.0, stage.said.append)
        assert stage.names == ["router", "prefill-0", "decode-0", "decode-1"]

    on_stage(act, machine)


def test_changes_wait_for_each_other() -> None:
    async def act(stage: Stage) -> None:
        one = asyncio.create_task(stage.operations.drain("decode-0", 10.0, True, stage.said.append))
        await asyncio.sleep(0.1)
        with pytest.raises(TandemError, match="no worker would be left that can decode"):
            await stage.operations.drain("decode-1", 10.0, True, stage.said.append)
        assert "another change is under way; waiting for its end" in stage.said
        await one

    on_stage(act)


def test_stopping_in_the_middle_of_a_change_stops_everything() -> None:
    machine = Machine()
    machine.drain_s = 3.0

    async def act(stage: Stage) -> None:
        change = asyncio.create_task(stage.operations.scale({"decode": 1, "prefill": 2}, 10.0, stage.said.append))
        await asyncio.sleep(0.5)
        stage.supervisor.stop()
        await stage.serving
        await asyncio.gather(change, return_exceptions=True)
        assert all(worker.status.done() for worker in machine.workers)
        with pytest.raises(TandemError, match="the platform is stopping"):
            await stage.operations.scale({"decode": 5}, 10.0, stage.said.append)

    on_stage(act, machine)


@pytest.mark.parametrize("within_s", [-1.0, 3601.0, float("nan"), float("inf")])
def test_a_bound_has_bounds(within_s: float) -> None:
    async def act(stage: Stage) -> None:
        with pytest.raises(TandemError, match="within_s is"):
            await stage.operations.drain("decode-0", within_s, False, stage.said.append)

    on_stage(act)


def test_event_lines_of_a_leaving_worker() -> None:
    one = member("decode-0", "decode")
    one.take('{"event": "draining", "attempts": 3, "exported_blocks": 40}')
    assert (one.state, one.note) == ("draining", "holds 3 attempts, 40 exported blocks")
    one.take('{"event": "draining"}')
    assert (one.state, one.note) == ("draining", "")
    one.take('{"event": "drained", "finished": 5, "taken": 1, "cut": 0}')
    assert one.farewell == DrainReport(5, 1, 0)


def test_a_change_in_words() -> None:
    change = Change(
        ("decode-2",),
        (
            DrainedWorker("decode-1", 1.26, True, 3, 2, 1),
            DrainedWorker("decode-0", 0.1, False),
            DrainedWorker("p", 0.2, False, 0, 0, 0),
        ),
        2,
        ("prefill-0", "decode-0"),
    )
    assert sentences(change) == [
        "decode-2 was started",
        "decode-1 left after 1.3 s and was removed; 3 finished there, 2 given back to the router, to move or because "
        "the client left, 1 cut off at the bound, to be resumed elsewhere",
        "decode-0 left after 0.1 s and starts again; it could not say what became of its streams",
        "p left after 0.2 s and starts again; no stream was running there",
        "2 streams went on on another worker",
        "running now: prefill-0, decode-0",
    ]
