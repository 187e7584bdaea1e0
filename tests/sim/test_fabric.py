"""Worlds with stores, Redis, silent workers and two routers: each does its part, and none is needed for an answer."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kv_transfer.index.redis_settings import RedisSettings
from kv_transfer.tiers.settings import TierSettings
from tandem.apps.simulation.faults.drawing import FaultProfile, draw_faults
from tandem.apps.simulation.faults.freeze import Freeze
from tandem.apps.simulation.faults.freeze_router import FreezeRouter
from tandem.apps.simulation.faults.kill import Kill
from tandem.apps.simulation.faults.redis import RedisFault
from tandem.apps.simulation.faults.restart_router import RestartRouter
from tandem.apps.simulation.faults.tier import TierFault
from tandem.apps.simulation.scenario import varied
from tandem.apps.simulation.topology import PlatformTopology
from tandem.apps.simulation.traffic import TrafficProfile
from tandem.apps.simulation.world import Report, Script, WorldSettings, features, script, simulate
from tandem.engine.simulated.model import SimulatedModel

SIZE = SimulatedModel().layout.block_bytes
REDIS = RedisSettings("redis://redis", publish_s=0.5, retry_max_s=1.0, lease_s=3.0, entry_s=60.0)
STORE = TierSettings(dram_bytes=256 * SIZE, nvme_dir=Path("/nowhere"), nvme_bytes=512 * SIZE, segment_bytes=64 * SIZE)
CALM = FaultProfile(kills=0, corrupt_share=0.0)
RETURNING = TrafficProfile(requests=40, shared_prefix_tokens=320, shared_prefixes=6, shared_share=0.9)
"""Clients that come back to long prompts."""
WORLD = WorldSettings(traffic=RETURNING, faults=CALM)
WORKERS = ("p0", "p1", "d0", "d1")


def world(**fabric: object) -> WorldSettings:
    return replace(WORLD, fabric=PlatformTopology(store_tiers=STORE, collect_after_s=0.05, **fabric))  # type: ignore[arg-type]


def under(settings: WorldSettings, *faults: object, seed: int = 0) -> Report:
    """A world that these faults befall, and no others."""
    requests = script(settings, seed).requests
    return simulate(settings, seed, Script(requests, faults))  # type: ignore[arg-type]


def all_done(report: Report) -> bool:
    return {outcome.end for outcome in report.outcomes} <= {"done", "cancelled"}


def test_what_a_store_keeps_outlives_the_workers_that_computed_it() -> None:
    """All workers lose their pools in the middle: from then on the store has what the first half had computed."""
    deaths = [Kill(4.0 + 0.01 * number, name, 0.2) for number, name in enumerate(WORKERS)]
    assert under(world(stores=1), *deaths).brought["store"] >= 10


@pytest.mark.parametrize("linked", [True, False], ids=["with links", "known from Redis alone"])
def test_a_store_may_die_freeze_rot_and_fill_up_meanwhile(linked: bool) -> None:
    settings = world(stores=2, linked=linked, redis=RedisSettings() if linked else REDIS)
    report = under(
        settings,
        Kill(2.0, "s0", 0.3),
        TierFault(2.5, "s1", "dram", "damage", 0.0),
        Freeze(3.0, "s1", 3.0),
        TierFault(3.5, "s0", "nvme", "full", 3.0),
        Kill(4.0, "p0", 0.3),
        Kill(6.5, "s1", 0.3),
    )
    assert all_done(report)
    assert report.corrupted > 0


def test_stores_without_links_are_found_by_way_of_redis() -> None:
    deaths = [Kill(4.0 + 0.01 * number, name, 0.2) for number, name in enumerate(WORKERS)]
    report = under(world(stores=1, linked=False, redis=REDIS), *deaths)
    assert report.brought["store"] > 0
    assert report.looked_up["found"] > 0


def test_serving_goes_on_when_there_is_no_redis() -> None:
    report = under(world(stores=1, linked=False, redis=REDIS, redis_down=True))
    assert all_done(report)
    assert set(report.looked_up) <= {"skipped"}


@pytest.mark.parametrize("what", ["absent", "empty", "flushed", "behind", "hangs", "mute"])
def test_whatever_becomes_of_redis_nothing_else_happens(what: str) -> None:
    """`simulate` itself waits until Redis says of everybody what is so."""
    faults = [RedisFault(at_s, what, 1.0) for at_s in (1.0, 3.0, 5.0)]
    assert all_done(under(world(stores=1, linked=False, redis=REDIS), *faults))


def test_workers_without_events_are_guessed_about() -> None:
    every = under(world(silent=WORKERS))
    assert all_done(every)
    assert sum(under(world(silent=WORKERS), seed=seed).brought.get("peer", 0) for seed in range(3)) > 0


def test_one_router_may_die_or_stand_still_and_the_others_clients_notice_nothing() -> None:
    settings = world(routers=2)
    whole = under(settings)
    ways = Counter(outcome.routers[0] for outcome in whole.outcomes)
    assert min(ways["router"], ways["router2"]) >= 10
    deaths = [RestartRouter(at_s, 0.3, "router2") for at_s in (1.0, 2.0, 3.0, 4.0)]
    broken = under(settings, *deaths, FreezeRouter(5.0, 2.5, "router2"))
    theirs = [outcome for outcome in broken.outcomes if outcome.routers == ["router"]]
    assert {outcome.end for outcome in theirs} <= {"done", "cancelled"}
    assert max(outcome.longest_pause_s for outcome in theirs) < 1.0
    ours = [outcome.end for outcome in broken.outcomes if "router2" in outcome.routers]
    assert "disconnected" in ours


def test_every_second_world_has_a_store_and_each_feature_is_drawn() -> None:
    worlds = [varied(WorldSettings(), seed) for seed in range(400)]
    drawn = Counter(feature for each in worlds for feature in features(each))
    share = {feature: count / len(worlds) for feature, count in drawn.items()}
    assert 0.4 < share["store"] < 0.6
    assert 0.3 < share["Redis"] < 0.5
    assert share["store without links"] > 0.08
    assert share["Redis never there"] > 0.02
    assert 0.15 < share["workers without events"] < 0.35
    assert 0.25 < share["two routers"] < 0.42
    assert 0.06 < share["a split that changes"] < 0.2
    assert 0.25 < share["abusers"] < 0.42
    faults = [
        fault
        for seed, each in enumerate(worlds)
        for fault in draw_faults(each.faults, seed, WORKERS, each.fabric.store_names, each.fabric.router_names)
    ]
    nodes = Counter(getattr(fault, "worker", "") for fault in faults)
    assert nodes["s0"] > 50
    assert sum(isinstance(fault, RedisFault) for fault in faults) > 50
    assert sum(getattr(fault, "router", "") == "router2" for fault in faults) > 20


def test_a_plain_world_has_none_of_it_and_is_otherwise_the_same() -> None:
    for seed in range(40):
        plain, woven = varied(WorldSettings(), seed, plain=True), varied(WorldSettings(), seed)
        assert plain.fabric == PlatformTopology()
        assert plain.tiers == woven.tiers
        assert plain.router == woven.router
        ours, theirs = script(plain, seed).faults, script(woven, seed).faults
        assert set(ours) <= set(theirs)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_world_with_everything_repeats_itself_in_another_process(hash_seed: str) -> None:
    program = (
        "from tests.sim.test_fabric import everything\n"
        "report = everything()\n"
        "print(report.trace, report.rounds, report.virtual_s)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    here = everything()
    assert done.stdout.split() == [here.trace, str(here.rounds), str(here.virtual_s)]


def everything() -> Report:
    """Two stores, Redis, two routers, a silent worker, own tiers, and faults of all kinds."""
    faults = FaultProfile(others=4, tiers=2, stores=3, redis=3, routers=2)
    settings = world(stores=2, linked=False, redis=REDIS, routers=2, silent=("d1",))
    return simulate(replace(settings, faults=faults, tiers=STORE, skew_s=5.0), 4)
