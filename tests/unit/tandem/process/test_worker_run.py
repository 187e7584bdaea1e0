"""The order of a service's life: start, ready, drain, stop; crashes and second signals."""

import asyncio
import io
import json
import logging
from collections.abc import Awaitable, Callable, Mapping

import pytest

from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.errors import TandemError
from tandem.process.health import Health
from tandem.process.logs import EventLines, HumanFormatter, JsonFormatter, event, request
from tandem.process.run import RootEnded, StopSignal, run_service


class Scripted:
    """A service that writes down what happens to it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.crash: BaseException | None = None
        self.crash_after_s = 1.0
        self.returns_after_s: float | None = None
        self.start_error: TandemError | None = None
        self.start_s = 0.0
        self.leave_after_s: float | None = None
        self.drain_s = 0.0

    async def start(self) -> None:
        await asyncio.sleep(self.start_s)
        self.told.append("start")
        if self.start_error is not None:
            raise self.start_error

    def roots(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        return {"worker": self._root}

    async def _root(self) -> None:
        try:
            if self.crash is not None:
                await asyncio.sleep(self.crash_after_s)
                raise self.crash
            await asyncio.sleep(self.returns_after_s if self.returns_after_s is not None else 1e6)
        except asyncio.CancelledError:
            self.told.append("root cancelled")
            raise

    async def serve(self) -> None:
        self.told.append("serve")

    async def drain_requested(self) -> float | None:
        await asyncio.sleep(self.leave_after_s if self.leave_after_s is not None else 1e6)
        return 7.0

    async def drain(self, within_s: float) -> None:
        self.told.append(f"drain {within_s:g}")
        await asyncio.sleep(self.drain_s)
        self.told.append("drained")

    def held(self) -> Mapping[str, int]:
        return {"attempts": 1} if "drained" not in self.told else {}

    async def stop(self) -> None:
        self.told.append("stop")


def live(service: Scripted, *asks_s: float) -> tuple[float, list[str]]:
    """Run a service's life with signals at the given times; how long it took and the stages announced."""
    stream = io.StringIO()

    async def main(loop: VirtualLoop) -> float:
        stop = StopSignal()
        for at in asks_s:
            loop.call_later(at, stop.ask)
        await run_service(service, stop, Health(EventLines(stream)), 30.0)
        return loop.time()

    took = run(main)
    return took, [json.loads(line)["event"] for line in stream.getvalue().splitlines()]


def test_a_signal_drains_then_stops_in_order() -> None:
    service = Scripted()
    service.drain_s = 1.75
    took, stages = live(service, 5.0)
    assert service.told == ["start", "serve", "drain 30", "drained", "root cancelled", "stop"]
    assert took == 6.75
    assert stages == ["ready", "draining", "stopping"]


def test_a_second_signal_hurries() -> None:
    service = Scripted()
    service.drain_s = 20.0
    took, _ = live(service, 5.0, 6.0)
    assert took == 6.0
    assert "drained" not in service.told
    assert service.told[-1] == "stop"


def test_a_drain_that_never_ends_is_bounded() -> None:
    service = Scripted()
    service.drain_s = 1e5
    took, _ = live(service, 5.0)
    assert took == 45.0
    assert service.told[-1] == "stop"


def test_a_peer_can_ask_the_service_to_leave() -> None:
    service = Scripted()
    service.leave_after_s = 3.0
    took, _ = live(service)
    assert took == 3.0
    assert "drain 7" in service.told


def test_a_signal_during_start_ends_it_cleanly() -> None:
    service = Scripted()
    service.start_s = 50.0
    took, stages = live(service, 1.0)
    assert took == 1.0
    assert service.told == ["stop"]
    assert stages == ["stopping"]


def test_a_failed_start_is_raised_after_cleaning_up() -> None:
    service = Scripted()
    service.start_error = TandemError("bad_model", "no weights")
    with pytest.raises(TandemError, match="no weights"):
        live(service)
    assert service.told == ["start", "stop"]


def test_a_crashed_root_task_ends_the_service_with_its_error() -> None:
    service = Scripted()
    service.crash = TandemError("engine_failed", "the step failed")
    with pytest.raises(TandemError, match="the step failed"):
        live(service)
    assert service.told[-1] == "stop"
    assert "drained" not in service.told


def test_a_root_that_loses_its_cancellation_is_cancelled_again() -> None:
    class Stubborn(Scripted):
        async def _root(self) -> None:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                self.told.append("cancelled, and went on")
            await super()._root()

    service = Stubborn()
    took, _ = live(service, 5.0)
    assert service.told[-3:] == ["cancelled, and went on", "root cancelled", "stop"]
    assert took < 20.0


def test_a_root_task_may_not_just_return() -> None:
    service = Scripted()
    service.returns_after_s = 2.0
    with pytest.raises(RootEnded, match="worker ended by itself"):
        live(service)


def test_health_says_why_not_ready() -> None:
    health = Health(EventLines())
    assert health.problem == "the service is starting"
    health.ready()
    assert health.problem is None
    health.draining({"attempts": 3, "exported_blocks": 40})
    assert health.problem is not None
    assert health.problem.endswith("takes no new work; it still holds 3 attempts, 40 exported blocks")
    health.draining({})
    assert health.problem == "the service is leaving and takes no new work"


def test_a_draining_service_says_what_it_holds_when_that_changes() -> None:
    stream = io.StringIO()
    health = Health(EventLines(stream))
    for held in ({"attempts": 2}, {"attempts": 2}, {"attempts": 1}, {}):
        health.draining(held)
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert told == [
        {"event": "draining", "attempts": 2},
        {"event": "draining", "attempts": 1},
        {"event": "draining"},
    ]


def test_logs_carry_fields_and_the_bound_request() -> None:
    stream = io.StringIO()
    log = logging.getLogger("tests.worker_run")
    handler = logging.StreamHandler(stream)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        handler.setFormatter(JsonFormatter())
        with request("r-1"):
            event(log, "fetched", blocks=3)
        handler.setFormatter(HumanFormatter())
        event(log, "fetched", blocks=4)
        event(log, "hidden", level=logging.DEBUG)
    finally:
        log.removeHandler(handler)
    first, second = stream.getvalue().splitlines()
    line = json.loads(first)
    assert (line["event"], line["blocks"], line["request_id"]) == ("fetched", 3, "r-1")
    assert second.endswith("fetched blocks=4")
