"""The same against a real API server without controllers: the operator is a process, whose figures are the kernel's
and its own. No pod ever starts there, so a service counts as done once all its objects are there and its status says
that it has been looked at."""

import asyncio
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import psutil

from benchmarks.operator_looks import NAMESPACE, Look, service
from control_plane.crds.definitions import definitions
from tandem.kube.cluster import Selector
from tandem.kube.kinds import DEPLOYMENT, MODEL_SERVICE, Json
from tandem.kube.kube_cluster import KubeCluster, connect
from tandem.kube.reflector import ReflectorSettings

_ADDRESS: Final = re.compile(r'"event": "listening", "address": "([^"]+)"')
_WRITES: Final = re.compile(r"^tandem_operator_writes_total (\S+)", re.MULTILINE)
_BOUND_S: Final = 900.0
_STEADY_S: Final = 30.0
_AT_ONCE: Final = 16
_PAGE: Final = ReflectorSettings().page


class OperatorProcess:
    """An operator."""

    def __init__(self, kubeconfig: str, log: Path, more: Sequence[str] = ()) -> None:
        flags = ["--kubeconfig", kubeconfig, "--bind", "127.0.0.1:0", "--scaler-bind", "127.0.0.1:0", "--events"]
        flags += more
        self._log = log
        with log.open("w") as out:
            self.child = subprocess.Popen([sys.executable, "-m", "control_plane", *flags], stdout=out, stderr=out)
        self._kernel = psutil.Process(self.child.pid)

    def cpu_s(self) -> float:
        times = self._kernel.cpu_times()
        return float(times.user + times.system)

    def rss_mb(self) -> float:
        return float(self._kernel.memory_info().rss) / 2**20

    def peak_mb(self) -> float:
        """The most that it ever had."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def writes(self) -> int:
        found = _ADDRESS.search(self._log.read_text())
        if found is None:
            return 0
        with urllib.request.urlopen(f"http://{found[1]}/metrics", timeout=10) as answer:
            counted = _WRITES.search(answer.read().decode())
        return 0 if counted is None else int(float(counted[1]))

    def leads(self) -> bool:
        return '"leading"' in self._log.read_text()

    def stop(self) -> None:
        self.child.terminate()
        self.child.wait(30)


def on_a_server(kubeconfig: str, services: int) -> list[Look]:
    """Leaves everything where it is: the server is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(kubeconfig, services, Path(folder) / "log"))


async def _measure(kubeconfig: str, services: int, log: Path) -> list[Look]:
    cluster = await connect(kubeconfig)
    try:
        for definition in definitions().values():
            await cluster.apply(definition, "bench")
        await asyncio.sleep(5.0)
        await _submit(cluster, services, 1)
        first = OperatorProcess(kubeconfig, log)
        try:
            looks = [await _look("new", first, lambda: _all_there(cluster, services, 1))]
            # What is left are statuses.
            await asyncio.sleep(_STEADY_S)
        finally:
            first.stop()
        second = OperatorProcess(kubeconfig, log)
        try:
            looks.append(await _look("a new operator", second, _soon(second)))
            await _submit(cluster, services, 2)
            looks.append(await _look("edited", second, lambda: _all_there(cluster, services, 2)))
            await asyncio.sleep(10.0)
            looks.append(await _look("nothing happens", second, _pause(_STEADY_S)))
        finally:
            second.stop()
        return looks
    finally:
        await cluster.close()


async def _submit(cluster: KubeCluster, services: int, replicas: int) -> None:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            await cluster.apply(service(number, replicas), "user")

    async with asyncio.TaskGroup() as tasks:
        for number in range(services):
            tasks.create_task(one(number))


async def _look(name: str, process: OperatorProcess, done: Callable[[], Awaitable[bool]]) -> Look:
    begun, cpu, writes = time.monotonic(), process.cpu_s(), process.writes()
    while not await done():
        if time.monotonic() - begun > _BOUND_S:
            raise SystemExit(f"{name}: not done within {_BOUND_S:g} s")
        await asyncio.sleep(0.5)
    counted = process.writes() - writes
    return Look(name, time.monotonic() - begun, process.cpu_s() - cpu, counted, counted, process.rss_mb())


def _soon(process: OperatorProcess) -> Callable[[], Awaitable[bool]]:
    """Once it leads and has had time to look at everything."""
    since: list[float] = []

    async def done() -> bool:
        if process.leads() and not since:
            since.append(time.monotonic())
        return bool(since) and time.monotonic() - since[0] > _STEADY_S

    return done


def _pause(seconds: float) -> Callable[[], Awaitable[bool]]:
    begun: list[float] = []

    async def done() -> bool:
        begun.append(time.monotonic())
        return begun[-1] - begun[0] > seconds

    return done


async def _all_there(cluster: KubeCluster, services: int, generation: int) -> bool:
    wanted = await _all(cluster, Selector(MODEL_SERVICE, NAMESPACE))
    seen = [int((each.get("status") or {}).get("observedGeneration", 0)) for each in wanted]
    if len(wanted) < services or any(each < generation for each in seen):
        return False
    made = await _all(cluster, Selector(DEPLOYMENT, NAMESPACE))
    return sum(int(each["spec"]["replicas"]) for each in made) >= services * (1 + generation)


async def _all(cluster: KubeCluster, selector: Selector) -> list[Json]:
    found: list[Json] = []
    token: str | None = None
    while True:
        page = await cluster.list_page(selector, _PAGE, token)
        found += page.items
        token = page.token
        if token is None:
            return found
