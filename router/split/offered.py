"""Requests that are replayed, as a way has them to compute: less memory for prefixes leaves more of prompts. Pure."""

from collections.abc import Generator, Iterator, Sequence
from statistics import fmean
from typing import Final

from router.split.reuse import MARK_TOKENS, held_tokens, new_tokens
from router.split.values import ObservedRequest, WorkTimes
from router.split.work import Demand, Present, at_load, demands, memory_tokens
from tandem.core.slo import Slo

PER_TURN: Final = 200
"""Requests that are processed before the caller gets a turn: about a millisecond."""
_ALIKE: Final = 0.02
"""Share of the tokens to compute by which work has to differ to count as different."""
_OF_USE: Final = (0.3, 0.8, 1.0)
"""Share of the memory that holds prefixes that are found again: the least, the one assumed where nothing tells, and
the most."""
_HALVINGS: Final = 6
_TELLING: Final = 0.1
"""Share of the tokens to compute that has to have been forgotten before it tells anything: marks are no finer."""

_GROWN_MIN: Final = 10
"""Requests needed in each half of the traffic to tell how it grows,"""
_GROWN_MAX: Final = 2.0
"""and by how much it is taken to at most."""
AHEAD_S: Final = 30.0
"""Seconds that reuse distances are projected ahead."""

Replayed = Generator[None, None, Sequence[Demand]]
"""Requests as the model needs them, after turns for the caller."""


class Offered:
    """The requests of one look, as offered to the fleet. `add` takes requests in order of arrival, as they were
    placed; `remember` follows the last of them, and `at` follows `remember`. `now` says how much memory the fleet
    has, `times` and `slo` give seconds of work, and `then` is the mean reuse distance that prompts will have; 0 for
    the one that they have had."""

    def __init__(self, now: Present, times: WorkTimes, slo: Slo, then: float = 0.0) -> None:
        self.now = now
        self._times = times
        self._slo = slo
        self._requests: list[ObservedRequest] = []
        self._work: list[Demand] = []
        """The demands of `_requests`, as they were placed."""
        self._of_use = _OF_USE[1]
        self._fewer = 0
        """Tokens by which prompts that came before leave less to compute than their marks tell, on average."""
        self._held: list[int] = []
        """Tokens of each that was in the memory that there was."""
        self._then = then
        self._grown = 1.0
        """Factor by which reuse distances will be greater."""
        self._known: dict[tuple[float | None, float, int], Sequence[Demand]] = {}

    def __len__(self) -> int:
        return len(self._work)

    @property
    def last_s(self) -> float:
        """Seconds from the arrival of the first request to that of the last."""
        return self._work[-1].at_s

    def add(self, requests: Sequence[ObservedRequest]) -> None:
        """The next ones."""
        self._requests += requests
        self._work += demands(requests, self._times, self._slo, self._requests[0].arrival_s)

    def remember(self) -> Iterator[None]:
        """Find how much of the memory is of use, from what was left to compute of prompts that had come before.
        Prefixes lie on several workers, and not every prompt goes to the one with its own."""
        again = [seen for seen in self._requests if seen.distances]
        if again and self._then > 0:
            mean = fmean([seen.distances[-1] for seen in again])
            self._grown = min(max(1.0, self._then / max(1.0, mean)), _GROWN_MAX)
        memories = [memory_tokens(seen.prefills, self.now) for seen in again]
        lost = sum([seen.uncached_tokens - new_tokens(seen.prompt_tokens, seen.distances) for seen in again])
        yield
        self._fewer = max(0, -lost) // max(1, len(again))
        total = sum([seen.uncached_tokens for seen in again])
        least_telling = int(_TELLING * total)
        least, likely, most = _OF_USE
        ends = [least, most]
        bounds = max(lost, least_telling), lost - int(_ALIKE * total) if lost > least_telling else 0
        for place, bound in enumerate(bounds):
            low, high = least, most
            for _ in range(_HALVINGS if again and bound > 0 else 0):
                middle = (low + high) / 2
                missed = 0
                for seen, memory in zip(again, memories, strict=True):
                    missed += MARK_TOKENS * len(seen.distances) - held_tokens(seen.distances, middle * memory)
                low, high = (middle, high) if missed > bound else (low, middle)
                ends[place] = high
                yield
        # Every share between the two explains what was found.
        self._of_use = max(ends[0], min(likely, ends[1]))
        self._held = [self._in(seen, memory_tokens(seen.prefills, self.now)) for seen in self._requests]
        yield

    def at(self, prefills: int, load: float = 1.0, last: int | None = None) -> Replayed:
        """The last so many, or all, where `prefills` workers take prompts for others, so many times as fast one after
        the other, when conversations have gone on for a while. As many times as much comes between two uses of a
        prefix then."""
        last = min(len(self._work), last or len(self._work))
        memory = memory_tokens(prefills, self.now) / load
        known = self._known.get((memory, load, last))
        if known is None:
            held = [self._in(seen, memory / self._grown) for seen in self._requests[-last:]]
            yield
            apart = sum(map(abs, map(int.__sub__, held, self._held[-last:])))
            if apart > _ALIKE * sum(seen.uncached_tokens for seen in self._requests[-last:]):
                known = at_load((yield from self._with(held)), load)
            else:
                known = self._known.get((None, load, last))
                if known is None:
                    known = self._known[None, load, last] = at_load(self._work[-last:], load)
            self._known[memory, load, last] = known
            yield
        return known

    def _with(self, held: Sequence[int]) -> Replayed:
        """The last ones, where so many tokens of each are in memory."""
        last, first_s = len(held), self._requests[0].arrival_s
        found = self._work[-last:]
        for begin in range(0, last, PER_TURN):
            places = [
                place for place in range(begin, min(begin + PER_TURN, last)) if self._requests[place - last].distances
            ]
            some = []
            for place in places:
                seen = self._requests[place - last]
                missed = MARK_TOKENS * len(seen.distances) - held[place]
                uncached = new_tokens(seen.prompt_tokens, seen.distances) + missed - self._fewer
                some.append(seen._replace(uncached_tokens=max(1, min(seen.prompt_tokens, uncached))))
            for place, demand in zip(places, demands(some, self._times, self._slo, first_s), strict=True):
                found[place] = demand
            yield
        return found

    def _in(self, seen: ObservedRequest, memory: float) -> int:
        """Tokens of a prompt that are in a memory of such a size."""
        return held_tokens(seen.distances, self._of_use * memory) if seen.distances else 0


def growing(requests: Sequence[ObservedRequest], ahead_s: float) -> float:
    """The mean reuse distance that prompts will have, given the latest requests in order of arrival: `ahead_s` after
    the last one, or after half of the time that they took if that is sooner. The growth from their earlier half to
    the later one is taken to go on by as much a second; 0 where nothing grew, or too few tell."""
    again = [seen for seen in requests if seen.distances]
    half = len(again) // 2
    if half < _GROWN_MIN:
        return 0.0
    parts = again[:half], again[half:]
    before, now = (fmean([seen.distances[-1] for seen in part]) for part in parts)
    before_s, now_s = (fmean([seen.arrival_s for seen in part]) for part in parts)
    if now <= before or now_s <= before_s:
        return 0.0
    last_s = again[-1].arrival_s
    until_s = last_s + min(ahead_s, (last_s - again[0].arrival_s) / 2)
    return now + (now - before) / (now_s - before_s) * (until_s - now_s)
