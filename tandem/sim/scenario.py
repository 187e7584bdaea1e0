"""What kind of world a seed lives in: how much breaks and of what kind, how tight it is, how its clients behave."""

from dataclasses import replace

from router.settings import AdmissionSettings, RouterSettings
from tandem.core.entropy import Entropy, SeededEntropy, below, unit
from tandem.sim.faults import KINDS, FaultProfile
from tandem.sim.traffic import TrafficProfile
from tandem.sim.world import WorldSettings

_SMALL_POOL = 72
"""Blocks with which the longest prompt just fits, so that others are preempted for it."""
_SMALL_STALL_S = 18.0
"""Where a pool holds one long prompt, prefill and decode workers can wait for each other in a circle (each holds
blocks that wait for a place on the next one) until a work has waited for its place for `queue_s`."""


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
        settings = replace(settings, router=_crowded(base.router, entropy))
    return settings


def _traffic(base: TrafficProfile, entropy: Entropy) -> TrafficProfile:
    return replace(
        base,
        cancel_share=unit(entropy) * 0.3,
        stop_share=unit(entropy) * 0.4,
        branches_share=unit(entropy) * 0.4,
        long_prompt_share=unit(entropy) * 0.2,
        shared_share=unit(entropy),
        deadline_share=unit(entropy) * 0.4 if below(entropy, 2) else 0.0,
        bursts=below(entropy, 4),
    )


def _faults(base: FaultProfile, entropy: Entropy) -> FaultProfile:
    """Up to six faults more, of a few kinds or of all."""
    kinds = tuple(kind for kind in KINDS if below(entropy, 3) == 0) or KINDS
    return replace(base, others=below(entropy, 7), kinds=kinds)


def _crowded(base: RouterSettings, entropy: Entropy) -> RouterSettings:
    """Bounds that a burst can reach."""
    sequences, requests = 6 + below(entropy, 6), 24 + below(entropy, 24)
    return replace(
        base,
        admission=AdmissionSettings(requests_max=requests, queued_max=8 + below(entropy, 8)),
        placement=replace(base.placement, sequences_per_worker_max=sequences),
    )
