"""Each planted bug is noticed within 200 seeds: what the simulation proves, it could have disproved."""

import re
from dataclasses import replace

import pytest

from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.scenario import varied
from tandem.apps.simulation.shrinking import shrink
from tandem.apps.simulation.traffic import TrafficProfile
from tandem.apps.simulation.world import WorldSettings, simulate
from tests.sim.planted_bugs import BUGS, Plant, a_digest_computed_at_pull_time

SEEDS = range(200)
WORLD = WorldSettings(traffic=TrafficProfile(requests=40))


def failure(seed: int) -> AssertionError | None:
    try:
        simulate(varied(WORLD, seed), seed)
    except AssertionError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("plant", "promise", "first"), BUGS, ids=[bug.__name__.replace("_", " ") for bug, _, _ in BUGS]
)
def test_a_planted_bug_is_noticed(plant: Plant, promise: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed that noticed it once comes first, which saves the time of those before it; then all of them."""
    plant(monkeypatch)
    found = next((error for seed in (first, *SEEDS) if (error := failure(seed)) is not None), None)
    assert found is not None, f"{len(SEEDS)} seeds did not notice"
    assert re.search(promise, str(found)), found


def test_a_failure_is_told_with_the_few_requests_and_faults_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    a_digest_computed_at_pull_time(monkeypatch)
    first = next(first for bug, _, first in BUGS if bug is a_digest_computed_at_pull_time)
    seed, error = next((seed, found) for seed in (first, *SEEDS) if (found := failure(seed)) is not None)
    assert isinstance(error, Violation)
    assert any(error.request_id in line for line in error.__notes__)
    story = shrink(varied(WORLD, seed), seed, reruns_max=40)
    assert story is not None
    assert story.reruns <= 40
    assert len(story.script.requests) <= 10
    assert 1 <= len(story.script.faults) <= 2
    assert "Damage(" in str(story)
    assert "wrong tokens" in str(story)


def test_a_seed_that_holds_has_no_story() -> None:
    settings = replace(WORLD, traffic=TrafficProfile(requests=5))
    assert shrink(settings, 0) is None
