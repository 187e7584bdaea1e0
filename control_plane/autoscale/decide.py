"""The scaling decision of one service: how many workers each pool is to have, whether it is awake, and why.

    traffic ─► need of prefill and decode ─► neither outruns the other ─► spares ─► stabilised ─► floors, limits

Pure: called again with the history that it returned. See `need` for the formulas.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from control_plane.autoscale.activity import activity
from control_plane.autoscale.cron import open_floor
from control_plane.autoscale.demand import DemandForecast, decode_loads, prefill_loads, unified_loads
from control_plane.autoscale.history import History, stabilised
from control_plane.autoscale.model import PoolScaling, PoolSpeed, ServiceLoad
from control_plane.autoscale.required_replicas import Targets
from control_plane.autoscale.roles import Scalable, ScalingInputs, of_roles
from tandem.core.errors import TandemError
from tandem.spec.pool import Pool
from tandem.spec.service import Spec


@dataclass(frozen=True)
class Scaling:
    """The scaling decision for one service: its pools that have autoscaling, by name, and one answer whether it is
    awake."""

    pools: Mapping[str, PoolScaling]
    active: bool
    reason: str
    history: History


def decide(spec: Spec, load: ServiceLoad, speeds: Mapping[str, PoolSpeed], history: History, now: float) -> Scaling:
    """`now` is wall-clock time; pools that were never measured have no entry in `speeds`."""
    all_speeds = {pool.name: speeds.get(pool.name, PoolSpeed()) for pool in spec.pools}
    floors, complaints = _floors(spec.pools, all_speeds, now)
    traffic = history.traffic.observe(load, now)
    active, busy_at, why = activity(spec.pools, load, all_speeds, floors, history, now)
    left = replace(history, traffic=traffic, busy_at=busy_at)
    if not active:
        return Scaling(_asleep(spec.pools, why), active, why, replace(left, recommended={}))
    told = ScalingInputs(all_speeds, {name: max(1, floor) for name, floor in floors.items()})
    flow = DemandForecast(Targets.of(spec.slo), load, traffic)
    recommended = dict[str, tuple[tuple[float, int], ...]]()
    numbers = _Numbers(history, recommended, complaints, now)
    scale = _coupled if any(pool.role == "prefill" for pool in spec.pools) else _both
    results = scale(spec, load, told, flow, numbers)
    return Scaling(results, active, why, replace(left, recommended=recommended))


@dataclass(frozen=True)
class _Numbers:
    """Turns loads into numbers; `recommended` is filled on the way."""

    history: History
    recommended: dict[str, tuple[tuple[float, int], ...]]
    complaints: Mapping[str, str]
    now: float

    def of(self, pool: Scalable, load: float, reasons: tuple[str, ...]) -> PoolScaling | None:
        """None for a pool without autoscaling."""
        if pool.autoscaling is None:
            return None
        needed = pool.replicas(load)
        window_s = pool.autoscaling.scale_down_stabilization_seconds
        # Somebody who has just begun to look does not know what was needed before: what there is stays for a window.
        first = ((self.now, pool.load.wanted),) if pool.load.wanted else ()
        past = self.history.recommended.get(pool.name, first)
        most, self.recommended[pool.name] = stabilised(past, needed, float(window_s), self.now)
        replicas = min(max(most, pool.floor), pool.most)
        if replicas > needed:
            reasons += (f"{replicas} were needed within the last {window_s} s",)
        if needed == pool.floor and load + pool.pool.spare < pool.floor:
            reasons += (f"at least {pool.floor}",)
        if replicas == pool.most and load + pool.pool.spare > pool.most:
            reasons += (f"at most {pool.most}",)
        if pool.name in self.complaints:
            reasons += (self.complaints[pool.name],)
        return PoolScaling(replicas, load, pool.floor, reasons)


def _both(
    spec: Spec, load: ServiceLoad, told: ScalingInputs, flow: DemandForecast, numbers: _Numbers
) -> dict[str, PoolScaling]:
    """Scale a service that has no pool for prefill alone. Its workers do both, each by itself or, in pools of role
    auto, as routers choose from one moment to the next; so both needs add up."""
    pools = of_roles(spec.pools, ("decode", "unified", "auto"), load, told)
    loads, reasons = unified_loads(pools, flow)
    return _numbered(pools, loads, reasons, numbers)


def _coupled(
    spec: Spec, load: ServiceLoad, told: ScalingInputs, flow: DemandForecast, numbers: _Numbers
) -> dict[str, PoolScaling]:
    decode = of_roles(spec.pools, ("decode", "unified"), load, told)
    prefill = of_roles(spec.pools, ("prefill",), load, told)
    loads, reasons = decode_loads(decode, prefill, flow)
    results = _numbered(decode, loads, reasons, numbers)
    decided = {
        pool.name: results[pool.name].replicas if pool.name in results else pool.load.wanted for pool in decode
    }
    loads, reasons = prefill_loads(prefill, decode, decided, flow)
    results |= _numbered(prefill, loads, reasons, numbers)
    return results


def _numbered(
    pools: tuple[Scalable, ...], loads: Mapping[str, float], reasons: tuple[str, ...], numbers: _Numbers
) -> dict[str, PoolScaling]:
    found = {pool.name: numbers.of(pool, loads[pool.name], reasons) for pool in pools}
    return {name: scaling for name, scaling in found.items() if scaling is not None}


def _asleep(pools: tuple[Pool, ...], why: str) -> dict[str, PoolScaling]:
    return {pool.name: PoolScaling(0, 0.0, 0, (why,)) for pool in pools}


def _floors(
    pools: tuple[Pool, ...], speeds: Mapping[str, PoolSpeed], now: float
) -> tuple[dict[str, int], dict[str, str]]:
    """Floors by pool: its minimum, and its schedule as of now and as of when a worker started now is ready; and by
    pool what is wrong with its schedule."""
    floors, complaints = dict[str, int](), dict[str, str]()
    for pool in pools:
        floors[pool.name] = 0
        if pool.autoscaling is None:
            continue
        floors[pool.name] = pool.autoscaling.min_replicas
        try:
            schedule = pool.autoscaling.schedule
            soon = now + speeds[pool.name].cold_start_s
            opened = max(open_floor(schedule, now), open_floor(schedule, soon))
            floors[pool.name] = min(max(floors[pool.name], opened), pool.autoscaling.max_replicas)
        except TandemError as error:
            complaints[pool.name] = f"its schedule is left out: {error.message}"
    return floors, complaints
