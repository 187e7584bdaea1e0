"""Draws the kind of world a seed lives in: how much breaks and of what kind, how tight it is, how its clients
behave."""

from dataclasses import replace
from pathlib import Path

from kv_transfer.index.redis_settings import RedisSettings
from kv_transfer.tiers.settings import TierSettings
from router.settings import AdmissionSettings, RouterSettings
from tandem.apps.simulation.faults.drawing import KINDS, FaultProfile
from tandem.apps.simulation.topology import PlatformTopology
from tandem.apps.simulation.traffic import TrafficProfile
from tandem.apps.simulation.world import WorldSettings, workers
from tandem.core.entropy import Entropy, SeededEntropy, below, unit

_SHORT_LEASE_S = 5.0
_SHORT_QUEUE = 3
"""Sequences waiting on a worker; more are refused, and tried elsewhere while there is a budget for it."""
_SMALL_POOL = 72
"""Blocks with which the longest prompt just fits, so that others are preempted for it."""
_REDIS = RedisSettings("redis://redis", publish_s=0.5, retry_max_s=1.0, lease_s=3.0, entry_s=60.0)
"""Redis whose leases end, and are renewed, while something is wrong."""


def varied(base: WorldSettings, seed: int, *, plain: bool = False) -> WorldSettings:
    """A copy of `base` with everything except the numbers of requests and kills drawn from the seed. A `plain` world
    has one router, to which every worker reports its blocks, and neither stores nor Redis; the rest is the same."""
    entropy = SeededEntropy(seed, "scenario")
    settings = replace(
        base,
        traffic=_traffic(base.traffic, entropy.fork("traffic")),
        faults=_faults(base.faults, entropy.fork("faults")),
        skew_s=unit(entropy) * 20.0 if below(entropy, 2) else 0.0,
    )
    if below(entropy, 4) == 0:
        settings = replace(settings, model=replace(base.model, blocks=_SMALL_POOL))
    if below(entropy, 5) == 0:
        scheduler = replace(base.scheduler, max_waiting=_SHORT_QUEUE)
        settings = replace(settings, router=_crowded(base.router, entropy), scheduler=scheduler)
    if below(entropy.fork("tiers"), 2):
        settings = _tiered(settings, entropy.fork("own tiers"))
    if below(entropy.fork("leases"), 3) == 0:
        settings = _short_leases(settings)
    if below(entropy.fork("auto role"), 8) == 0:
        settings = replace(settings, auto=True)
    settings = replace(settings, traffic=_abused(settings.traffic, entropy.fork("abusers")))
    return settings if plain else _woven(settings, entropy.fork("fabric"))


