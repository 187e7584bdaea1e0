"""Steps that scatter and workers that are slower than others."""

from dataclasses import replace
from statistics import fmean, stdev

import pytest

from benchmarks.fleet.fleet import Fleet, FleetSettings, roles
from benchmarks.fleet.router import Knowledge
from benchmarks.fleet.step_noise import StepNoise
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request, Stage, Workload

TIME = StepTime(base_s=0.01, sequence_s=1e-4, read_s=1e-7, token_s=5e-5, context_s=2e-9)
FLEET = FleetSettings(roles(unified=2), WorkerSettings(30_000, 64, TIME))


class InTurn:
    """Every prompt to the next worker."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._count = len(knowledge.workers)

    def place(self, request: Request, now: float) -> tuple[int, int]:
        return request.number % self._count, -1

    def first_token(self, request: Request, now: float) -> None: ...

    def finished(self, request: Request, now: float) -> None: ...

    def transferred(self, request: Request, tokens: int, seconds: float) -> None: ...


def played(settings: FleetSettings, gap_s: float = 0.0) -> list[Request]:
    requests = [
        Request(number, gap_s * number, tuple(range(number << 8, (number << 8) + 10)), 64, 640, 200, 200)
        for number in range(8)
    ]
    fleet = Fleet(settings, InTurn)
    fleet.run(Workload("noise", (Stage(1.0, 1.0, tuple(requests)),)), check_every=7)
    return requests


def test_noise_is_log_normal_with_mean_one() -> None:
    noise = StepNoise(0.3, 1, 2)
    factors = [noise.factor() for _ in range(20_000)]
    assert fmean(factors) == pytest.approx(1.0, abs=0.01)
    assert stdev(factors) == pytest.approx(0.307, abs=0.015)


def test_noisy_runs_are_those_of_their_seed() -> None:
    noisy = replace(FLEET, worker=replace(FLEET.worker, step_noise=0.1))
    first, again, other = (
        [(each.first_s, each.end_s) for each in played(replace(noisy, seed=seed))] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    exact = [request.end_s for request in played(FLEET)]
    assert [end_s for _, end_s in first] == pytest.approx(exact, rel=0.05)
    assert [end_s for _, end_s in first] != exact


def test_a_slower_worker_takes_longer_for_everything_until_it_is_as_fast_again() -> None:
    even, slow = played(FLEET), played(replace(FLEET, paces=((0.0, 1, 1.3),)))
    for before, after in zip(even, slow, strict=True):
        factor = 1.3 if before.decode == 1 else 1.0
        assert after.ttft_s == pytest.approx(factor * before.ttft_s)
        assert after.tpot_s == pytest.approx(factor * before.tpot_s)
    mended = played(replace(FLEET, paces=((0.0, 1, 1.3), (0.5, 1, 1.0))))
    for before, after in zip(slow, mended, strict=True):
        if before.decode == 1:
            assert after.ttft_s == before.ttft_s
            assert after.tpot_s < before.tpot_s


def test_the_pace_changes_at_the_next_step_however_many_were_to_be_done_at_once() -> None:
    at_once = played(replace(FLEET, paces=((0.505, 0, 2.0),)))
    single = played(replace(FLEET, paces=((0.505, 0, 2.0),), worker=replace(FLEET.worker, steps_max=1)))
    assert [each.end_s for each in at_once] == pytest.approx([each.end_s for each in single])
