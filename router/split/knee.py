"""The load that the best way just carries, and what share of the requests each way holds around it. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from router.split.offered import Offered
from router.split.outlook import Replay
from router.split.values import Way, WorkTimes
from router.split.work import steady
from tandem.core.slo import Slo

LOADS: Final = (0.8, 1.0, 1.25)
"""Times the load that the best way just carries: at these it is asked who carries most."""
_LOAD_MAX: Final = 1.2
"""Times the present load: what a fleet could carry beyond that is of no use."""
_LOAD_MIN: Final = 0.1
_LOAD_STEP: Final = 1.25
_CARRIED: Final = (0.3, 0.9)
"""Share in the objective over those loads below and above which the best way carries less, or more."""
_LOWERED_MAX: Final = 2
"""Times per look that the load is lowered where no way carries it."""
_REQUESTS: Final = (150, 600)
"""Replayed at such a load: fewer at a low one, so that they last no longer."""
_UNCOUNTED: Final = 0.25
"""Of a replay at such a load."""


class Knee:
    """`load` follows it from look to look, as a multiple of the present load."""

    def __init__(self) -> None:
        self.load = 1.0

    def carried(
        self, found: dict[Way, float], ways: Sequence[Way], offered: Offered, times: WorkTimes, slo: Slo
    ) -> Iterator[None]:
        """Puts into `found` what share each way holds in the mean over the loads, from steady states. Yields after
        about a millisecond of work."""
        fewest, most = _REQUESTS
        for lowered in range(_LOWERED_MAX + 1):
            last = max(fewest, int(most * min(1.0, self.load)))
            for way in ways:
                total = 0.0
                for load in LOADS:
                    work = yield from offered.at(way.prefills, self.load * load, last)
                    begin = steady(way, work, offered.now, times)
                    replay = Replay(way, work, begin, times, slo, _UNCOUNTED * work[-1].at_s)
                    yield from replay.run()
                    share = replay.outlook().attainment
                    total += share
                    if share <= 0.0:
                        break
                found[way] = total / len(LOADS)
            best = max(found.values())
            if best >= _CARRIED[0] or self.load <= _LOAD_MIN or lowered == _LOWERED_MAX:
                break
            self.load /= _LOAD_STEP
        if best > _CARRIED[1]:
            self.load = min(_LOAD_MAX, self.load * _LOAD_STEP)
