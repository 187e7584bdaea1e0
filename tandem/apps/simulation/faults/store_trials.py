"""Trials of a store's reliability: it is fed changed blocks, or restarts without its routers noticing, and workers
that have lost everything come back to what it has."""

from tandem.apps.simulation.faults.break_pair import BreakPair
from tandem.apps.simulation.faults.drawing import FaultProfile
from tandem.apps.simulation.faults.injector import Fault
from tandem.apps.simulation.faults.kill import Kill
from tandem.apps.simulation.faults.partition import Partition
from tandem.core.entropy import Entropy, SeededEntropy, below, unit


def draw_store_trials(
    profile: FaultProfile, seed: int, workers: tuple[str, ...], stores: tuple[str, ...], routers: tuple[str, ...]
) -> tuple[Fault, ...]:
    """The trials of one seed; none in a world without stores."""
    entropy, faults = SeededEntropy(seed, "store trials"), list[Fault]()
    for number in range(profile.trials if stores else 0):
        own = entropy.fork(f"trial {number}")
        at_s, store = unit(own) * profile.span_s, stores[below(own, len(stores))]
        if below(own, 2):
            faults.extend(_fed_with_changed_blocks(at_s, store, workers, own))
        else:
            faults.extend(_anew_unheard(at_s, store, workers, routers, own))
    return tuple(faults)


def _fed_with_changed_blocks(
    at_s: float, store: str, workers: tuple[str, ...], entropy: Entropy
) -> tuple[Fault, ...]:
    """Faults that for a while change every block that the store pulls."""
    for_s = 1.0 + unit(entropy) * 3.0
    spoilt = [BreakPair(at_s, worker, store, for_s, corrupts=True) for worker in workers]
    return (*spoilt, *_emptied(at_s + for_s, workers, entropy))


def _anew_unheard(
    at_s: float, store: str, workers: tuple[str, ...], routers: tuple[str, ...], entropy: Entropy
) -> tuple[Fault, ...]:
    """The store loses its way to the routers, not to the workers, and is started again meanwhile: routers go on
    sending for blocks of an incarnation that is gone."""
    for_s = 1.0 + unit(entropy) * 1.0
    lost = [Partition(at_s, store, router, for_s, True) for router in routers]
    again = Kill(at_s + (0.1 + 0.4 * unit(entropy)) * for_s, store, 0.01 + unit(entropy) * 0.1)
    return (*_emptied(at_s, workers, entropy), *lost, again)


def _emptied(at_s: float, workers: tuple[str, ...], entropy: Entropy) -> tuple[Fault, ...]:
    """Faults that restart workers with empty pools, one soon after the other: the blocks that they had must be
    brought back."""
    kills = list[Fault]()
    for worker in workers:
        if below(entropy, 4):
            kills.append(Kill(at_s + 0.3 * unit(entropy), worker, 0.05 + unit(entropy) * 0.2))
    return tuple(kills)
