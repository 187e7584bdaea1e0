"""Whole platforms that do today what they did when it was written down.

Every request is answered with the same tokens at the same virtual time, from the same workers, for the same reasons
at the same costs; as many blocks are kept, brought, pinned and given up; the same figures are counted. Who moves,
renames or tidies sees here that nothing else has changed, and who changes a decision reads in the difference whom it
concerns.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from kv_transfer.index.redis_settings import RedisSettings
from kv_transfer.tiers.settings import TierSettings
from router.settings import (
    AdmissionSettings,
    CostPriors,
    PlacementSettings,
    RetrySettings,
    RouterSettings,
)
from tandem.apps.simulation.faults.drawing import FaultProfile
from tandem.apps.simulation.scenario import varied
from tandem.apps.simulation.topology import PlatformTopology
from tandem.apps.simulation.traffic import TrafficProfile
from tandem.apps.simulation.world import WorldSettings
from tandem.core.slo import Slo
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tests.worlds.golden import assert_as_written
from tests.worlds.golden_world import demanding, plain, told

MODEL = SimulatedModel(blocks=160, token_s=0.0001, base_s=0.008, eos_rate=0.005)
SIZE = MODEL.layout.block_bytes
TIERS = TierSettings(
    dram_bytes=96 * SIZE,
    nvme_dir=Path("/nowhere"),
    nvme_bytes=256 * SIZE,
    segment_bytes=32 * SIZE,
    batch_bytes=16 * SIZE,
)
CALM = FaultProfile(kills=0, corrupt_share=0.0)
RETURNING = TrafficProfile(
    requests=24, span_s=3.0, shared_prefixes=4, shared_prefix_tokens=320, shared_share=0.8, prompt_tokens=(1, 80)
)
BASE = WorldSettings(model=MODEL, faults=CALM, traffic=TrafficProfile(requests=16, span_s=2.0))


def with_policy(name: str, **more: object) -> WorldSettings:
    """A world whose router places by another policy."""
    placement = replace(PlacementSettings(policy=name), **more)  # type: ignore[arg-type]
    return replace(BASE, router=RouterSettings(placement=placement))


WORLDS = {
    "objectives": replace(BASE, traffic=TrafficProfile(requests=40, span_s=2.0, output_tokens=(1, 24), bursts=2)),
    "killed": replace(BASE, faults=FaultProfile(kills=2, corrupt_share=1.0)),
    "tiers": replace(BASE, traffic=RETURNING, tiers=TIERS, model=replace(MODEL, blocks=72)),
    "written through": replace(
        BASE,
        traffic=RETURNING,
        tiers=replace(TIERS, write_through=True, tenant_share=0.6, pin_share=0.3),
        faults=FaultProfile(kills=1, corrupt_share=1.0, tiers=8),
    ),
    "small pools": replace(
        BASE,
        decode=1,
        model=replace(MODEL, blocks=60),
        scheduler=SchedulerSettings(max_batched_tokens=128, max_sequences=6, watermark=0.1, min_prefill_tokens=8),
        traffic=TrafficProfile(
            requests=40, span_s=1.5, prompt_tokens=(1, 300), long_prompt_share=0.0, branches_share=0.4
        ),
    ),
    "crowded": replace(
        BASE,
        scheduler=SchedulerSettings(max_batched_tokens=128, max_waiting=3, itl_target_s=0.02),
        router=RouterSettings(
            admission=AdmissionSettings(requests_max=24, queued_max=8),
            placement=PlacementSettings(sequences_per_worker_max=4),
            retry=RetrySettings(share=0.05, burst=1),
        ),
        traffic=TrafficProfile(requests=60, span_s=1.0, deadline_share=0.3, cancel_share=0.2),
    ),
    "hedged": replace(
        BASE,
        router=RouterSettings(retry=RetrySettings(hedge_after=1.5, hedge_after_s=0.03)),
        faults=FaultProfile(kills=0, corrupt_share=0.0, others=4, kinds=("slow", "freeze", "lose"), pairs=2),
    ),
    "leaving": replace(BASE, faults=FaultProfile(kills=1, drains=3), traffic=TrafficProfile(requests=24, span_s=3.0)),
    "returning clients": replace(
        BASE,
        faults=FaultProfile(kills=0, others=4, kinds=("cut", "router", "break", "engine")),
        traffic=TrafficProfile(requests=24, span_s=3.0, resumable_share=0.6, slow_share=0.3),
    ),
    "changing split": replace(BASE, auto=True, prefill=1, decode=2),
    "stores": replace(
        BASE,
        traffic=RETURNING,
        tiers=TIERS,
        fabric=PlatformTopology(
            stores=1,
            store_tiers=TIERS,
            linked=True,
            redis=RedisSettings("redis://redis", publish_s=0.5, retry_max_s=1.0, lease_s=3.0, entry_s=60.0),
            routers=2,
        ),
    ),
    "unified": replace(BASE, prefill=0, decode=3, traffic=RETURNING),
    "slow network": replace(
        BASE,
        traffic=RETURNING,
        router=RouterSettings(priors=CostPriors(transfer_bytes_per_s=1e5, prefill_tokens_per_s=2_000.0)),
    ),
    "local": with_policy("prefix_aware", prefer="local"),
    "disaggregated": with_policy("prefix_aware", prefer="disaggregated", fetch=False),
    "least loaded": with_policy("least_loaded"),
    "round robin": with_policy("round_robin"),
    "power of two": with_policy("power_of_two"),
    "consistent hash": with_policy("consistent_hash", hash_tokens=16),
}
DEMANDING = ("objectives", "tiers", "written through", "small pools", "unified", "slow network", "hedged")
SLOS = {
    "objectives": Slo(0.12, 0.012, 0.02),
    "killed": Slo(0.1, 0.02),
    "crowded": Slo(0.3, 0.03),
    "slow network": Slo(0.5, None),
    "unified": Slo(0.1, 0.012),
    "stores": Slo(0.2, 0.02, 0.05, 2.0),
    "changing split": Slo(0.5, 0.02),
}
DRAWN = (5, 8, 13, 21)
"""Seeds of worlds that are drawn whole, as those of `make sim` are."""


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_serves_as_it_did_when_it_was_written_down(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(WORLDS[name], 7, demanding if name in DEMANDING else plain, monkeypatch, SLOS.get(name))
    assert_as_written(f"world {name}".replace(" ", "_"), lines)


@pytest.mark.parametrize("seed", DRAWN)
def test_a_drawn_world_serves_as_it_did_when_it_was_written_down(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(varied(BASE, seed), seed, plain, monkeypatch)
    assert_as_written(f"world_drawn_{seed}", lines)
