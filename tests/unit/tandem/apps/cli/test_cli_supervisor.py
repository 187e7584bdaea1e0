"""The supervisor on virtual time: everything starts, crashes are restarted with backoff, stopping is in order."""

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.apps.cli.member import Member
from tandem.apps.cli.restart import RestartPolicy, exit_reason
from tandem.apps.cli.stopping import StopTimes
from tandem.apps.cli.supervisor import ROUTER, Supervisor
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.errors import TandemError
from tandem.process.processes import Command


@dataclass
class FakeProcess:
    """Ends when told to, or `stops_after_s` after SIGTERM; None ignores SIGTERM."""

    pid: int
    name: str
    journal: list[tuple[float, str, str]]
    stops_after_s: float | None
    status: "asyncio.Future[int]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    printed: "asyncio.Queue[str | None]" = field(default_factory=asyncio.Queue)

    def say(self, event: str, **fields: object) -> None:
        self.printed.put_nowait(json.dumps({"event": event, **fields}))

    def signal(self, number: int) -> None:
        if self.status.done():
            return
        loop = asyncio.get_running_loop()
        self.journal.append((loop.time(), self.name, signal.Signals(number).name))
        if number == signal.SIGKILL:
            self.end(-number)
        elif self.stops_after_s is not None:
            loop.call_later(self.stops_after_s, self.end, 0)

    def end(self, status: int) -> None:
        if not self.status.done():
            self.status.set_result(status)
            self.printed.put_nowait(None)

    async def lines(self) -> Sequence[str] | None:
        line = await self.printed.get()
        return None if line is None else [line]

    async def wait(self) -> int:
        return await asyncio.shield(self.status)


class FakeControl:
    """Starts `FakeProcess`es; workers announce themselves unless `silent`."""

    def __init__(self, stops_after_s: float | None = 0.1) -> None:
        self.journal: list[tuple[float, str, str]] = []
        self.processes: list[FakeProcess] = []
        self.silent: set[str] = set()
        self.stops_after_s = stops_after_s

    async def start(self, command: Command) -> FakeProcess:
        pid = 100 + len(self.processes)
        process = FakeProcess(pid, command.name, self.journal, self.stops_after_s)
        self.processes.append(process)
        self.journal.append((asyncio.get_running_loop().time(), command.name, "start"))
        if command.name not in self.silent:
            process.say("listening", address=f"127.0.0.1:{pid}")
            process.say("loading", fraction=0.5)
            process.say("ready")
        return process

    def last(self, name: str) -> FakeProcess:
        return next(process for process in reversed(self.processes) if process.name == name)


class Fleet:
    def __init__(self) -> None:
        self.published: list[tuple[str, ...]] = []
        self.drains: dict[str, float] = {}

    def publish(self, addresses: Sequence[str], drains: Mapping[str, float]) -> None:
        self.published.append(tuple(addresses))
        self.drains = dict(drains)


@dataclass
class Stage:
    control: FakeControl
    fleet: Fleet
    sentences: list[str]
    supervisor: Supervisor
    serving: "asyncio.Task[None]"


def on_stage(act: Callable[[Stage], Awaitable[None]], control: FakeControl | None = None) -> Stage:
    """Run `act` beside a supervisor of a router and two workers, on virtual time."""
    kept: list[Stage] = []

    async def main(loop: VirtualLoop) -> None:
        used = control or FakeControl()
        roles = {"router": ROUTER, "prefill-0": "prefill", "decode-0": "decode"}
        members = [Member(Command(name, [name], {}), role) for name, role in roles.items()]
        sentences: list[str] = []
        fleet = Fleet()
        supervisor = Supervisor(
            used,
            members,
            fleet,
            LoopClock(loop),
            lambda member, sentence: sentences.append(sentence) if sentence else None,
            times=StopTimes(drain_s=10.0, hurry_s=2.0),
        )
        stage = Stage(used, fleet, sentences, supervisor, loop.create_task(supervisor.run()))
        kept.append(stage)
        await act(stage)

    run(main, limit_s=3600)
    return kept[0]


def test_all_start_at_once_and_the_fleet_is_published() -> None:
    async def act(stage: Stage) -> None:
        await stage.supervisor.all_ready()
        stage.supervisor.stop()
        await stage.serving

    stage = on_stage(act)
    assert [entry for entry in stage.control.journal if entry[2] == "start"] == [
        (0.0, "router", "start"),
        (0.0, "prefill-0", "start"),
        (0.0, "decode-0", "start"),
    ]
    assert stage.fleet.published[0] == ()
    assert ("127.0.0.1:101", "127.0.0.1:102") in stage.fleet.published
    assert stage.fleet.published[-1] == ()
    assert sorted(stage.sentences[:3]) == ["decode-0 is ready", "prefill-0 is ready", "router is ready"]


