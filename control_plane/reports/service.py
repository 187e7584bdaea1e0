"""One service in the form that the scaling decision reads: its state in the cluster, joined with the routers'
reports. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from control_plane.autoscale.learning import WorkerSample
from control_plane.autoscale.model import PoolLoad, ServiceLoad
from control_plane.reports.aggregator import ReportAggregate
from control_plane.reports.wire import WorkerReport
from tandem.spec.service import Spec


@dataclass(frozen=True)
class WorkerPod:
    """Times at which a worker's pod was made and became ready, in wall-clock seconds; `ready_s` is None while it is
    not ready."""

    made_s: float
    ready_s: float | None = None


@dataclass(frozen=True)
class PoolObserved:
    """`wanted` is the `spec.replicas` of its EnginePool. Pods are by name, which is their worker's id; those that are
    being deleted are none."""

    wanted: int = 0
    pods: Mapping[str, WorkerPod] = field(default_factory=dict)


@dataclass(frozen=True)
class ServiceObserved:
    """One ModelService and what there is of it, by pool."""

    namespace: str
    name: str
    spec: Spec
    pools: Mapping[str, PoolObserved]

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


def service_load(service: ServiceObserved, books: ReportAggregate, now: float) -> ServiceLoad:
    """`now` is wall-clock time."""
    demand, workers = books.demand(service.full_name), books.workers()
    told = {name: _told(pool, workers) for name, pool in service.pools.items()}
    everybody = [worker for each in told.values() for worker in each]
    prefilling = _sequences(worker for worker in everybody if worker.prefills)
    decoding = _sequences(worker for worker in everybody if not worker.prefills)
    if demand.complete and demand.in_flight_requests == 0:
        # Requests belong to routers: what a worker still tells of is a canary, or over.
        prefilling = decoding = 0
    return ServiceLoad(
        pools={name: _pool(pool, told[name], now) for name, pool in service.pools.items()},
        queued_requests=demand.queued_requests,
        queued_prompt_tokens=demand.queued_prompt_tokens,
        prefilling_prompt_tokens=_prefilling_tokens(told, demand.in_flight_prompt_tokens),
        # A request may have several sequences, which workers count; a decode worker has it from the beginning.
        sequences=max(demand.in_flight_requests, decoding, prefilling),
        prefilling=prefilling,
        arrived_prompt_tokens=demand.placed_prompt_tokens + demand.queued_prompt_tokens,
        arrived_requests=demand.arrived_requests,
        output_tokens=demand.output_tokens,
        finished_requests=demand.finished_requests,
        complete=demand.complete,
    )


def samples(service: ServiceObserved, books: ReportAggregate, now: float) -> dict[str, list[WorkerSample]]:
    """Samples of the speed of each pool's workers, by pool. For a pod without a time of readiness the router's report
    of it counts."""
    workers = books.workers()
    return {
        name: [_sample(name, worker, pool.pods[worker.id], now) for worker in _told(pool, workers)]
        for name, pool in service.pools.items()
    }


def _told(pool: PoolObserved, workers: Mapping[str, WorkerReport]) -> tuple[WorkerReport, ...]:
    return tuple(workers[name] for name in sorted(pool.pods) if name in workers)


def _pool(pool: PoolObserved, workers: tuple[WorkerReport, ...], now: float) -> PoolLoad:
    starting = sorted(max(0.0, now - pod.made_s) for pod in pool.pods.values() if pod.ready_s is None)
    return PoolLoad(
        wanted=pool.wanted,
        ready=len(pool.pods) - len(starting),
        starting_s=tuple(starting),
        kv_used=sum(worker.load.kv_used for worker in workers if worker.load is not None),
    )


def _sequences(workers: Iterable[WorkerReport]) -> int:
    return sum(worker.load.running + worker.load.waiting for worker in workers if worker.load is not None)


def _prefilling_tokens(told: Mapping[str, tuple[WorkerReport, ...]], in_flight: int) -> int:
    """Prompt tokens in prefill: from worker reports, which leave out what need not be computed, or from the routers'
    count while no worker has reported."""
    loads = [worker.load for workers in told.values() for worker in workers if worker.load is not None]
    return sum(load.queued_prompt_tokens for load in loads) if loads else in_flight


def _sample(pool: str, worker: WorkerReport, pod: WorkerPod, now: float) -> WorkerSample:
    ready_for_s = now - pod.ready_s if pod.ready_s is not None else worker.ready_for_s or 0.0
    load = worker.load
    if load is None:
        return WorkerSample(pool, ready_for_s)
    return WorkerSample(
        pool=pool,
        ready_for_s=ready_for_s,
        # Of steps that compute prompts alone nothing is learned about those that decode.
        running=0 if worker.prefills else load.running,
        step_s=load.step_s,
        prefill_tokens_per_s=load.prefill_tokens_per_s,
        prefill_token_s=load.prefill_token_s,
        prefill_position_s=load.prefill_position_s,
    )
