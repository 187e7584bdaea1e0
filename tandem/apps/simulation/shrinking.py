"""The shortest story of a failure: which requests and faults of a seed are needed for it, found by leaving out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from tandem.apps.simulation.traffic import SimRequest
from tandem.apps.simulation.world import Script, WorldSettings, script, simulate
from tandem.core.kv import unpack_tokens

T = TypeVar("T")

RERUNS_MAX: Final = 60


@dataclass(frozen=True)
class ShrunkFailure:
    """A failing script and how it fails."""

    script: Script
    failure: str
    lines: tuple[str, ...]
    """The latest lines of the trace that concern the failure."""
    reruns: int

    def __str__(self) -> str:
        said = [f"fails with {len(self.script.requests)} requests and {len(self.script.faults)} faults:"]
        said += [f"  {fault}" for fault in self.script.faults]
        said += [f"  {_told(request)}" for request in self.script.requests]
        said += [f"  {self.failure}", *(f"    {line}" for line in self.lines)]
        return "\n".join(said)


def shrink(settings: WorldSettings, seed: int, reruns_max: int = RERUNS_MAX) -> ShrunkFailure | None:
    """Leave out faults and requests while the seed still fails; None when it does not fail."""
    search = _Search(settings, seed, reruns_max)
    whole = script(settings, seed)
    if not search.fails(whole):
        return None
    faults = _fewest(whole.faults, lambda some: search.fails(replace(whole, faults=some)))
    some = replace(whole, faults=faults)
    requests = _fewest(whole.requests, lambda few: search.fails(replace(some, requests=few)))
    least = replace(some, requests=requests)
    faults = _fewest(faults, lambda few: search.fails(replace(least, faults=few)))
    return ShrunkFailure(replace(least, faults=faults), search.failure, search.lines, search.reruns)


class _Search:
    """Reruns scripts, a bounded number of times, and remembers how the last failing one failed."""

    def __init__(self, settings: WorldSettings, seed: int, reruns_max: int) -> None:
        self._settings = settings
        self._seed = seed
        self._reruns_max = reruns_max
        self.reruns = 0
        self.failure = ""
        self.lines: tuple[str, ...] = ()

    def fails(self, candidate: Script) -> bool:
        if self.reruns == self._reruns_max:
            return False
        self.reruns += 1
        try:
            simulate(self._settings, self._seed, candidate)
        except Exception as error:  # noqa: BLE001 - whatever a seed dies of is what is looked for
            self.failure = f"{type(error).__name__}: {error}"
            self.lines = tuple(getattr(error, "__notes__", ()))
            return True
        return False


def _fewest(items: tuple[T, ...], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Leave out halves, then quarters and so on, as long as what is left still fails."""
    size = max(1, len(items) // 2)
    while items:
        start = 0
        while start < len(items):
            left = items[:start] + items[start + size :]
            if fails(left):
                items = left
            else:
                start += size
        if size == 1:
            break
        size = max(1, size // 2)
    return items


def _told(request: SimRequest) -> str:
    """The request in one line: its shape, not its content."""
    tokens = len(unpack_tokens(request.prompt))
    said = [f"{request.request_id} at {request.arrive_s:.3f} s: {tokens} prompt tokens"]
    said.append(f"at most {request.stopping.max_tokens} more")
    if request.n > 1:
        said.append(f"n={request.n}")
    if request.stopping.stop:
        said.append(f"stop {request.stopping.stop}")
    if request.timeout_s is not None:
        said.append(f"within {request.timeout_s:.3f} s")
    if request.steals:
        said.append(f"asks for the answer of {request.steals}")
    if request.cancel_after_s is not None:
        said.append(f"cancelled after {request.cancel_after_s:.3f} s")
    return ", ".join(said)
