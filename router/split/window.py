"""Which of the latest requests tell what comes next. Pure."""

from collections.abc import Sequence
from math import sqrt
from typing import Final

from router.split.values import Seen

_CUTS: Final = (0.08, 0.16, 0.25, 0.33, 0.5, 0.75)
"""Ages, as shares of the window, at which a change of traffic is looked for."""
_SURE: Final = 5.0
"""Standard errors by which what came later differs in the mean from what came before."""
_NEARLY_ALL: Final = 0.8
_REPEATED: Final = 0.5
"""Of the window: shorter traffic is repeated until it is as long, as streams outlast it."""


def since_change(requests: Sequence[Seen], now: float, window_s: float, at_least: int) -> Sequence[Seen]:
    """Those that came since the last change of what prompts are like; all of them where nothing changed. A change of
    their rate alone is none: bursts pass. What is expected of answers changes while it is learned."""
    best, cut_at = _SURE, 0
    for cut in _CUTS:
        begin_s = now - cut * window_s
        place = next((each for each, seen in enumerate(requests) if seen.arrival_s >= begin_s), len(requests))
        if place < at_least or len(requests) - place < at_least:
            continue
        before, after = requests[:place], requests[place:]
        apart = _apart(before, after)
        if apart > best:
            best, cut_at = apart, place
    return requests[cut_at:]


def repeated(requests: Sequence[Seen], window_s: float, requests_max: int) -> Sequence[Seen]:
    """Requests in order of arrival, again and again until they last for half the window, at most so many."""
    if len(requests) < 2:
        return requests
    first_s = requests[0].arrival_s
    lasting_s = (requests[-1].arrival_s - first_s) * len(requests) / (len(requests) - 1)
    if lasting_s <= 0.0 or lasting_s >= _REPEATED * window_s:
        return requests[-requests_max:]
    found = list(requests)
    turns = 1
    while turns * lasting_s < _REPEATED * window_s and len(found) < requests_max:
        found += [seen._replace(arrival_s=seen.arrival_s + turns * lasting_s) for seen in requests]
        turns += 1
    return found[:requests_max]


def _apart(before: Sequence[Seen], after: Sequence[Seen]) -> float:
    """By how many standard errors the tokens differ that prompts leave to compute, in the mean."""
    (first, first_error), (second, second_error) = _mean(before), _mean(after)
    error = sqrt(first_error + second_error)
    return abs(first - second) / error if error > 0 else (0.0 if first == second else 2 * _SURE)


def _mean(requests: Sequence[Seen]) -> tuple[float, float]:
    """(mean, its squared standard error)."""
    values = [seen.uncached_tokens for seen in requests]
    mean = sum(values) / len(values)
    return mean, sum([(value - mean) ** 2 for value in values]) / len(values) ** 2


def answers_in_truth(
    requests: Sequence[Seen], ended: Sequence[tuple[float, float]], begin_s: float
) -> tuple[float, int]:
    """(tokens of an answer in the mean, of how many) of requests that came from `begin_s` on; `ended` are those that
    have ended as (arrival, tokens of the answer), in order of arrival like `requests`.

    The quick ones end first, so of the earliest arrivals as many count as have nearly all ended.
    """
    told = [each for each in ended if each[0] >= begin_s]
    place, tokens, best = 0, 0.0, (0.0, 0)
    came = 0
    for seen in requests:
        if seen.arrival_s < begin_s:
            continue
        came += 1
        while place < len(told) and told[place][0] <= seen.arrival_s:
            tokens += told[place][1]
            place += 1
        if place and place >= _NEARLY_ALL * came:
            best = tokens / place, place
    return best