def _tiered(settings: WorldSettings, entropy: SeededEntropy) -> WorldSettings:
    """Workers that keep blocks in DRAM, most on NVMe too, for clients that come back to long prompts."""
    size = settings.model.layout.block_bytes
    dram, nvme = (1 + below(entropy, 4)) * 64, below(entropy, 4) * 256
    tiers = TierSettings(
        dram_bytes=dram * size,
        nvme_dir=Path("/nowhere"),
        nvme_bytes=nvme * size,
        segment_bytes=max(size, nvme * size // 8),
        batch_bytes=16 * size,
        write_through=below(entropy, 2) == 0,
    )
    traffic = _returning(settings, entropy)
    faults = replace(settings.faults, tiers=below(entropy, 8))
    return replace(settings, tiers=tiers, traffic=traffic, faults=faults)


def _woven(settings: WorldSettings, entropy: SeededEntropy) -> WorldSettings:
    """Stores in half of the worlds, Redis in a third, silent workers in a quarter, a second router in a third."""
    own = entropy.fork("stores")
    stores = 1 + (below(own, 4) == 0) if below(own, 2) else 0
    own = entropy.fork("redis")
    redis = _REDIS if below(own, 2 if stores else 5) == 0 else RedisSettings()
    linked = not (stores and redis.urls) or below(own, 5) == 0
    fabric = PlatformTopology(
        stores=stores,
        store_tiers=_store_tiers(settings, entropy.fork("store tiers")),
        collect_after_s=unit(entropy.fork("collect")) * 0.5,
        linked=linked,
        redis=redis,
        redis_down=bool(redis.urls) and below(own, 8) == 0,
        silent=_silent(settings, entropy.fork("silent")),
        routers=1 + (below(entropy.fork("routers"), 3) == 0),
    )
    own = entropy.fork("troubles")
    troubles = 1 + below(own, 6), below(own, 5), below(own, 3)
    faults = replace(
        settings.faults,
        stores=troubles[0] if stores else 0,
        trials=below(entropy.fork("trials"), 3) if stores else 0,
        redis=troubles[1] if redis.urls and not fabric.redis_down else 0,
        routers=troubles[2] if fabric.routers > 1 else 0,
    )
    if stores:
        settings = _for_stores(settings, entropy.fork("prefixes"))
    return replace(settings, fabric=fabric, faults=faults)


def _for_stores(settings: WorldSettings, entropy: SeededEntropy) -> WorldSettings:
    """Clients that come back, and half of the time pools too small for what they come back to."""
    if below(entropy, 2):
        settings = replace(settings, model=replace(settings.model, blocks=_SMALL_POOL))
    return replace(settings, traffic=_returning(settings, entropy))


def _store_tiers(settings: WorldSettings, entropy: SeededEntropy) -> TierSettings:
    """Less memory than workers have in their pools, and half of the time NVMe beneath it."""
    size = settings.model.layout.block_bytes
    dram, nvme = (1 + below(entropy, 6)) * 48, below(entropy, 2) * (1 + below(entropy, 3)) * 256
    return TierSettings(
        dram_bytes=dram * size,
        nvme_dir=Path("/nowhere"),
        nvme_bytes=nvme * size,
        segment_bytes=max(size, nvme * size // 8),
        batch_bytes=16 * size,
    )


def _silent(settings: WorldSettings, entropy: SeededEntropy) -> tuple[str, ...]:
    """Up to all workers of every fourth world."""
    names = [name for name, _ in workers(settings)]
    if below(entropy, 4):
        return ()
    most = below(entropy, len(names)) + 1
    return tuple(name for name in names if below(entropy, len(names)) < most)


def _returning(settings: WorldSettings, entropy: SeededEntropy) -> TrafficProfile:
    """Clients that come back to prompts long enough to be worth bringing."""
    shared = min(16 * (3 + below(entropy, 24)), _shared_tokens_max(settings))
    return replace(settings.traffic, shared_prefix_tokens=shared, shared_share=0.7)


def _shared_tokens_max(settings: WorldSettings) -> int:
    """The longest prefix with which the longest prompt, its answer and a copied tail still fit into a pool."""
    model, traffic = settings.model, settings.traffic
    size = model.block_tokens
    rest = traffic.long_prompt_tokens + traffic.output_tokens[1] + size
    return (model.blocks * size - rest) // size * size


def _short_leases(settings: WorldSettings) -> WorldSettings:
    """Leases that end during the longer partitions."""
    router = settings.router
    return replace(settings, router=replace(router, deadlines=replace(router.deadlines, lease_s=_SHORT_LEASE_S)))


def _traffic(base: TrafficProfile, entropy: SeededEntropy) -> TrafficProfile:
    return replace(
        base,
        cancel_share=unit(entropy) * 0.3,
        stop_share=unit(entropy) * 0.4,
        branches_share=unit(entropy) * 0.4,
        long_prompt_share=unit(entropy) * 0.2,
        shared_share=unit(entropy),
        deadline_share=unit(entropy) * 0.4 if below(entropy, 2) else 0.0,
        bursts=below(entropy, 4),
        resumable_share=unit(entropy) * 0.6 if below(entropy, 2) else 0.0,
        slow_share=unit(entropy.fork("slow")) * 0.3,
    )


def _abused(base: TrafficProfile, entropy: SeededEntropy) -> TrafficProfile:
    """Up to four abusers in a third of the worlds."""
    return replace(base, abusers=1 + below(entropy, 4) if below(entropy, 3) == 0 else 0)


def _faults(base: FaultProfile, entropy: SeededEntropy) -> FaultProfile:
    """Up to six faults more, of a few kinds or of all, up to three workers that leave in good order, and up to two
    broken pairs."""
    kinds = tuple(kind for kind in KINDS if below(entropy, 3) == 0) or KINDS
    return replace(
        base,
        others=below(entropy, 7),
        kinds=kinds,
        drains=below(entropy.fork("drains"), 4),
        pairs=below(entropy.fork("pairs"), 3),
    )


def _crowded(base: RouterSettings, entropy: Entropy) -> RouterSettings:
    """Bounds that a burst can reach, and a budget of retries that a few faults use up."""
    sequences, requests = 6 + below(entropy, 6), 24 + below(entropy, 24)
    return replace(
        base,
        admission=AdmissionSettings(requests_max=requests, queued_max=8 + below(entropy, 8)),
        placement=replace(base.placement, sequences_per_worker_max=sequences),
        retry=replace(base.retry, share=0.05, burst=1),
    )
