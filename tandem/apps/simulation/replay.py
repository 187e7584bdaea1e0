"""Replays requests at given times through a simulated platform without faults: how soon tokens come, in virtual time.

The router, workers, scheduler, leases, fetches and index are those of production, as in every simulation. With
`check_every` 0 only the clients' own counts are checked; otherwise the invariants of router and workers are checked
after every `check_every` rounds of the event loop.
"""

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from router.generation import Generation, Usage
from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.apps.simulation.platform import Platform, Shape
from tandem.apps.simulation.quiet import quiet_logs
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.messages import SequenceOutput
from tandem.core.request import Sampling, Stopping
from tandem.core.spans import NullRecorder, TraceContext

_GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Arrival:
    """One request: when it comes (seconds from the first), its prompt (packed uint32), how many tokens it wants."""

    at_s: float
    prompt: bytes
    output_tokens: int


@dataclass(frozen=True)
class ReplaySettings:
    """The settings of a replay. `settle_s` bounds, in virtual seconds, how long workers may hold anything after the
    last request has ended."""

    shape: Shape
    check_every: int = 0
    timeout_s: float = 600.0
    settle_s: float = 60.0


@dataclass
class Tally:
    """What the clients of a replay observed. Times are virtual seconds; `gaps_s` holds every wait between two outputs
    of a stream."""

    asked: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft_s: "array[float]" = field(default_factory=lambda: array("d"))
    gaps_s: "array[float]" = field(default_factory=lambda: array("d"))

    @property
    def ended(self) -> int:
        return self.ends.total()


@dataclass(frozen=True)
class Replayed:
    """The result of a replay."""

    tally: Tally
    handed_off: int
    virtual_s: float
    rounds: int


Progress = Callable[[Tally, float], None]
"""Told after every end: the counts so far and the virtual time."""


def replay(
    settings: ReplaySettings, arrivals: Iterable[Arrival], seed: int = 0, progress: Progress | None = None
) -> Replayed:
    """Send all requests, in order of arrival, and wait for their ends.

    Raises `Violation` or `AssertionError` when workers keep something, or when a checked invariant does not hold.
    """

    async def main(loop: VirtualLoop) -> Replayed:
        replaying = _Replay(settings, seed, loop, progress)
        loop.after_step = replaying.look if settings.check_every else None
        return await replaying.live(arrivals)

    with quiet_logs():
        return run(main, limit_s=float("inf"))


class _Replay:
    """One platform and what its clients saw."""

    def __init__(self, settings: ReplaySettings, seed: int, loop: VirtualLoop, progress: Progress | None) -> None:
        self._settings = settings
        self._loop = loop
        self._progress = progress
        self._platform = Platform(settings.shape, seed, loop, NullRecorder(), None, self._note)
        self._entropy = SeededEntropy(seed, "replay")
        self._tally = Tally()
        self._all_sent = False
        self._over = asyncio.Event()
        self._rounds = 0
        self._violation: Violation | None = None

    async def live(self, arrivals: Iterable[Arrival]) -> Replayed:
        platform = self._platform
        platform.start()
        await platform.until(platform.ready, 30.0, "the platform is not ready")
        began = platform.clock.now()
        for arrival in arrivals:
            wait_s = began + arrival.at_s - platform.clock.now()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._ask(arrival)
        self._all_sent = True
        self._end_if_over()
        await self._over.wait()
        took_s = platform.clock.now() - began
        await platform.until(lambda: not platform.held(), self._settings.settle_s, "something is still held")
        handed_off = platform.meter.sum("tandem_placements_total", "disaggregated")
        return Replayed(self._tally, handed_off, took_s, self._loop.steps)

    def look(self) -> None:
        """Invariants, after a round of the event loop."""
        self._rounds += 1
        if self._violation is not None:
            raise self._violation
        if self._rounds % self._settings.check_every == 0:
            self._platform.router.check()
            for node in self._platform.nodes.values():
                node.check()

    def ended(self, end: str) -> None:
        """A request is over."""
        self._tally.ends[end] += 1
        if self._progress is not None:
            self._progress(self._tally, self._platform.clock.now())
        self._end_if_over()

    def _ask(self, arrival: Arrival) -> None:
        tally, clock, life = self._tally, self._platform.clock, self._platform.router.life
        assert life is not None, "the router of a replay does not die"
        tally.asked += 1
        tally.prompt_tokens += len(arrival.prompt) // 4
        sink = _MeasuringSink(tally, self._loop.time, self.ended)
        generation = Generation(
            request_id=f"req-{tally.asked}",
            model=self._settings.shape.model.name,
            tenant="tenant",
            tenant_salt="",
            prompt=arrival.prompt,
            n=1,
            seed=tally.asked,
            sampling=_GREEDY,
            stopping=Stopping(max_tokens=arrival.output_tokens, ignore_eos=True),
            timeout_s=self._settings.timeout_s,
            received=clock.now(),
            received_wall=clock.wall(),
            trace=TraceContext(self._entropy.token(16).hex(), "00" * 7 + "01"),
        )
        try:
            life.dispatcher.start(generation, sink)
        except TandemError as error:
            sink.failed(error)

    def _end_if_over(self) -> None:
        if self._all_sent and self._tally.ended == self._tally.asked:
            self._over.set()

    def _note(self, violation: Violation) -> None:
        if self._violation is None:
            self._violation = violation


class _MeasuringSink:
    """A `router.generation.Sink` that takes times and counts."""

    __slots__ = ("_asked", "_ended", "_last", "_now", "_tally")

    def __init__(self, tally: Tally, now: Callable[[], float], ended: Callable[[str], None]) -> None:
        self._tally = tally
        self._now = now
        self._asked = now()
        self._last = 0.0
        self._ended = ended

    def output(self, output: SequenceOutput) -> None:
        now = self._now()
        if output.position == 1:
            self._tally.ttft_s.append(now - self._asked)
        else:
            self._tally.gaps_s.append(now - self._last)
        self._last = now

    def done(self, usage: Usage) -> None:
        self._tally.cached_tokens += usage.cached_tokens
        self._tally.output_tokens += usage.completion_tokens
        self._ended("done")

    def failed(self, error: TandemError) -> None:
        self._ended(error.code)
