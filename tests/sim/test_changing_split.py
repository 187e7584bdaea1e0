"""Workers of role `auto` among which the split changes all the time, while they die: nothing is lost or wrong."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from router.fleet import service_split
from tandem.apps.simulation.faults.drawing import FaultProfile
from tandem.apps.simulation.faults.restart_router import RestartRouter
from tandem.apps.simulation.topology import PlatformTopology
from tandem.apps.simulation.world import WorldSettings, script, simulate
from tandem.process.logs import event

WORLD = WorldSettings(auto=True, faults=FaultProfile(kills=2, corrupt_share=1.0))
TWO_ROUTERS = replace(
    WORLD, fabric=PlatformTopology(routers=2), faults=FaultProfile(kills=1, corrupt_share=0.0, routers=2)
)


@pytest.mark.parametrize("seed", range(4))
def test_a_split_that_changes_while_workers_die_loses_nothing(seed: int) -> None:
    report = simulate(WORLD, seed)
    assert {outcome.end for outcome in report.outcomes} <= {"done", "cancelled"}
    assert report.handed_off > 0


@pytest.mark.parametrize("seed", range(3))
def test_routers_that_die_and_stop_leave_one_that_decides(seed: int) -> None:
    """The world itself waits in the end for one that decides, and for all others to follow it."""
    report = simulate(TWO_ROUTERS, seed)
    assert report.handed_off > 0


def test_a_router_that_dies_hands_the_decision_over(monkeypatch: pytest.MonkeyPatch) -> None:
    deciding = list[str]()

    def heard(log: logging.Logger, name: str, **facts: Any) -> None:
        if name == "split_decides":
            deciding.append(facts["holder"])
        event(log, name, **facts)

    monkeypatch.setattr(service_split, "event", heard)
    # By then one of them decides, whichever it is, and neither process is there in the end.
    deaths = (RestartRouter(8.0, 0.2, "router"), RestartRouter(8.5, 0.2, "router2"))
    simulate(TWO_ROUTERS, 0, replace(script(TWO_ROUTERS, 0), faults=deaths))
    assert len(set(deciding)) > 1


def test_a_seed_repeats_itself() -> None:
    assert simulate(TWO_ROUTERS, 5) == simulate(TWO_ROUTERS, 5)
