"""What kind of world a seed lives in: how much breaks and of what kind, how tight it is, how its clients behave."""

from dataclasses import replace

from router.settings import AdmissionSettings, RouterSettings
from tandem.core.entropy import Entropy, SeededEntropy, below, unit
from tandem.sim.faults import KINDS, FaultProfile
from tandem.sim.traffic import TrafficProfile
from tandem.sim.world import WorldSettings

_SHORT_LEASE_S = 5.0
_SHORT_QUEUE = 3
"""Sequences waiting on a worker; more are refused, and tried elsewhere while there is a budget for it."""
_SMALL_STALL_S = 12.0
"""Where a pool holds one long prompt, two of 1,000 seeds (715, 73994100053) still let a request stand still until
a work has waited for its place for `queue_s`. Fetches that have brought nothing give way
(`tandem.engine.idle_fetches`); what is left is probably fetches that have brought a part, and wait for exports that
wait for their own pool."""
_SMALL_POOL = 72
"""Blocks with which the longest prompt just fits, so that others are preempted for it."""


def varied(base: WorldSettings, seed: int) -> WorldSettings:
    """`base` with everything else drawn from the seed. Requests and kills stay as many as they are."""
    entropy = SeededEntropy(seed, "scenario")
    settings = replace(
        base,
        traffic=_traffic(base.traffic, entropy.fork("traffic")),
        faults=_faults(base.faults, entropy.fork("faults")),
        skew_s=unit(entropy) * 20.0 if below(entropy, 2) else 0.0,
    )
    if below(entropy, 4) == 0:
        settings = replace(settings, model=replace(base.model, blocks=_SMALL_POOL), stall_s=_SMALL_STALL_S)
    if below(entropy, 5) == 0:
        scheduler = replace(base.scheduler, max_waiting=_SHORT_QUEUE)
        settings = replace(settings, router=_crowded(base.router, entropy), scheduler=scheduler)
    return _short_leases(settings) if below(entropy.fork("leases"), 3) == 0 else settings


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