def test_the_router_stops_before_the_workers() -> None:
    async def act(stage: Stage) -> None:
        await stage.supervisor.all_ready()
        stage.supervisor.stop()
        await stage.serving

    signals = [(name, what) for _, name, what in on_stage(act).control.journal if what != "start"]
    assert signals == [("router", "SIGTERM"), ("prefill-0", "SIGTERM"), ("decode-0", "SIGTERM")]


def test_a_crashed_worker_leaves_the_fleet_and_comes_back_with_growing_waits() -> None:
    async def act(stage: Stage) -> None:
        await stage.supervisor.all_ready()
        for _ in range(4):
            stage.control.last("decode-0").end(-9)
            await asyncio.sleep(0.01)
            assert stage.fleet.published[-1] == ("127.0.0.1:101",)
            await stage.supervisor.all_ready()
        stage.supervisor.stop()
        await stage.serving

    stage = on_stage(act)
    starts = [at for at, name, what in stage.control.journal if (name, what) == ("decode-0", "start")]
    waits = [after - before for before, after in pairwise(starts)]
    assert waits == pytest.approx([0.5, 1.0, 2.0, 4.0], abs=0.05)
    assert "decode-0 was killed by signal 9; starting it again in 0.5 s" in stage.sentences


def test_a_long_life_forgives_earlier_crashes() -> None:
    async def act(stage: Stage) -> None:
        await stage.supervisor.all_ready()
        for _ in range(3):
            await asyncio.sleep(100)
            stage.control.last("decode-0").end(1)
            await asyncio.sleep(0.01)
            await stage.supervisor.all_ready()
        stage.supervisor.stop()
        await stage.serving

    said = [sentence for sentence in on_stage(act).sentences if "starting it again" in sentence]
    assert said == ["decode-0 exited with status 1; starting it again in 0.5 s"] * 3


def test_a_worker_that_never_was_ready_ends_everything_with_its_own_sentence() -> None:
    control = FakeControl()
    control.silent.add("decode-0")

    async def act(stage: Stage) -> None:
        await asyncio.sleep(1)
        stage.control.last("decode-0").say("failed", code="bad_model", message="config.json has no hidden_size")
        await asyncio.sleep(0)
        stage.control.last("decode-0").end(1)
        with pytest.raises(TandemError, match=r"^config.json has no hidden_size$") as caught:
            await stage.serving
        assert caught.value.param == "decode-0"

    stage = on_stage(act, control)
    assert all(process.status.done() for process in stage.control.processes)


def test_without_a_sentence_the_exit_status_is_told() -> None:
    control = FakeControl()
    control.silent.add("prefill-0")

    async def act(stage: Stage) -> None:
        await asyncio.sleep(1)
        stage.control.last("prefill-0").end(7)
        with pytest.raises(TandemError, match="prefill-0 exited with status 7"):
            await stage.serving

    on_stage(act, control)


def test_who_ignores_the_signal_is_signalled_again_and_then_killed() -> None:
    async def act(stage: Stage) -> None:
        await stage.supervisor.all_ready()
        stage.supervisor.stop()
        await stage.serving

    journal = on_stage(act, FakeControl(stops_after_s=None)).control.journal
    router = [(round(at, 1), what) for at, name, what in journal if name == "router" and what != "start"]
    assert [what for _, what in router] == ["SIGTERM", "SIGTERM", "SIGKILL"]
    assert [at for at, _ in router] == pytest.approx([0.0, 10.0, 12.0], abs=0.2)


def test_hurrying_does_not_wait_for_the_drain() -> None:
    async def act(stage: Stage) -> None:
        await stage.supervisor.all_ready()
        stage.supervisor.stop()
        await asyncio.sleep(1)
        stage.supervisor.hurry()
        await stage.serving
        assert asyncio.get_running_loop().time() < 7

    on_stage(act, FakeControl(stops_after_s=None))


def test_stopping_while_a_restart_is_pending_starts_nothing_more() -> None:
    async def act(stage: Stage) -> None:
        await stage.supervisor.all_ready()
        stage.control.last("decode-0").end(1)
        await asyncio.sleep(0.1)
        stage.supervisor.stop()
        await stage.serving

    stage = on_stage(act)
    assert len(stage.control.processes) == 3


@given(st.integers(1, 10_000))
def test_restart_waits_are_bounded(exits: int) -> None:
    policy = RestartPolicy(first_s=0.5, max_s=30.0)
    assert 0.5 <= policy.wait_s(exits) <= 30.0


def test_exit_reasons() -> None:
    assert exit_reason(-11) == "was killed by signal 11"
    assert exit_reason(3) == "exited with status 3"


def test_lines_that_are_no_events_are_ignored() -> None:
    member = Member(Command("w", ["w"], {}), "decode")
    for line in ("hello", "{broken", '{"a": 1}', "[1]", '{"event": "loading", "fraction": "x"}'):
        member.take(line)
    assert member.address == ""
    assert member.loaded is None
