"""The load that the best way just carries, and what share of the requests each way holds around it. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from router.split.offered import Offered
from router.split.outlook import Replay
from router.split.values import SplitOption, WorkTimes
from router.split.work import steady
from tandem.core.slo import Slo

LOADS: Final = (0.8, 1.0, 1.25)
"""Times the load that the best way just carries: at these it is asked who carries most."""
_LOAD_MIN: Final = 0.1
_STEP: Final = 1.25
_CARRIED: Final = (0.3, 0.9)
"""Share in the objective over those loads below and above which the best way carries less, or more."""
_TURNS_MAX: Final = 2
"""Times per look that the load is lowered where no way carries it, or raised where the best way carries more."""
_REQUESTS: Final = (150, 600)
"""Replayed at such a load: fewer at a low one, so that they last no longer."""
_UNCOUNTED: Final = 0.25
"""Share of a replay at such a load, from its beginning, that is not counted."""


class Knee:
    """`load` follows it from look to look, as a share of the present load: what a fleet could carry beyond that is of
    no use."""

    def __init__(self) -> None:
        self.load = 1.0

    def carried(
        self,
        found: dict[SplitOption, float],
        ways: Sequence[SplitOption],
        offered: Offered,
        times: WorkTimes,
        slo: Slo,
    ) -> Iterator[None]:
        """Puts into `found` what share each way holds in the mean over the loads, from steady states. Yields after
        about a millisecond of work."""
        fewest, most = _REQUESTS
        towards = 0
        for turn in range(_TURNS_MAX + 1):
            last = max(fewest, int(most * self.load))
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
            before, towards = towards, (best > _CARRIED[1]) - (best < _CARRIED[0])
            load = max(_LOAD_MIN, min(1.0, self.load * _STEP**towards))
            if turn == _TURNS_MAX or load == self.load or before * towards < 0:
                break
            self.load = load
