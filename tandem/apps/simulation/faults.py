"""Seeded faults: what breaks and when. Values only; `tandem.apps.simulation.misfortune` carries them out."""

from dataclasses import dataclass
from typing import Final

from tandem.apps.simulation.message_faults import Lose, Repeat, draw_loss, draw_repeat
from tandem.apps.simulation.pair_faults import BreakPair, draw_pair_fault
from tandem.apps.simulation.redis_faults import RedisFault, draw_redis_fault
from tandem.apps.simulation.router_faults import FreezeRouter, draw_router_freeze
from tandem.apps.simulation.shortage import Shortage, draw_shortage
from tandem.apps.simulation.tier_faults import TierFault, draw_tier_fault
from tandem.core.entropy import Entropy, SeededEntropy, below, unit

ROUTER: Final = "router"
"""The node of the first router, as worker names are those of workers."""
REDIS: Final = "redis"
"""The node of Redis."""


@dataclass(frozen=True)
class Kill:
    """The worker's process dies at `at_s` without a word, and comes back as a new incarnation."""

    at_s: float
    worker: str
    back_after_s: float


@dataclass(frozen=True)
class EngineError:
    """The worker's next step raises `engine_failed`: its process ends, and a new incarnation takes its place."""

    at_s: float
    worker: str
    back_after_s: float


@dataclass(frozen=True)
class Freeze:
    """The worker's process is stopped, its connections stay; then it goes on as if nothing had happened."""

    at_s: float
    worker: str
    for_s: float


@dataclass(frozen=True)
class Corrupt:
    """From `at_s` on, the next `blocks` blocks pulled from this worker arrive with a flipped byte."""

    at_s: float
    worker: str
    blocks: int


@dataclass(frozen=True)
class Damage:
    """The next partial block this worker has exported is changed in its memory before it leaves."""

    at_s: float
    worker: str


@dataclass(frozen=True)
class Cut:
    """The links between router and worker break; both learn of it."""

    at_s: float
    worker: str


@dataclass(frozen=True)
class Break:
    """The link breaks with the frame number `frames` from now on: commands when `down`, outputs and state else."""

    at_s: float
    worker: str
    frames: int
    down: bool


@dataclass(frozen=True)
class Partition:
    """Nothing gets through from `source` to `target`, and with `both` neither the other way; nobody is told."""

    at_s: float
    source: str
    target: str
    for_s: float
    both: bool


@dataclass(frozen=True)
class Slow:
    """Everything between two nodes takes `factor` times as long."""

    at_s: float
    one: str
    other: str
    for_s: float
    factor: float


@dataclass(frozen=True)
class RestartRouter:
    """The router's process dies, its clients with it; a new one serves whoever comes later."""

    at_s: float
    back_after_s: float
    router: str = ROUTER


@dataclass(frozen=True)
class Leave:
    """The worker is asked to leave within `within_s`, by its router or by a signal, and is replaced when it has."""

    at_s: float
    worker: str
    within_s: float
    by_signal: bool
    back_after_s: float


Fault = (
    Kill
    | EngineError
    | Freeze
    | Corrupt
    | Damage
    | Cut
    | Break
    | Partition
    | Slow
    | RestartRouter
    | Leave
    | BreakPair
    | Repeat
    | Lose
    | FreezeRouter
    | Shortage
    | TierFault
    | RedisFault
)

KINDS: Final = (
    "kill",
    "reboot",
    "engine",
    "freeze",
    "corrupt",
    "damage",
    "cut",
    "break",
    "partition",
    "slow",
    "router",
    "repeat",
    "lose",
    "stop-router",
    "shortage",
    "sever",
)


@dataclass(frozen=True)
class FaultProfile:
    """How much a seed breaks: exactly `kills` workers, corrupted blocks with chance `corrupt_share`, and `others`
    faults more of these `kinds`; `drains` workers leave in good order. All begin within `span_s`."""

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
    """Stores that are put to the test (`tandem.apps.simulation.store_faults`)."""
    redis: int = 0
    """Troubles of Redis, or of somebody's way there."""
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
        faults.extend(_reboot(at_s, workers, own) if kind == "reboot" else (_draw(kind, at_s, workers, own),))
    faults.extend(_leave(profile, workers, entropy.fork(f"drain {number}")) for number in range(profile.drains))
    for number in range(profile.pairs):
        own = entropy.fork(f"pair {number}")
        faults.append(draw_pair_fault(unit(own) * profile.span_s, workers, own))
    for number in range(profile.tiers):
        own = entropy.fork(f"tier {number}")
        faults.append(draw_tier_fault(unit(own) * profile.span_s, workers, own))
    for number in range(profile.stores if stores else 0):
        faults.append(_of_store(profile, stores, workers, routers, entropy.fork(f"store {number}")))
    for number in range(profile.redis):
        faults.append(_of_redis(profile, (*workers, *stores, *routers), entropy.fork(f"redis {number}")))
    for number in range(profile.routers):
        faults.append(_of_router(profile, routers, entropy.fork(f"router {number}")))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _draw(kind: str, at_s: float, workers: tuple[str, ...], entropy: Entropy) -> Fault:
    worker = workers[below(entropy, len(workers))]
    match kind:
        case "kill":
            return Kill(at_s, worker, _short_or_long(entropy))
        case "engine":
            return EngineError(at_s, worker, _short_or_long(entropy))
        case "freeze":
            return Freeze(at_s, worker, 0.5 + unit(entropy) * 5.5)
        case "corrupt":
            return Corrupt(at_s, worker, 1 + below(entropy, 8))
        case "damage":
            return Damage(at_s, worker)
        case "cut":
            return Cut(at_s, worker)
        case "break":
            return Break(at_s, worker, 1 + below(entropy, 40), below(entropy, 2) == 0)
        case "partition":
            one, other = _ends(worker, workers, entropy)
            return Partition(at_s, one, other, 0.2 + unit(entropy) * 5.0, below(entropy, 2) == 0)
        case "slow":
            one, other = _ends(worker, workers, entropy)
            return Slow(at_s, one, other, 0.5 + unit(entropy) * 5.0, 50.0)
        case "repeat":
            return draw_repeat(at_s, worker, entropy)
        case "lose":
            return draw_loss(at_s, worker, entropy)
        case "stop-router":
            return draw_router_freeze(at_s, entropy)
        case "shortage":
            return draw_shortage(at_s, worker, entropy)
        case "sever":
            one, other = _ends(worker, workers, entropy)
            return Partition(at_s, one, other, 6.5 + unit(entropy) * 3.0, below(entropy, 2) == 0)
        case _:
            return RestartRouter(at_s, 0.1 + unit(entropy) * 1.5)


