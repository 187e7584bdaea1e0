"""Closed loops, interrupted replays and seeds of `tandem bench`, against the stub server."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from tandem.apps.bench.outcome import Outcome
from tandem.apps.bench.replay import ClosedLoop, replay
from tandem.apps.bench.workload import Item, Piece, Workload
from tandem.apps.cli.bench import trial_seed
from tandem.apps.cli.main import main
from tandem.apps.client.http import Target
from tandem.core.slo import End
from tests.unit.tandem.apps.bench.test_bench_replay import Request, StubServer, running, server, settings, workload

__all__ = ["running", "server"]

_WAIT_S = 60.0


def hang_after(stub: StubServer, answered: int) -> None:
    """The stub gives the first `answered` requests whole answers and lets the others hang."""

    def fault(_request: Request) -> None:
        stub.fault = "hang" if len(stub.requests) > answered else ""

    stub.refuse = fault


async def test_a_closed_loop_has_as_many_open_requests_as_clients(server: tuple[StubServer, Target]) -> None:
    _, target = server
    outcomes = await replay(target, workload(30), settings(closed=ClosedLoop(3)), lambda outcome: None)
    assert [outcome.error for outcome in outcomes] == [None] * 30
    edges = sorted(
        edge for outcome in outcomes for edge in ((outcome.sent_s, 1), (outcome.end_s, -1)) if outcome.first_s
    )
    opened = most = 0
    for _, change in edges:
        opened += change
        most = max(most, opened)
    assert 1 < most <= 3


async def test_a_client_thinks_between_an_answer_and_its_next_request(server: tuple[StubServer, Target]) -> None:
    _, target = server
    closed = ClosedLoop(1, think_s=0.05)
    outcomes = await replay(target, workload(4), settings(closed=closed), lambda outcome: None)
    for before, after in pairwise(outcomes):
        assert after.scheduled_s >= before.end_s + 0.05 - 0.005


async def test_clients_do_not_think_when_nothing_is_left_to_ask(server: tuple[StubServer, Target]) -> None:
    _, target = server
    closed = ClosedLoop(1, think_s=600.0)
    async with asyncio.timeout(_WAIT_S):
        outcomes = await replay(target, workload(1), settings(closed=closed), lambda outcome: None)
    assert outcomes[0].ok


@pytest.mark.parametrize("closed", [None, ClosedLoop(2)])
async def test_a_cancelled_replay_tells_what_was_due(
    server: tuple[StubServer, Target], closed: ClosedLoop | None
) -> None:
    stub, target = server
    hang_after(stub, 6)
    far = Item(3600.0, (Piece(99, 6),), 5)
    due = workload(20).items
    heard: list[Outcome] = []
    run = asyncio.create_task(
        replay(target, Workload("w", (*due, far)), settings(closed=closed, in_flight_max=4), heard.append)
    )
    await waited(lambda: len(stub.requests) >= (8 if closed else 10) and sum(one.ok for one in heard) >= 6)
    await asyncio.sleep(0.1)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    ends = [outcome.end for outcome in heard]
    assert (ends.count(End.DONE), ends.count(End.UNFINISHED)) == (6, 2 if closed else 14)
    await waited(lambda: stub.dropped == (2 if closed else 4))


@pytest.mark.parametrize(
    ("number", "status", "load"),
    [
        (signal.SIGINT, 130, ["--clients", "1"]),
        (signal.SIGTERM, 143, ["--rate", "400", "--max-in-flight", "1"]),
    ],
)
def test_a_signal_ends_a_replay_with_what_was_offered(
    running: tuple[StubServer, str], tmp_path: Path, number: signal.Signals, status: int, load: Sequence[str]
) -> None:
    stub, url = running
    hang_after(stub, 11)
    report = tmp_path / "report.json"
    command = [
        sys.executable,
        "-m",
        "tandem.apps.cli",
        "bench",
        "--url",
        url,
        "--synthetic",
        "20:4",
        "--requests",
        "100000",
    ]
    asked = [*load, "--slo", "ttft=100", "--json", str(report)]
    with subprocess.Popen([*command, *asked], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            # The probe, ten answers and the request that hangs.
            until(lambda: len(stub.requests) >= 12 or process.poll() is not None)
            process.send_signal(number)
            out, err = process.communicate(timeout=_WAIT_S)
        finally:
            process.kill()
    assert process.returncode == status, err
    read = json.loads(report.read_text())
    assert read["interrupted"] is True
    assert (read["succeeded"], read["goodput_requests"], read["ended"]["done"]) == (10, 10, 10)
    assert read["requests"] == read["offered"] == 10 + read["ended"]["unfinished"] < 100_000
    assert read["ended"]["unfinished"] >= 1
    assert read["goodput_share"] == pytest.approx(10 / read["offered"])
    assert (read["clients"], read["think_s"]) == ((1, 0.0) if "--clients" in load else (None, None))
    assert out.startswith("interrupted")
    assert "Traceback" not in err
    until(lambda: stub.dropped == 1)


def test_an_interrupted_search_gives_what_it_found(running: tuple[StubServer, str], tmp_path: Path) -> None:
    stub, url = running
    hang_after(stub, 5)
    found = tmp_path / "capacity.json"
    search = [
        "--find-capacity",
        "--slo",
        "ttft=100",
        "--trial-seconds",
        "0.05",
        "--rate",
        "100",
        "--json",
        str(found),
    ]
    command = [
        sys.executable,
        "-m",
        "tandem.apps.cli",
        "bench",
        "--url",
        url,
        "--synthetic",
        "8:2",
        "--requests",
        "500",
    ]
    with subprocess.Popen([*command, *search], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: len(stub.requests) >= 8 or process.poll() is not None)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=_WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 143, err
    read = json.loads(found.read_text())
    assert (read["interrupted"], read["capacity_per_s"], len(read["trials"])) == (True, None, 1)
    assert out.strip() == "interrupted; capacity: unknown; no trial has ended"


async def waited(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


TRACE = [{"timestamp": 0, "input_length": 1100, "output_length": 6, "hash_ids": [0, 1, 2 + n]} for n in range(6)]


@pytest.mark.parametrize("source", ["--trace", "--csv", "--synthetic"])
@pytest.mark.parametrize("form", [(), ("--text",), ("--endpoint", "chat")])
def test_contents_follow_the_seed(
    running: tuple[StubServer, str], tmp_path: Path, source: str, form: Sequence[str]
) -> None:
    stub, url = running
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, TRACE)))
    (tmp_path / "lengths.csv").write_text("input,output\n" + "64,6\n" * 6)
    given = {"--trace": str(tmp_path / "trace.jsonl"), "--csv": str(tmp_path / "lengths.csv"), "--synthetic": "64:6"}
    shared = ["--shared-prefix", "16", "--requests", "6"] if source == "--synthetic" else []

    def prompts(seed: int) -> list[str]:
        stub.requests.clear()
        load = [source, given[source], *shared, *form, "--seed", str(seed), "--clients", "1"]
        assert main(["bench", "--url", url, *load]) == 0
        replayed = stub.requests[-6:]
        return [json.dumps(request.get("prompt") or request["messages"][0]["content"]) for request in replayed]

    once, again, other = prompts(1), prompts(1), prompts(2)
    assert once == again
    # Not even their beginnings: nothing that the first seed put into a cache is found again.
    assert not {prompt[:60] for prompt in once} & {prompt[:60] for prompt in other}


def test_no_two_trials_of_small_seeds_have_contents_in_common() -> None:
    seeds = [trial_seed(seed, trial) for seed in range(50) for trial in range(12)]
    assert len(set(seeds)) == len(seeds)
    assert not set(seeds) & set(range(50))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--think", "1"], "--clients"),
        (["--clients", "2", "--find-capacity", "--slo", "ttft=1"], "--clients"),
        (["--input-scale", "1/4"], "--input-scale"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert said in capsys.readouterr().err
