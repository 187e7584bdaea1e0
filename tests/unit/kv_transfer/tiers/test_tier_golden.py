"""A worker's tiers through a whole life on a disk that fails, fills up, rots and is found again.

Every block that comes back has its own bytes; routers are told exactly what is there; no more files are kept than
were allowed, none stays open and no slot of the engine stays held. And each life is the one that was written down,
down to the reads and writes of the disk: what is kept, evicted, moved and given up is not another after a change that
is to change nothing.
"""

import pytest

from kv_transfer.tiers.settings import TierSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.apps.simulation.quiet import quiet_logs
from tests.worlds.disk_world import DiskWorld, disk_settings, stepped
from tests.worlds.golden import assert_as_written, digest
from tests.worlds.golden_world import figures

LIVES = {
    "disk alone": disk_settings(0, 5),
    "written through": disk_settings(16, 6, write_through=True),
    "written late": disk_settings(16, 6, clean_share=0.5, tenant_share=0.6, pin_share=0.4),
    "few threads": disk_settings(12, 8, copy_threads=1, read_threads=1, write_threads=1, batch_bytes=1),
    "short line": disk_settings(24, 4, offers_max=4),
}
SEEDS = range(6)


async def lived(loop: VirtualLoop, seed: int, settings: TierSettings) -> list[str]:
    world = DiskWorld(loop, seed, settings)
    await world.live()
    return [*world.story, *figures(world.meter)]


@pytest.mark.parametrize("name", LIVES)
def test_tiers_live_as_they_did_when_it_was_written_down(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stepped(monkeypatch)
    stories = {}
    for seed in SEEDS:
        with quiet_logs():
            story = run(lambda loop, seed=seed: lived(loop, seed, LIVES[name]), limit_s=1000.0)  # type: ignore[misc]
        brought = sum(line.startswith("  restored") and ("nvme" in line or "dram" in line) for line in story)
        stories[f"{seed}: {digest(story)}, {len(story)} lines, {brought} prompts had something"] = story
    assert_as_written(f"tiers {name}".replace(" ", "_"), list(stories), stories)
