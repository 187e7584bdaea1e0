"""Workers that tell tokens every few steps: fewer messages, and nothing lost, repeated or wrong under faults."""

from dataclasses import replace
from functools import partial

import pytest

from router.settings import RouterSettings
from tandem.apps.simulation.faults.drawing import FaultProfile
from tandem.apps.simulation.network import NetworkProfile
from tandem.apps.simulation.platform import Shape, named_workers
from tandem.apps.simulation.replay import Arrival, ReplaySettings, replay
from tandem.apps.simulation.world import WorldSettings, simulate
from tandem.core.kv import pack_tokens
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel

MODEL = SimulatedModel(blocks=512, base_s=0.01, token_s=1e-4)
SHAPE = Shape(named_workers(2, 2), MODEL, SchedulerSettings(), RouterSettings(), NetworkProfile())


def test_all_tokens_come_in_fewer_pieces_and_the_first_is_not_later() -> None:
    arrivals = [Arrival(0.5 * at, pack_tokens(range(1000 + 50 * at, 1040 + 50 * at)), 33) for at in range(10)]
    every = replay(ReplaySettings(SHAPE, check_every=1), arrivals).tally
    few = replay(ReplaySettings(replace(SHAPE, stream_interval=8), check_every=1), arrivals).tally
    assert few.ends == every.ends == {"done": 10}
    assert few.output_tokens == every.output_tokens == 330
    assert len(every.gaps_s) == 10 * 32
    assert len(few.gaps_s) <= 10 * (2 + 32 // 8 + 1)
    assert max(few.ttft_s) <= max(every.ttft_s) + 0.01


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_promises_hold_under_faults(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.apps.simulation.world.Shape", partial(Shape, stream_interval=4))
    assert simulate(WorldSettings(faults=FaultProfile(kills=2, corrupt_share=1.0)), seed)
