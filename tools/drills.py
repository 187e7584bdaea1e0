"""`python -m tools.drills`: every fault at every stage of a request, on real processes of this machine.

Two rounds of each with the real-time simulated engine, then of a few with torch; `--full` runs twenty of each with
torch; `--vllm` a few with vLLM workers, in the environment of `make setup-vllm`. One platform per engine keeps
running through all its rounds, as one does whose workers really fail.
"""

import argparse
import asyncio
import os
import platform as machine
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tandem.apps.chaos.drill.cells import KINDS, STAGES, Cell
from tandem.apps.chaos.drill.command import run_drills
from tandem.apps.chaos.drill.options import DrillOptions
from tandem.apps.chaos.drill.result import Report, Round, Summary
from tandem.apps.chaos.drill.session import Bounds
from tandem.apps.chaos.drill.table import markdown
from tandem.apps.cli.display import LineDisplay
from tandem.apps.cli.platform import Platform, cores
from tandem.apps.cli.supervisor import Supervisor
from tandem.apps.cli.up import cleaning_up
from tandem.apps.cli.up_options import parse as parse_up

_READY_S: Final = 120.0
_VLLM_READY_S: Final = 400.0
_VLLM_BOUNDS: Final = Bounds(streams=4, recover_s=180.0)
"""vLLM takes seconds of a core to start, and more where several start at once."""
_ABUSERS: Final = 4
_EVERY: Final = tuple(Cell(kind, stage) for kind in KINDS for stage in STAGES)
_SOME: Final = (
    Cell("restart-router", "queue"),
    Cell("kill-prefill", "prefill"),
    Cell("corrupt-kv", "transfer"),
    Cell("cut-link", "first-token"),
    Cell("kill-decode", "decode"),
)
_WITH_VLLM: Final = (
    Cell("corrupt-kv", "transfer"),
    Cell("kill-prefill", "transfer"),
    Cell("kill-decode", "decode"),
)
_UP: Final = ("--port", "0", "--drills")
_TWO_AND_TWO: Final = ("--prefill", "2", "--decode", "2")
_ONE_AND_TWO: Final = ("--prefill", "1", "--decode", "2", "--kv-memory", "256Mi")


@dataclass(frozen=True)
class Plan:
    """What to drill one engine with."""

    engine: str
    cells: tuple[Cell, ...]
    rounds: int

    def up(self) -> list[str]:
        # Only in float32 is rounding too small to change what is drawn when a batch is another one.
        exact = () if self.engine == "simulated" else ("--model", "demo", "--dtype", "float32")
        workers = _ONE_AND_TWO if self.engine == "vllm" else _TWO_AND_TWO
        return ["--engine", self.engine, *workers, *_UP, *exact]

    @property
    def bounds(self) -> Bounds:
        return _VLLM_BOUNDS if self.engine == "vllm" else Bounds(abusers=_ABUSERS)

    @property
    def ready_s(self) -> float:
        """Within which every worker has to be ready."""
        return _VLLM_READY_S if self.engine == "vllm" else _READY_S


QUICK: Final = (Plan("simulated", _EVERY, 2), Plan("torch", _SOME, 2))


def main() -> int:
    """Exit status 0 when every round passed."""
    parser = argparse.ArgumentParser(prog="python -m tools.drills", description="Drill platforms of this machine.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--full", action="store_true", help="every cell with torch")
    which.add_argument("--vllm", action="store_true", help="a few cells with vLLM")
    parser.add_argument(
        "--rounds", type=int, default=20, help="of each cell with --full or --vllm (default %(default)s)"
    )
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--json", type=Path, help="write every round to this file")
    given = parser.parse_args()
    if given.vllm and given.markdown is not None:
        parser.error("--markdown: the page is about the platform of the other drills; --vllm prints its table")
    began = time.monotonic()
    reports = [_run(plan, began) for plan in _plans(given)]
    cells = [cell for report in reports for cell in report.cells]
    rounds = [each for report in reports for each in report.rounds]
    took_s = time.monotonic() - began
    print(markdown(cells))
    failed = sum(cell.failed for cell in cells)
    print(f"drills: {'FAILED' if failed else 'OK'}: {len(rounds)} rounds, {failed} failed, {took_s:.0f} s")
    if given.markdown is not None:
        given.markdown.write_text(page(cells, len(rounds), took_s), encoding="utf-8")
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_bytes(_json(cells, rounds))
    return 1 if failed else 0


def _plans(given: argparse.Namespace) -> tuple[Plan, ...]:
    if given.vllm:
        return (Plan("vllm", _WITH_VLLM, given.rounds),)
    return (Plan("torch", _EVERY, given.rounds),) if given.full else QUICK


def _run(plan: Plan, began: float) -> Report:
    """One platform from start to stop with all its rounds."""

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {plan.engine}: {line}", flush=True)

    started = Platform(parse_up(plan.up()).service, os.environ, drills=True)

    async def work(supervisor: Supervisor) -> Report:
        await started.ready(supervisor, plan.ready_s)
        options = DrillOptions(plan.cells, started.url, "", plan.rounds, plan.bounds, None)
        return await run_drills(options, say, plan.engine)

    with cleaning_up(started):
        return asyncio.run(started.run(LineDisplay(lambda _line: None), work))


def page(cells: list[Summary], rounds: int, took_s: float) -> str:
    """The page with the table. What is said about it holds for every run."""
    return f"""# Drills

Made by `make drills-full`; do not edit. {rounds} rounds in {took_s / 60:.0f} minutes on {cores()} cores
({machine.machine()}, Python {machine.python_version()}), two prefill and two decode workers on one machine.

In each round eight clients stream chats and completions, greedy and drawn, some in several sequences, some with long
prompts. One more request is watched until its router says that it is in the wanted stage; then the process that
carries it is struck. Four more clients misuse the platform all the while: they hang up, do not read, send what is no
request or far too much. Every answer is compared with the one the platform gave before anything was done to it.

- **misuses**: what these four did. None of it may be answered with 500.
- **lost**, **duplicated**, **wrong**: tokens of answers that were not what they had to be. A request that ends with
  an error counts as lost. Connections to a killed router end with it; what they brought has to be the beginning of
  the right answer.
- **no end**: requests that had neither answer nor error after 60 s.
- **leaked blocks**: KV blocks still in use or leased on any worker once every request had ended; after a router's
  death, 2 s later.
- **longest pause**: the longest silence a client saw that was not over when the blow fell; where no token had come
  yet, from the blow to the first (in `queue` and `prefill` much of that is what any request waits).
- **recovery**: from the blow until every process was ready, linked, and a request took as long as before. A frozen
  worker stays frozen for 3 s; its recovery counts from then.

{markdown(cells)}
"""


def _json(cells: list[Summary], rounds: list[Round]) -> bytes:
    return msgspec.json.format(msgspec.json.encode({"cells": cells, "rounds": rounds}), indent=2)


if __name__ == "__main__":
    sys.exit(main())
