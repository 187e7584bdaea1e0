"""Selects the latest requests that predict the traffic to come. Pure."""

from collections.abc import Sequence
from math import sqrt
from typing import Final

from router.split.values import ObservedRequest

_CUTS: Final = 64
"""Places, evenly among the requests, at which a change of traffic is looked for."""
_SURE: Final = 5.0
"""Standard errors by which what came later differs in the mean from what came before."""
_BEGINNING: Final = 0.9
"""Share of the window: traffic that has lasted for less has just begun."""
_REPEATED: Final = 0.5
"""Share of the window: shorter traffic is repeated until it is as long, because streams outlast it."""


def since_change(requests: Sequence[ObservedRequest], at_least: int) -> Sequence[ObservedRequest]:
    """The requests that came since the last change of what prompts leave to compute; all of them where nothing
    changed. A change of their rate alone does not count: bursts pass. At least `at_least` requests are on either side
    of a change."""
    while True:
        place = _change(requests, at_least)
        if not place:
            return requests
        requests = requests[place:]


def _change(requests: Sequence[ObservedRequest], at_least: int) -> int:
    """The index at which the mean of the later requests differs most from the mean of the earlier ones; 0 when no
    difference is certain."""
    count = len(requests)
    if count < 2 * at_least:
        return 0
    sums, squares = [0.0], [0.0]
    for seen in requests:
        value = float(seen.uncached_tokens)
        sums.append(sums[-1] + value)
        squares.append(squares[-1] + value * value)
    step = max(1, (count - 2 * at_least) // _CUTS)
    best, found = _SURE, 0
    for place in range(at_least, count - at_least + 1, step):
        later = count - place
        before, after = sums[place] / place, (sums[count] - sums[place]) / later
        # What they scatter by within either side: few that happen to be alike prove nothing.
        within = max(0.0, squares[count] - place * before * before - later * after * after) / (count - 2)
        error = sqrt(within * (1 / place + 1 / later))
        apart = abs(before - after) / error if error > 0 else (0.0 if before == after else 2 * _SURE)
        if apart > best:
            best, found = apart, place
    return found


def settled(
    requests: Sequence[ObservedRequest], began_s: float, now: float, window_s: float, at_least: int
) -> Sequence[ObservedRequest]:
    """The requests of the later half of the time since traffic began, at `began_s`, as long as that is no whole
    window ago: clients that begin at once come faster than they go on. All of them where the later half has fewer
    than `at_least`."""
    if now - began_s >= window_s * _BEGINNING:
        return requests
    half_s = (now + began_s) / 2
    later = [seen for seen in requests if seen.arrival_s >= half_s]
    return later if len(later) >= at_least else requests


def repeated(requests: Sequence[ObservedRequest], window_s: float, requests_max: int) -> Sequence[ObservedRequest]:
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
