"""Draws which faults a seed has, and when. Gives values only: `injector` carries them out. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tandem.apps.simulation.faults import (
    break_link,
    break_pair,
    corrupt,
    cut,
    damage,
    engine_error,
    freeze,
    freeze_router,
    kill,
    leave,
    lose,
    partition,
    reboot,
    redis,
    repeat,
    restart_router,
    shortage,
    slow,
    tier,
)
from tandem.apps.simulation.faults.break_pair import BreakPair
from tandem.apps.simulation.faults.chances import short_or_long
from tandem.apps.simulation.faults.corrupt import Corrupt
from tandem.apps.simulation.faults.cut import Cut
from tandem.apps.simulation.faults.freeze import Freeze
from tandem.apps.simulation.faults.injector import Fault
from tandem.apps.simulation.faults.kill import Kill
from tandem.apps.simulation.faults.leave import Leave
from tandem.apps.simulation.faults.partition import Partition
from tandem.apps.simulation.faults.restart_router import RestartRouter
from tandem.apps.simulation.faults.slow import Slow
from tandem.apps.simulation.names import REDIS, ROUTER
from tandem.core.entropy import Entropy, SeededEntropy, below, unit

Draw = Callable[[float, str, tuple[str, ...], Entropy], "Fault | tuple[Fault, ...]"]
"""The fault that begins at this time and befalls this one of the workers."""

DRAWS: Final = MappingProxyType[str, Draw](
    {
        "kill": kill.draw,
        "reboot": reboot.draw,
        "engine": engine_error.draw,
        "freeze": freeze.draw,
        "corrupt": corrupt.draw,
        "damage": damage.draw,
        "cut": cut.draw,
        "break": break_link.draw,
        "partition": partition.draw,
        "slow": slow.draw,
        "router": restart_router.draw,
        "repeat": repeat.draw,
        "lose": lose.draw,
        "stop-router": freeze_router.draw,
        "shortage": shortage.draw,
        "sever": partition.draw_sever,
    }
)
"""Kinds that any world may have, in an order that seeds depend on."""
KINDS: Final = tuple(DRAWS)


@dataclass(frozen=True)
class FaultProfile:
    """The faults of a seed: exactly `kills` killed workers, corrupted blocks with probability `corrupt_share`, and
    `others` further faults of these `kinds`; `drains` workers leave in good order. All faults begin within
    `span_s`."""

    kills: int = 1
    corrupt_share: float = 0.5
    others: int = 0
    kinds: tuple[str, ...] = KINDS
    drains: int = 0
    pairs: int = 0
    """Pairs of workers between which nothing travels for a while."""
    tiers: int = 0
    """Troubles with what workers keep below their pools."""
    stores: int = 0
    """Troubles of stores, in a world that has some."""
    trials: int = 0
    """Stores that are put to the test (`store_trials`)."""
    redis: int = 0
    """The number of faults of Redis, or of a path to it."""
    routers: int = 0
    """Routers that die, or are stopped, beside those of `kinds`."""
    span_s: float = 8.0


def draw_faults(
    profile: FaultProfile,
    seed: int,
    workers: tuple[str, ...],
    stores: tuple[str, ...] = (),
    routers: tuple[str, ...] = (ROUTER,),
) -> tuple[Fault, ...]:
    """The faults of one seed, in order of time."""
    entropy = SeededEntropy(seed, "faults")
    faults: list[Fault] = []
    for _ in range(profile.kills):
        at_s = 0.2 + unit(entropy) * profile.span_s * 0.8
        faults.append(Kill(at_s, workers[below(entropy, len(workers))], 0.5 + unit(entropy) * 2.0))
    if unit(entropy) < profile.corrupt_share:
        at_s = unit(entropy) * profile.span_s
        faults.append(Corrupt(at_s, workers[below(entropy, len(workers))], 1 + below(entropy, 4)))
    for number in range(profile.others):
        own = entropy.fork(f"fault {number}")
        kind = profile.kinds[below(own, len(profile.kinds))]
        at_s = unit(own) * profile.span_s
        faults.extend(_draw(kind, at_s, workers, own))
    faults.extend(_leave(profile, workers, entropy.fork(f"drain {number}")) for number in range(profile.drains))
    for number in range(profile.pairs):
        own = entropy.fork(f"pair {number}")
        faults.append(break_pair.draw(unit(own) * profile.span_s, workers, own))
    for number in range(profile.tiers):
        own = entropy.fork(f"tier {number}")
        faults.append(tier.draw(unit(own) * profile.span_s, workers, own))
    for number in range(profile.stores if stores else 0):
        faults.append(_of_store(profile, stores, workers, routers, entropy.fork(f"store {number}")))
    for number in range(profile.redis):
        faults.append(_of_redis(profile, (*workers, *stores, *routers), entropy.fork(f"redis {number}")))
    for number in range(profile.routers):
        faults.append(_of_router(profile, routers, entropy.fork(f"router {number}")))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _draw(kind: str, at_s: float, workers: tuple[str, ...], entropy: Entropy) -> tuple[Fault, ...]:
    drawn = DRAWS[kind](at_s, workers[below(entropy, len(workers))], workers, entropy)
    return drawn if isinstance(drawn, tuple) else (drawn,)


def _of_store(
    profile: FaultProfile,
    stores: tuple[str, ...],
    workers: tuple[str, ...],
    routers: tuple[str, ...],
    entropy: Entropy,
) -> Fault:
    """Draw a fault of a store: what befalls workers too, except what needs an engine; damage to its copies, faults of
    its paths, and deaths of workers that it outlives."""
    at_s, store = unit(entropy) * profile.span_s, stores[below(entropy, len(stores))]
    others = (*workers, *routers)
    other, worker = others[below(entropy, len(others))], workers[below(entropy, len(workers))]
    match below(entropy, 14):
        case 0 | 1:
            return Kill(at_s, store, short_or_long(entropy))
        case 2 | 3 | 10:
            return Freeze(at_s, store, 0.5 + unit(entropy) * 5.5)
        case 4:
            return Corrupt(at_s, store, 1 + below(entropy, 16))
        case 5:
            return lose.draw(at_s, store, workers, entropy)
        case 6:
            return Cut(at_s, store)
        case 7 | 11:
            return BreakPair(at_s, worker, store, 1.0 + unit(entropy) * 11.0, corrupts=True)
        case 8:
            one, two = (store, other) if below(entropy, 2) else (other, store)
            return Partition(at_s, one, two, 0.2 + unit(entropy) * 5.0, below(entropy, 2) == 0)
        case 9:
            return tier.draw(at_s, (store,), entropy)
        case _:
            return Kill(at_s, worker, short_or_long(entropy))


def _of_redis(profile: FaultProfile, nodes: tuple[str, ...], entropy: Entropy) -> Fault:
    """Every third is one of the way there."""
    at_s, node = unit(entropy) * profile.span_s, nodes[below(entropy, len(nodes))]
    match below(entropy, 6):
        case 0:
            return Partition(at_s, node, REDIS, 0.2 + unit(entropy) * 5.0, below(entropy, 2) == 0)
        case 1:
            return Slow(at_s, node, REDIS, 0.5 + unit(entropy) * 5.0, 50.0)
        case _:
            return redis.draw(at_s, entropy)


def _of_router(profile: FaultProfile, routers: tuple[str, ...], entropy: Entropy) -> Fault:
    at_s, router = unit(entropy) * profile.span_s, routers[below(entropy, len(routers))]
    if below(entropy, 2):
        return RestartRouter(at_s, 0.1 + unit(entropy) * 1.5, router)
    return freeze_router.draw_of(at_s, router, entropy)


def _leave(profile: FaultProfile, workers: tuple[str, ...], entropy: Entropy) -> Leave:
    at_s, worker = unit(entropy) * profile.span_s, workers[below(entropy, len(workers))]
    return leave.draw(at_s, worker, workers, entropy)
