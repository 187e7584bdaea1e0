"""What a thousand ModelServices cost the operator.

`python -m benchmarks.operator_scale [--services N]`. Four looks: all services are new; an operator starts and finds
them done; every one of them is edited; nothing happens for half a minute. The API server only keeps objects, in the
same process; with `--kubeconfig FILE` it is a real one, on which nothing else runs, and the operator is a process of
its own, of which time, CPU and memory are told.
"""

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.operator_cluster import KeepingCluster
from benchmarks.operator_looks import Look, service
from benchmarks.rounds import Check, table
from control_plane.objects.installation import Installation
from control_plane.observe.pods import PodLoad
from control_plane.operator.applier import Applier
from control_plane.operator.controller import Controller, ControllerDeps
from control_plane.operator.mirror import Mirror, Watched
from control_plane.operator.models import KnownModels
from control_plane.rollout import Health
from tandem.core.metrics import NullMeter
from tandem.kube.kinds import LEADER_WORKER_SET, MODEL_SERVICE, SCALED_OBJECT, Json
from tandem.kube.queue import WorkQueue
from tandem.kube.recorder import EventRecorder
from tandem.kube.store import Key
from tandem.kube.workers import Workers
from tandem.process.system import SystemClock, SystemEntropy

_PLAIN: Final = Installation(worker_image="worker")
_STEADY_S: Final = 30.0
_BOUND_S: Final = 600.0


class Silence:
    """No routers."""

    def health(self, key: tuple[str, str], revision: str) -> Health:
        return Health()

    def loads(self, key: tuple[str, str]) -> dict[str, PodLoad]:
        return {}

    def routers(self, key: tuple[str, str]) -> dict[str, frozenset[str]]:
        return {}


@asynccontextmanager
async def operator(cluster: KeepingCluster, installation: Installation = _PLAIN) -> AsyncIterator["WorkQueue[Key]"]:
    """One that runs in this process."""
    clock, entropy, meter = SystemClock(), SystemEntropy(), NullMeter()
    queue: WorkQueue[Key] = WorkQueue(clock)
    mirror = Mirror(cluster, Watched(), clock, entropy, queue.add)
    recorder = EventRecorder(cluster, clock, "tandem.dev/operator", "bench")
    applier = Applier(cluster, clock, recorder, meter)
    tools = ControllerDeps(
        mirror,
        Silence(),
        KnownModels(None),
        applier,
        recorder,
        queue,
        clock,
        meter,
        installation,
    )
    controller = Controller(tools)
    workers = Workers(queue, controller.work, controller.failed)
    mirroring = asyncio.create_task(mirror.run())
    await asyncio.sleep(0)
    await mirror.synced()
    working = asyncio.create_task(workers.run())
    try:
        yield queue
    finally:
        for task in (mirroring, working):
            task.cancel()
        await asyncio.gather(mirroring, working, return_exceptions=True)
        queue.close()


async def in_memory(services: int) -> list[Look]:
    """Against objects in this process."""
    cluster = KeepingCluster(frozenset({SCALED_OBJECT, LEADER_WORKER_SET}))
    for number in range(services):
        cluster.submit(service(number, 1))
    looks = []
    async with operator(cluster) as queue:
        looks.append(await _look("new", cluster, lambda: _done(cluster, queue, 1)))
    async with operator(cluster) as queue:
        looks.append(await _look("a new operator", cluster, lambda: queue.idle))
        for number in range(services):
            cluster.submit(service(number, 2))
        looks.append(await _look("edited", cluster, lambda: _done(cluster, queue, 2)))
        begun = time.monotonic()
        looks.append(await _look("nothing happens", cluster, lambda: time.monotonic() - begun > _STEADY_S))
    return looks


async def _look(name: str, cluster: KeepingCluster, done: Callable[[], bool]) -> Look:
    begun, cpu, writes, asked = time.monotonic(), time.process_time(), cluster.writes.total(), cluster.asked
    end = begun + _BOUND_S
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"{name}: not done within {_BOUND_S:g} s")
        await asyncio.sleep(0.05)
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Look(
        name,
        time.monotonic() - begun,
        time.process_time() - cpu,
        cluster.writes.total() - writes,
        cluster.asked - asked,
        rss_mb,
    )


def _done(cluster: KeepingCluster, queue: "WorkQueue[Key]", generation: int) -> bool:
    if not queue.idle:
        return False
    return all(is_done(obj, generation) for obj in cluster.objects(MODEL_SERVICE))


def is_done(obj: Json, generation: int) -> bool:
    """Whether a service serves as its generation asks for."""
    status = obj.get("status") or {}
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
    return ready and int(status.get("observedGeneration", 0)) >= generation


def _row(look: Look) -> tuple[str, ...]:
    counts = str(look.writes), str(look.asked)
    return look.name, f"{look.seconds:.1f}", f"{look.cpu_s:.2f}", *counts, f"{look.rss_mb:.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.operator_scale", description=__doc__)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--kubeconfig", help="of a real API server")
    given = parser.parse_args()
    if given.kubeconfig is not None:
        # Imported on use: it needs the Kubernetes client.
        from benchmarks.operator_real import on_a_server

        looks = on_a_server(given.kubeconfig, given.services)
    else:
        looks = asyncio.run(in_memory(given.services))
    rows = [
        (
            each.name,
            f"{each.seconds:.1f}",
            f"{each.cpu_s:.2f}",
            str(each.writes),
            str(each.asked),
            f"{each.rss_mb:.0f}",
        )
        for each in looks
    ]
    print(f"{given.services} ModelServices of two pools")
    print(table(("", "seconds", "CPU s", "writes", "requests", "peak RSS MB"), rows))
    by_name = {each.name: each for each in looks}
    checks = [
        Check("writes per new service", by_name["new"].writes / given.services, 25.0, at_least=False),
        Check("requests of a new operator", by_name["a new operator"].asked, 0.0, at_least=False),
        Check("requests while nothing happens", by_name["nothing happens"].asked, 0.0, at_least=False),
    ]
    if given.kubeconfig is None:
        per = by_name["new"].cpu_s / given.services * 1e3
        checks.append(Check("CPU per new service", per, 40.0, at_least=False, unit="ms"))
    for check in checks:
        print(check.line())
    return 0 if all(check.met for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
