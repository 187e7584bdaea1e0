"""Workers of role `auto` among which the split changes all the time, while they die: nothing is lost or wrong."""

from dataclasses import replace

import pytest

from tandem.sim.fabric import Fabric
from tandem.sim.faults import FaultProfile
from tandem.sim.world import WorldSettings, simulate

WORLD = WorldSettings(auto=True, faults=FaultProfile(kills=2, corrupt_share=1.0))
TWO_ROUTERS = replace(WORLD, fabric=Fabric(routers=2), faults=FaultProfile(kills=1, corrupt_share=0.0, routers=2))


@pytest.mark.parametrize("seed", range(4))
def test_a_split_that_changes_while_workers_die_loses_nothing(seed: int) -> None:
    report = simulate(WORLD, seed)
    assert {outcome.end for outcome in report.outcomes} <= {"done", "cancelled"}
    assert report.handed_off > 0


@pytest.mark.parametrize("seed", range(3))
def test_routers_that_die_and_stop_hand_the_decision_over(seed: int) -> None:
    report = simulate(TWO_ROUTERS, seed)
    assert report.handed_off > 0


def test_a_seed_repeats_itself() -> None:
    assert simulate(TWO_ROUTERS, 5) == simulate(TWO_ROUTERS, 5)