def _of_store(
    profile: FaultProfile,
    stores: tuple[str, ...],
    workers: tuple[str, ...],
    routers: tuple[str, ...],
    entropy: Entropy,
) -> Fault:
    """What befalls workers too, but for what needs an engine; its copies, its ways, and whom it outlives."""
    at_s, store = unit(entropy) * profile.span_s, stores[below(entropy, len(stores))]
    others = (*workers, *routers)
    other, worker = others[below(entropy, len(others))], workers[below(entropy, len(workers))]
    match below(entropy, 14):
        case 0 | 1:
            return Kill(at_s, store, _short_or_long(entropy))
        case 2 | 3 | 10:
            return Freeze(at_s, store, 0.5 + unit(entropy) * 5.5)
        case 4:
            return Corrupt(at_s, store, 1 + below(entropy, 16))
        case 5:
            return draw_loss(at_s, store, entropy)
        case 6:
            return Cut(at_s, store)
        case 7 | 11:
            return BreakPair(at_s, worker, store, 1.0 + unit(entropy) * 11.0, corrupts=True)
        case 8:
            one, two = (store, other) if below(entropy, 2) else (other, store)
            return Partition(at_s, one, two, 0.2 + unit(entropy) * 5.0, below(entropy, 2) == 0)
        case 9:
            return draw_tier_fault(at_s, (store,), entropy)
        case _:
            return Kill(at_s, worker, _short_or_long(entropy))


def _of_redis(profile: FaultProfile, nodes: tuple[str, ...], entropy: Entropy) -> Fault:
    """Every third is one of the way there."""
    at_s, node = unit(entropy) * profile.span_s, nodes[below(entropy, len(nodes))]
    match below(entropy, 6):
        case 0:
            return Partition(at_s, node, REDIS, 0.2 + unit(entropy) * 5.0, below(entropy, 2) == 0)
        case 1:
            return Slow(at_s, node, REDIS, 0.5 + unit(entropy) * 5.0, 50.0)
        case _:
            return draw_redis_fault(at_s, entropy)


def _of_router(profile: FaultProfile, routers: tuple[str, ...], entropy: Entropy) -> Fault:
    at_s, router = unit(entropy) * profile.span_s, routers[below(entropy, len(routers))]
    if below(entropy, 2):
        return RestartRouter(at_s, 0.1 + unit(entropy) * 1.5, router)
    return draw_router_freeze(at_s, entropy, router)


def _leave(profile: FaultProfile, workers: tuple[str, ...], entropy: Entropy) -> Leave:
    """Bounds are too short for the longest streams half of the time."""
    at_s, worker = unit(entropy) * profile.span_s, workers[below(entropy, len(workers))]
    within_s = 0.1 + unit(entropy) * (1.0 if below(entropy, 2) else 8.0)
    return Leave(at_s, worker, within_s, below(entropy, 2) == 0, _short_or_long(entropy))


def _reboot(at_s: float, workers: tuple[str, ...], entropy: Entropy) -> tuple[Fault, ...]:
    """A worker loses its way to the others and is started again meanwhile: what was on its way there finds another
    incarnation."""
    worker = workers[below(entropy, len(workers))]
    for_s = 1.0 + unit(entropy) * 1.0
    lost = [Partition(at_s, worker, other, for_s, True) for other in workers if other != worker]
    return (*lost, Kill(at_s + (0.5 + 0.4 * unit(entropy)) * for_s, worker, 0.01 + unit(entropy) * 0.05 * for_s))


def _short_or_long(entropy: Entropy) -> float:
    """Seconds until a process is back: half of them are back before anybody has given up on them."""
    return 0.01 + unit(entropy) * (0.2 if below(entropy, 2) else 2.5)


def _ends(worker: str, workers: tuple[str, ...], entropy: Entropy) -> tuple[str, str]:
    """A worker and its router or, as often, another worker; in either order."""
    others = [name for name in workers if name != worker]
    other = others[below(entropy, len(others))] if others and below(entropy, 2) else ROUTER
    return (worker, other) if below(entropy, 2) else (other, worker)
