"""Send times of a benchmark's requests: jitter within the trace's grid, faster or slower, or at a given mean rate."""

import random
from dataclasses import replace

from tandem.apps.bench.workload import Item, Workload


def jittered(workload: Workload, seed: int) -> Workload:
    """Spread arrivals evenly inside the grid they were rounded to, so that they do not come in volleys."""
    if not workload.quantum_s:
        return workload
    draw = random.Random(seed)
    moved = [replace(item, arrival_s=item.arrival_s + draw.uniform(0, workload.quantum_s)) for item in workload.items]
    moved.sort(key=lambda item: item.arrival_s)
    return replace(workload, items=_from_zero(moved), quantum_s=0.0)


def at_speed(workload: Workload, speed: float) -> Workload:
    """Time runs `speed` times as fast."""
    assert speed > 0, speed
    return replace(workload, items=tuple(replace(item, arrival_s=item.arrival_s / speed) for item in workload.items))


def at_rate(workload: Workload, rate: float, seed: int) -> Workload:
    """A mean of `rate` requests a second. A timed workload keeps its bursts; another gets a Poisson process."""
    assert rate > 0, rate
    if not workload.timed:
        return replace(workload, items=_poisson(workload.items, rate, seed), timed=True)
    span_s = workload.items[-1].arrival_s
    own_rate = len(workload.items) / span_s if span_s > 0 else rate
    return at_speed(workload, rate / own_rate)


def _poisson(items: tuple[Item, ...], rate: float, seed: int) -> tuple[Item, ...]:
    draw = random.Random(seed)
    now = 0.0
    timed = []
    for item in items:
        timed.append(replace(item, arrival_s=now))
        now += draw.expovariate(rate)
    return tuple(timed)


def _from_zero(items: list[Item]) -> tuple[Item, ...]:
    begin = items[0].arrival_s if items else 0.0
    return tuple(replace(item, arrival_s=item.arrival_s - begin) for item in items)
