"""What one change in a large cluster costs a router's loop.

`python -m benchmarks.discovery [--pods N] [--services N]`. A router's discovery and fleet without any link watch
services like `deploy/examples/llama-70b-tp4.yaml` and their pods, as an API server sends them. Changes come one at a
time; each is taken over, settles for 50 ms, and is told to the fleet. Counted is the processor time of the loop's
thread, decoding included, by the thread's CPU clock.
"""

import argparse
import asyncio
import gc
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

import msgspec

from benchmarks.pod_objects import llama, running
from benchmarks.rounds import Check, table
from control_plane.objects.names import pool_labels
from kv_transfer.index.compact_index import CompactIndex
from router.api.chat_templates.render import SimpleRenderer
from router.discovery.kubernetes import KubernetesDiscovery, WatchDeps
from router.discovery.texts import TextSide, TextSides
from router.fleet.fleet import Fleet
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.core.metrics import NullMeter
from tandem.kube.cluster import Cluster, Page, Selector, WatchEvent
from tandem.kube.kinds import MODEL_SERVICE, POD, Json, Kind
from tandem.link.protocol import RouterLink
from tandem.process.system import SystemClock, SystemEntropy

_SETTLED_S: Final = 0.08
_CPU_MS_MAX: Final = 5.0
_SYNC_S: Final = 300.0


class Sent(Sequence[Json]):
    """Objects as they are sent, decoded when they are read."""

    def __init__(self, items: list[bytes]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return msgspec.json.decode(self._items[index], type=Json)


class SentCluster:
    """What a router asks of a `Cluster`: lists, and watches on which `send` puts changes."""

    def __init__(self, objects: dict[Kind, list[bytes]]) -> None:
        self._objects = objects
        self._streams: dict[Kind, asyncio.Queue[tuple[str, bytes]]] = {kind: asyncio.Queue() for kind in objects}

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        begin, objects = int(token or 0), self._objects[selector.kind]
        await asyncio.sleep(0)
        following = str(begin + limit) if begin + limit < len(objects) else None
        return Page(Sent(objects[begin : begin + limit]), "1", following)

    async def watch(self, selector: Selector, version: str) -> AsyncGenerator[WatchEvent, None]:
        while True:
            type_, sent = await self._streams[selector.kind].get()
            yield WatchEvent(type_, msgspec.json.decode(sent, type=Json))  # type: ignore[arg-type]

    async def close(self) -> None:
        return

    def send(self, kind: Kind, type_: str, obj: Json) -> None:
        self._streams[kind].put_nowait((type_, msgspec.json.encode(obj)))


class NoDialer:
    """Reaches nobody."""

    async def dial(self, address: str, within_s: float) -> RouterLink:
        raise TandemError("link_lost", "nobody is here")


def service(number: int) -> Json:
    """One that has been rolled out."""
    obj = llama(number, 1, 1)
    obj["metadata"] |= {"uid": f"s{number}", "resourceVersion": "1", "creationTimestamp": "2026-11-01T00:00:00Z"}
    obj["status"] = {"currentRevision": "e916fd21ba", "revisions": [{"name": "e916fd21ba", "weight": 100}]}
    return obj


def pod(number: int, of: int) -> Json:
    """A worker of service `of`."""
    name = f"llama-70b-{of:04}"
    labels = {**pool_labels(name, "decode", "decode"), "tandem.dev/revision": "e916fd21ba"}
    metadata = {"name": f"{name}-decode-e916fd21ba-{number:05}", "namespace": "default", "labels": labels}
    container = {"name": "worker", "image": "tandem-worker:0.1.0", "env": [{"name": f"V{n}"} for n in range(20)]}
    plain = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    metadata["annotations"] = {"tandem.dev/link-port": "7400"}
    return running(plain, number)


def unready(obj: Json) -> Json:
    return {**obj, "status": {**obj["status"], "conditions": []}}


def weighted(obj: Json, percent: int) -> Json:
    revisions = [{"name": "e916fd21ba", "weight": percent}, {"name": "f000000000", "weight": 100 - percent}]
    return {**obj, "status": {**obj["status"], "revisions": revisions}}


def changes(pods: int, services: int) -> dict[str, Callable[[SentCluster, int], None]]:
    """Each by its name: what is sent for the n-th of its kind."""

    def a_pod(number: int) -> Json:
        return pod(number % pods, number % pods % services)

    return {
        "a pod reports what no router reads": lambda cluster, n: cluster.send(POD, "modified", a_pod(n)),
        "a pod is not ready any more": lambda cluster, n: cluster.send(POD, "modified", unready(a_pod(n))),
        "a pod goes": lambda cluster, n: cluster.send(POD, "deleted", a_pod(n)),
        "a pod comes": lambda cluster, n: cluster.send(POD, "added", a_pod(n)),
        "a service's weights change": lambda cluster, n: cluster.send(
            MODEL_SERVICE, "modified", weighted(service(n % services), 90)
        ),
        "a service goes": lambda cluster, n: cluster.send(MODEL_SERVICE, "deleted", service(n % services)),
        "a service comes": lambda cluster, n: cluster.send(MODEL_SERVICE, "added", service(n % services)),
    }


async def measure(pods: int, services: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of the loop's thread for each change, by its name."""
    cluster = SentCluster(
        {
            POD: [msgspec.json.encode(pod(number, number % services)) for number in range(pods)],
            MODEL_SERVICE: [msgspec.json.encode(service(number)) for number in range(services)],
        }
    )
    clock, meter = SystemClock(), NullMeter()
    fleet = Fleet(NoDialer(), clock, Deadlines(), CompactIndex(1), meter)
    texts = TextSides(lambda model, source: TextSide(SimpleRenderer(clock), 32768), clock)

    async def connect() -> Cluster:
        return cluster  # type: ignore[return-value]

    discovery = KubernetesDiscovery(connect, (), fleet, WatchDeps(texts, clock, SystemEntropy(), meter))
    await discovery.open()
    running_ = asyncio.create_task(discovery.run())
    async with asyncio.timeout(_SYNC_S):
        while len(texts) < services:  # noqa: ASYNC110  (nothing tells of the last one)
            await asyncio.sleep(0.2)
    await asyncio.sleep(1.0)
    gc.collect()
    gc.freeze()  # As routers do it.
    found: dict[str, list[float]] = {}
    idle = await _cpu_ms(lambda: None)
    for name, send in changes(pods, services).items():
        found[name] = []
        for number in range(rounds):
            found[name].append(await _cpu_ms(lambda send=send, number=number: send(cluster, number)) - idle)  # type: ignore[misc]
    running_.cancel()
    await asyncio.gather(running_, return_exceptions=True)
    return found


async def _cpu_ms(begin: Callable[[], None]) -> float:
    begin()
    began = time.thread_time()
    await asyncio.sleep(_SETTLED_S)
    return (time.thread_time() - began) * 1e3


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.discovery", description=__doc__)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    found = asyncio.run(measure(given.pods, given.services, given.rounds))
    print(f"{given.pods} pods of {given.services} services, {len(msgspec.json.encode(pod(0, 0)))} bytes a pod")
    rows = [
        (name, f"{statistics.median(each):.2f}", f"{_p95(each):.2f}", f"{max(each):.2f}")
        for name, each in found.items()
    ]
    print(table(("ms of the loop's thread", "median", "p95", "most"), rows))
    checks = [Check(name, _p95(each), _CPU_MS_MAX, at_least=False, unit="ms") for name, each in found.items()]
    for check in checks:
        print(check.line())
    return 0 if all(check.met for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
