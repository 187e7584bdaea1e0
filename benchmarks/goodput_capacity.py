"""How much a fleet carries: the goodput knee of its best split, searched on a ladder of loads. Pure but for the file.

One number per traffic, size and bound on TPOT, in units of the guess, for all contenders: a share of it is a cell's
load. It is kept in a file and measured again when the simulator's settings have changed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.fleet.goodput import knee
from benchmarks.fleet.scenarios.generated import TRAFFIC
from benchmarks.goodput_cells import CLOSED
from tandem.core.errors import TandemError

SHARE: Final = 0.9
"""Of the offered requests at the knee."""
SEEDS: Final = (0, 1)
_LENGTH: Final = 0.5
_LONG: Final = (*(each.name for each in TRAFFIC if each.phase_s), *CLOSED)
"""Traffic of which a short probe would not see all: its phases, or how prompts of sessions grow."""
_STEP: Final = 1.1
_LOWEST: Final = 0.1
_RUNGS: Final = 32
LADDER: Final = tuple(round(_LOWEST * _STEP**rung, 4) for rung in range(_RUNGS))
"""Loads that are tried, each a tenth above the one before."""
_FIRST: Final = 17
_JUMP: Final = 2
"""Rungs that are climbed at once while the search has not met both sides of the knee."""

Key = tuple[str, int, int]
"""(traffic, workers, TPOT in ms)."""
Points = Mapping[tuple[int, int], float]
"""By (prefill workers, rung), the attainment there, as far as it is known."""


@dataclass(frozen=True)
class Capacity:
    """`scale` in units of the guess, reached by the split with so many prefill workers."""

    scale: float
    prefills: int


def length_of(traffic: str) -> float:
    """Of a probe, as a share of a cell's length: the whole where half of it is another traffic."""
    return 1.0 if traffic in _LONG else _LENGTH


def next_probe(points: Points, splits: Sequence[int]) -> tuple[int, int] | None:
    """(prefill workers, rung) to try next; None when the best split's knee is known to a rung.

    Splits come one after the other. From the second on it is asked first whether one is better than the best so far,
    by the rung on which that one falls short; those that fall short there as well are done with one probe.
    """
    best = -1
    for split in splits:
        known = {rung: share for (of_split, rung), share in points.items() if of_split == split}
        if not known:
            return split, _FIRST if best < 0 else min(best + 1, _RUNGS - 1)
        rung = _unknown(known, best)
        if rung is not None:
            return split, rung
        best = max(best, max((rung for rung, share in known.items() if share >= SHARE), default=-1))
    return None


def _unknown(known: Mapping[int, float], best: int) -> int | None:
    """The rung that tells most of one split: up while all reach the share, down while none does, between both then;
    None when the knee lies between neighbours, at the end of the ladder, or below what another split carries."""
    short = min((rung for rung, share in known.items() if share < SHARE), default=_RUNGS)
    reached = max((rung for rung, share in known.items() if share >= SHARE and rung < short), default=-1)
    if short <= best + 1 or short - reached == 1 or reached == _RUNGS - 1:
        return None
    if reached < 0:
        return max(0, short - _JUMP)
    if short == _RUNGS:
        return min(_RUNGS - 1, reached + _JUMP)
    return (reached + short) // 2


def capacity_of(points: Points, splits: Sequence[int]) -> Capacity:
    """The greatest knee of a search that is over. Raises `bad_setting` when every split falls short on the lowest
    rung."""
    knees = {
        split: knee([(LADDER[rung], share) for (of_split, rung), share in points.items() if of_split == split], SHARE)
        for split in splits
    }
    best = max(splits, key=lambda split: knees[split])
    if knees[best] == 0:
        raise TandemError("bad_setting", f"no split reaches {SHARE:.0%} at {_LOWEST:g} of the guessed capacity")
    return Capacity(round(knees[best], 4), best)


def read(path: Path, settings: str | None) -> dict[Key, Capacity]:
    """Capacities that were measured with these settings, with any if None; none without a file. Raises
    `bad_setting` when the file is something else."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
        if settings is not None and found["settings"] != settings:
            return {}
        return {
            (each["traffic"], each["workers"], each["tpot_ms"]): Capacity(each["scale"], each["prefills"])
            for each in found["capacity"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise TandemError("bad_setting", f"{path} does not hold capacities: {error!r}; remove it") from error


def write(path: Path, settings: str, capacities: Mapping[Key, Capacity]) -> None:
    """A line each. Raises `bad_setting` when it cannot be written."""
    lines = [
        json.dumps(
            {"traffic": key[0], "workers": key[1], "tpot_ms": key[2], "scale": each.scale, "prefills": each.prefills}
        )
        for key, each in sorted(capacities.items())
    ]
    text = f'{{"settings": {json.dumps(settings)}, "capacity": [\n' + ",\n".join(lines) + "\n]}\n"
    try:
        path.write_text(text)
    except OSError as error:
        raise TandemError("bad_setting", f"{path} cannot be written: {error}") from error
