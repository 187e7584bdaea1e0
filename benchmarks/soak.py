"""A platform under mixed load and faults for as long as one likes: nothing may leak, and no answer may be wrong.

Two prefill and two decode workers (`tandem up`, processes of their own) serve requests of all sorts: streamed and
not, short and long, with shared prefixes, several sequences, clients that leave. Every so often a fault strikes one
of two of the workers: its process is killed, or frozen; the two others are never touched, so that their memory can be
watched from beginning to end. Every second the memory and file descriptors of all processes are looked at, and of
workers their free blocks. The same request must always get the same text: that of the first minutes without faults,
or, where a question is new, that of asking it before.

Verdict: no wrong answer, no request without an end or with one that is not typed, memory and descriptors of untouched
processes flat, everything free at the end. Flat means: after the warm-up (a fifth of the time, at most ten minutes,
and until all processes keep as many traces as they will) the fitted growth is at most 5 % of the mean or 8 MB, and 8
descriptors.
"""

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import psutil

from benchmarks.rounds import Check, verdict
from benchmarks.samples import Curve, descriptors, plot, rss_mb
from benchmarks.soak_clients import ANSWERED, LEFT, Soak, SoakClients, questions
from tandem.apps.chaos.client import ChaosClient
from tandem.apps.chaos.live import LivePlatform, run_platform, total
from tandem.apps.cli.member import Member

MINUTES: Final = 60.0
GROWTH_SHARE: Final = 0.05
GROWTH_MB: Final = 8.0
GROWTH_DESCRIPTORS: Final = 8.0
_LOOK_S: Final = 1.0
_FAULT_EVERY_S: Final = 20.0
_FREEZE_S: Final = 4.0
_PATIENCE_S: Final = 90.0
_SETTLE_S: Final = 30.0
_CLIENTS: Final = 6
_SAMPLES_MIN: Final = 20
SETTINGS: Final = {"TANDEM_CORE__PLACEMENT__PREFER": "disaggregated"}
"""Every request is handed off, however much of its prompt is known already."""
_TYPED: Final = frozenset(("worker_lost", "no_workers", "queue_full", "deadline_exceeded", "over_quota"))


# ---- faults ----


