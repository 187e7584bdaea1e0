"""Worlds whose workers keep blocks below their pools: everything is right, and would be seen if it were not."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kv_transfer import pull_verification as verifying
from kv_transfer.tiers.backend import BlockRead, BlockReadFailed, Wanted
from kv_transfer.tiers.memory_backend import MemoryBackend
from kv_transfer.tiers.settings import TierSettings
from tandem.apps.simulation.faults.drawing import FaultProfile
from tandem.apps.simulation.traffic import TrafficProfile
from tandem.apps.simulation.world import WorldSettings, simulate
from tandem.core.kv import Handle
from tandem.engine.digest import unbind
from tandem.engine.protocol import BlockMemory
from tandem.engine.simulated.model import SimulatedModel

SIZE = SimulatedModel().layout.block_bytes
WORLD = replace(
    WorldSettings(),
    tiers=TierSettings(
        dram_bytes=128 * SIZE, nvme_dir=Path("/nowhere"), nvme_bytes=1024 * SIZE, segment_bytes=64 * SIZE
    ),
    traffic=TrafficProfile(requests=60, shared_prefix_tokens=400, shared_prefixes=8, shared_share=0.9),
    faults=FaultProfile(kills=1, corrupt_share=1.0, tiers=12),
)
"""Clients come back to long prompts that the pools cannot keep, and copies rot."""
SEEDS = range(30)


def test_blocks_come_from_every_tier_and_from_peers_and_every_token_is_right() -> None:
    brought: Counter[str] = Counter()
    for seed in SEEDS:
        brought.update(simulate(WORLD, seed).brought)
        if all(brought[tier] for tier in ("dram", "nvme", "peer")):
            return
    raise AssertionError(f"only {dict(brought)} were brought")


def believing(backend: MemoryBackend, wanted: Wanted, memory: BlockMemory) -> BlockRead | BlockReadFailed:
    """Reads a copy back without looking at its digest."""
    record = backend._disk.records.get(wanted.place)
    if record is None:
        return BlockReadFailed(wanted.index, "swapped")
    memory.block(wanted.slot)[:] = record.data
    return BlockRead(wanted.index, record.words)


def trusting(_words: Sequence[bytes], handles: Sequence[Handle], **_: Any) -> list[bytes]:
    """Takes what a peer sent for what it should have sent."""
    return [unbind(handle.digests, handle.epoch, handle.name, handle.generation) for handle in handles]


@pytest.mark.parametrize(
    ("owner", "method", "bug"),
    [(MemoryBackend, "_land", believing), (verifying, "judge", trusting)],
    ids=["copies are not checked", "what peers send is not checked"],
)
def test_wrong_bytes_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch, owner: object, method: str, bug: object
) -> None:
    monkeypatch.setattr(owner, method, bug)
    found = next((error for seed in SEEDS if (error := failure(seed)) is not None), None)
    assert "wrong tokens" in str(found)


def failure(seed: int) -> AssertionError | None:
    try:
        simulate(WORLD, seed)
    except AssertionError as error:
        return error
    return None
