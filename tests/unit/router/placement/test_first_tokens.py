"""How sharp the price of a late first token is, learned from how far off first tokens have been."""

from dataclasses import replace
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fleet.fleet import Fleet
from benchmarks.fleet.ours import OursDecider
from benchmarks.fleet.router import Knowledge
from benchmarks.fleet.scenarios.generated import fleet, generated, ours_settings, traffic
from router.placement import CostModel, Objective
from router.placement.learning.first_tokens import SHARPNESS, SHARPNESS_MAX, SHARPNESS_MIN, FirstTokens
from router.placement.scorers.stakes import stakes
from router.settings import CostPriors, PlacementSettings
from tandem.core.entropy import SeededEntropy, unit
from tests.unit.router.placement.test_router_placement import ask

times = st.floats(0.0, 1e9)


def drawn(errors: FirstTokens, sharpness: float, count: int, seed: int = 1, expected_ms: float = 800.0) -> None:
    """Log-logistic errors of that sharpness."""
    entropy = SeededEntropy(seed, "errors")
    for _ in range(count):
        share = min(max(unit(entropy), 1e-9), 1.0 - 1e-9)
        errors.observe(expected_ms, expected_ms * exp(log(share / (1.0 - share)) / sharpness))


@given(st.lists(st.tuples(times, times), max_size=60))
def test_nothing_that_happens_makes_the_price_a_cliff_or_flat(seen: list[tuple[float, float]]) -> None:
    errors = FirstTokens()
    for expected_ms, actual_ms in seen:
        errors.observe(expected_ms, actual_ms)
        assert SHARPNESS_MIN <= errors.sharpness <= SHARPNESS_MAX


@pytest.mark.parametrize("sharpness", [3.0, 5.0, 8.0])
def test_what_errors_say_is_found(sharpness: float) -> None:
    errors = FirstTokens()
    drawn(errors, sharpness, 2_000)
    assert errors.sharpness == pytest.approx(sharpness, rel=0.2)


def test_it_narrows_where_expectations_are_good_widens_where_bad_and_comes_back() -> None:
    errors, found = FirstTokens(), [SHARPNESS]
    for sharpness in (12.0, 2.0, 12.0):
        drawn(errors, sharpness, 600)
        found.append(errors.sharpness)
    assert found[1] > 1.5 * found[0] > 2.0 * found[2] < found[3]


def test_one_stall_says_little_and_what_takes_no_time_says_nothing() -> None:
    errors = FirstTokens()
    drawn(errors, 5.0, 300)
    before = errors.sharpness
    errors.observe(800.0, 1e7)
    assert errors.sharpness > 0.85 * before
    calm = FirstTokens()
    drawn(calm, 5.0, 300)
    for _ in range(100):
        calm.observe(2.0, 8.0)
    assert calm.sharpness > 0.85 * before


def test_models_have_errors_of_their_own_and_stakes_take_them() -> None:
    costs = CostModel(CostPriors())
    for _ in range(300):
        costs.observe_first("rough", 500.0, 1_500.0)
    request = ask(objective=Objective(ttft_ms=1_000.0))
    found = [stakes(request, 10.0, PlacementSettings(), costs.sharpness(model)) for model in ("rough", "other")]
    assert [each.sharpness for each in found if each is not None] == [costs.sharpness("rough"), SHARPNESS]
    assert costs.sharpness("rough") < 0.7 * SHARPNESS


@pytest.mark.parametrize("name", ["bimodal", "prompt_heavy"])
def test_on_generated_traffic_it_follows_how_noisy_workers_are(name: str) -> None:
    found = []
    for noise in (0.0, 1.0):
        settings = fleet(("unified",) * 2, itl_target_s=0.05)
        settings = replace(settings, worker=replace(settings.worker, step_noise=noise), seed=1)
        deciders: list[OursDecider] = []

        def made(known: Knowledge, deciders: list[OursDecider] = deciders) -> OursDecider:
            deciders.append(OursDecider(known, ours_settings(), 1))
            return deciders[0]

        Fleet(settings, made).run(generated(traffic(name), 1, 2.0, 60.0).workload)
        found.append(deciders[0].costs.sharpness("m"))
    assert found[0] > 1.2 * found[1]