class Faults:
    """Strikes the victims in turn, one at a time, and waits until the victim is back."""

    def __init__(self, live: LivePlatform, victims: tuple[Member, ...], soak: Soak) -> None:
        self._live = live
        self._victims = victims
        self._soak = soak
        self._random = random.Random(31)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_FAULT_EVERY_S * self._random.uniform(0.5, 1.5))
            victim = self._random.choice(self._victims)
            if victim.state == "ready" and victim.pid is not None:
                await self._strike(victim, victim.pid)

    async def _strike(self, victim: Member, pid: int) -> None:
        if self._random.random() < 0.5:
            self._soak.faults[f"kill {victim.name}"] += 1
            self._signal(pid, signal.SIGKILL)
        else:
            self._soak.faults[f"freeze {victim.name}"] += 1
            self._signal(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(_FREEZE_S)
            finally:
                self._signal(pid, signal.SIGCONT)

    def _signal(self, pid: int, number: int) -> None:
        with suppress(ProcessLookupError):
            psutil.Process(pid).send_signal(number)


# ---- looking ----


async def _look(live: LivePlatform, soak: Soak, now: Callable[[], float]) -> None:
    """Every second, what every process uses."""
    while True:
        for member in live.platform.members:
            if member.state == "ready" and member.pid is not None:
                with suppress(psutil.NoSuchProcess, OSError, TimeoutError):
                    await _look_at(live, member, soak, now())
        await asyncio.sleep(_LOOK_S)


async def _look_at(live: LivePlatform, member: Member, soak: Soak, at_s: float) -> None:
    process = psutil.Process(live.pid(member))
    soak.memory.setdefault(member.name, Curve()).add(at_s, rss_mb(process))
    soak.files.setdefault(member.name, Curve()).add(at_s, float(descriptors(process)))
    if member is not live.router:
        page = await live.figures(member)
        soak.blocks.setdefault(member.name, Curve()).add(at_s, total(page, "tandem_kv_blocks", '"free"'))


async def _tell(soak: Soak, now: Callable[[], float], seconds: float) -> None:
    """A line of progress: over and over on a terminal, every half minute elsewhere."""
    terminal = sys.stderr.isatty()
    while True:
        await asyncio.sleep(1.0 if terminal else 30.0)
        router = soak.memory["router"].values[-1] if "router" in soak.memory else 0.0
        line = (
            f"{now() / 60:5.1f}/{seconds / 60:g} min: {sum(soak.ends.values())} requests, {len(soak.wrong)} wrong, "
            f"{sum(soak.faults.values())} faults, router {router:.1f} MB"
        )
        print(f"\r{line}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)


async def _still_held(live: LivePlatform) -> str:
    """What is held when nobody asks any more; empty when it is nothing."""
    held = "nothing was looked at"
    for _ in range(int(_SETTLE_S / 0.25)):
        await asyncio.sleep(0.25)
        with suppress(OSError, TimeoutError):
            held = "; ".join([found for member in live.platform.members if (found := await _held_by(live, member))])
            if not held:
                return ""
    return held


async def _held_by(live: LivePlatform, member: Member) -> str:
    page = await live.figures(member)
    if member is live.router:
        running = total(page, "tandem_requests_running")
        return f"{running:g} requests in the router" if running else ""
    sequences, exported = total(page, "tandem_sequences"), total(page, "tandem_kv_blocks", "exported")
    return f"{member.name}: {sequences:g} sequences, {exported:g} blocks exported" if sequences or exported else ""


# ---- the whole ----


async def measure(live: LivePlatform, minutes: float, faults: bool) -> Soak:
    """Learn the answers, then load and faults for `minutes`, then silence."""
    soak, asked = Soak(), questions()
    victims = tuple(member for member in live.workers if member.name.endswith("-0"))
    loop = asyncio.get_running_loop()
    began = loop.time()
    name = f"soak-{os.urandom(4).hex()}"
    async with aclosing(ChaosClient(live.platform.target, live.model, name, _PATIENCE_S)) as client:
        clients = SoakClients(client, soak, lambda: loop.time() - began)
        await clients.learn(asked)
        print(f"{len(asked)} answers learnt; {minutes:g} minutes begin", flush=True)
        began, seconds = loop.time(), 60.0 * minutes
        soak.warm_s = min(600.0, seconds / 5)
        soak.untouched = tuple(member.name for member in live.platform.members if member not in victims or not faults)
        background = [
            asyncio.create_task(_look(live, soak, lambda: loop.time() - began)),
            asyncio.create_task(_tell(soak, lambda: loop.time() - began, seconds)),
        ]
        striking = asyncio.create_task(Faults(live, victims, soak).run()) if faults else None
        asking = [asyncio.create_task(clients.run(asked)) for _ in range(_CLIENTS)]
        done, _ = await asyncio.wait((*background, *asking), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if striking is not None:
            striking.cancel()
            await asyncio.wait((striking,))
        clients.stopping = True
        await asyncio.gather(*asking)
        for task in background:
            task.cancel()
        await asyncio.wait(background)
    soak.held = await _still_held(live)
    return soak


def checks_of(soak: Soak) -> list[Check]:
    """What must hold."""
    untyped = sum(count for kind, count in soak.ends.items() if kind not in (*_TYPED, ANSWERED, LEFT))
    checks = [
        Check("wrong answers", len(soak.wrong), 0, False),
        Check("requests without an end, or with one that is not typed", untyped, 0, False),
        Check("processes that still hold something", len(soak.held.split("; ")) if soak.held else 0, 0, False),
    ]
    for name in soak.untouched:
        memory, files = soak.memory[name].since(soak.warm_s), soak.files[name].since(soak.warm_s)
        if len(memory.values) < _SAMPLES_MIN:
            # Too short a run shows no leak, and must not look as if there were none.
            checks.append(Check(f"{name}, seconds after the warm-up", len(memory.values), _SAMPLES_MIN, True, "s"))
            continue
        limit_mb = max(GROWTH_MB, GROWTH_SHARE * statistics.fmean(memory.values))
        checks.append(Check(f"{name}, growth of memory", memory.growth, limit_mb, False, "MB"))
        checks.append(Check(f"{name}, growth of descriptors", files.growth, GROWTH_DESCRIPTORS, False))
    return checks


def say(soak: Soak, minutes: float) -> None:
    """The figures in words."""
    ends = ", ".join(f"{count} {kind}" for kind, count in sorted(soak.ends.items()))
    struck = ", ".join(f"{count} {kind}" for kind, count in sorted(soak.faults.items())) or "none"
    print(f"\n{minutes:g} minutes: {sum(soak.ends.values())} requests ({ends}); faults: {struck}")
    for name, curve in soak.memory.items():
        files = soak.files[name]
        touched = "" if name in soak.untouched else " (killed and frozen)"
        print(
            f"  {name}{touched}: {curve.values[0]:.1f} MB at first, {max(curve.values):.1f} at most, "
            f"{curve.values[-1]:.1f} at last; {files.values[0]:.0f} descriptors, {max(files.values):.0f} at most, "
            f"{files.values[-1]:.0f} at last"
        )
    for line in soak.wrong[:5]:
        print(f"  WRONG {line}")
    if soak.held:
        print(f"  STILL HELD {soak.held}")
    print()


def main() -> int:
    """Measure and give the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--engine", choices=("simulated", "torch"), default="simulated")
    parser.add_argument("--no-faults", action="store_true", help="load only")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="folder for soak.json and soak.png")
    arguments = parser.parse_args()
    flags = ["--engine", arguments.engine, "--prefill", "2", "--decode", "2"]
    soak = run_platform(flags, partial(measure, minutes=arguments.minutes, faults=not arguments.no_faults), SETTINGS)
    say(soak, arguments.minutes)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "soak.json").write_bytes(msgspec.json.encode(soak))
    panels = [("memory (MB)", soak.memory), ("file descriptors", soak.files), ("free blocks", soak.blocks)]
    plot(arguments.out / "soak.png", f"{arguments.minutes:g} minutes, {arguments.engine} engine", panels)
    return verdict(checks_of(soak), f"{arguments.minutes:g} minutes leave nothing behind")


if __name__ == "__main__":
    sys.exit(main())
