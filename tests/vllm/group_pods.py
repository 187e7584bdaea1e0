"""Pods of a LeaderWorkerSet as processes: each in a network, with a host name and a hosts file of its own, started by
the command line and the environment that the operator's objects give it.

Networks need the right to make namespaces; without it the pods are addresses of the loopback device.
"""

import asyncio
import ctypes
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from control_plane.objects.installation import Installation, completed
from control_plane.objects.revisions import rendered
from control_plane.objects.workload import workload
from tandem.kube.kinds import Json
from tandem.spec.reading import service_of
from tests.cluster.kubelet.environment import command, variables

ROOT: Final = Path(__file__).parents[2]
_CLONE_NEWNET: Final = 0x40000000
_BOUND_S: Final = 30.0
_LOOK_S: Final = 0.1
_HTTP_S: Final = 120.0
_NAME, _NAMESPACE, _POOL = "wide", "llm", "all"
_SERVICE: Final = """
apiVersion: tandem.dev/v1alpha1
kind: ModelService
metadata: {name: wide, namespace: llm}
spec:
  model: {source: demo}
  engine: {type: vllm, device: cpu, dtype: float32, parallelism: {tensor: 2}}
  pools:
  - name: all
    role: unified
    accelerator: {type: h100-sxm, perNode: 1}
"""


class Network:
    """A pod's network, in which a sleeping process keeps it; the kernel removes it with its last process."""

    def __init__(self, host: str, hosts: Path) -> None:
        holder = f"hostname {host} && mount --bind {hosts} /etc/hosts && echo made && exec sleep infinity"
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", "unshare", "--net", "--uts", "--mount", "sh", "-c", holder],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        said = self._holder.stdout.readline().strip()
        if said != "made":
            self.close()
            raise OSError(said)
        self.pid = self._holder.pid

    @property
    def enter(self) -> tuple[str, ...]:
        """The start of a command line that runs in here."""
        return ("nsenter", f"--target={self.pid}", "--net", "--uts", "--mount", f"--wd={ROOT}", "--")

    def cable(self, other: "Network", here: str, there: str) -> None:
        """Connect two networks; the addresses are those of their ends."""
        made = f"link add eth0 netns {self.pid} type veth peer name eth0 netns {other.pid}"
        _ip((), made)
        for end, address in ((self, here), (other, there)):
            _ip(end.enter, "link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up")

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()


def _ip(enter: Sequence[str], *lines: str) -> None:
    told = "\n".join(lines) + "\n"
    subprocess.run([*enter, "ip", "-batch", "-"], input=told, text=True, check=True, timeout=_BOUND_S)


@dataclass
class PodProcess:
    """One pod's only container, or what runs beside it."""

    process: asyncio.subprocess.Process
    lines: list[str]
    reading: asyncio.Task[None]

    async def says(self, part: str, within_s: float) -> None:
        """Wait for a line in which it says so."""
        async with asyncio.timeout(within_s):
            while not any(part in line for line in self.lines):
                assert self.process.returncode is None, self.lines[-20:]
                await asyncio.sleep(_LOOK_S)

    async def ended(self, within_s: float) -> int:
        """Its exit status, once all it has said is read."""
        async with asyncio.timeout(within_s):
            status = await self.process.wait()
            await self.reading
            return status

    def ask_to_end(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)

    async def close(self) -> None:
        try:
            await self.ended(_BOUND_S)
        except TimeoutError:
            self.process.kill()
        await self.process.wait()
        self.reading.cancel()


class Group:
    """One worker over two nodes: `pods[0]` leads. `more` are variables as a pool's template may add them."""

    def __init__(self, directory: Path, more: Mapping[str, str]) -> None:
        self._directory = directory
        patch = {
            "spec": {"containers": [{"name": "worker", "env": [{"name": k, "value": v} for k, v in more.items()]}]}
        }
        plain: Any = yaml.safe_load(_SERVICE)
        plain["spec"]["pools"][0]["template"] = patch
        installation = Installation(vllm_image="vllm:1", key_secret=None)
        service = completed(service_of(plain), installation)
        pool = rendered(service, "abc", 1, installation).pools[_POOL]
        owner: Json = {
            "apiVersion": "tandem.dev/v1alpha1", "kind": "EnginePool",
            "metadata": {"name": f"{_NAME}-{_POOL}", "namespace": _NAMESPACE, "uid": "u1"},
        }  # fmt: skip
        self.set = workload(_NAME, pool, "abc", 1, owner)
        self._settings = pool.settings
        self._networks: list[Network] = []
        self._started: list[PodProcess] = []
        self.addresses = ("127.0.0.1", "127.0.0.2")
        self.apart = False
        """Whether each pod has a network of its own."""

    def connect(self) -> None:
        """Give each pod its network."""
        if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "setpriv", "ip", "hostname"))):
            return
        alone = self.addresses
        self.addresses, self.apart = ("10.231.0.2", "10.231.0.3"), True
        try:
            for index, address in enumerate(self.addresses):
                hosts = self._directory / f"hosts-{index}"
                known = f"127.0.0.1 localhost\n{self.addresses[0]} {self.leader}\n{address} {self._name(index)}\n"
                hosts.write_text(known)
                self._networks.append(Network(self._name(index), hosts))
            self._networks[0].cable(self._networks[1], *self.addresses)
        except (OSError, subprocess.CalledProcessError):
            self._disconnect()
            self.addresses, self.apart = alone, False

    @property
    def leader(self) -> str:
        """What the controller calls the first pod of a group in its variables, and DNS in a cluster."""
        return f"{self._name(0)}.{self.set['metadata']['name']}.{_NAMESPACE}" if self.apart else self.addresses[0]

    async def start(self, index: int, more: Mapping[str, str] | None = None) -> PodProcess:
        """A pod of the group, as kubelet and controller start it. `more` are variables for this start."""
        inner = self.set["spec"]["leaderWorkerTemplate"]
        template = inner["workerTemplate" if index else "leaderTemplate"]
        pod = {
            "metadata": {**template["metadata"], "name": self._name(index), "namespace": _NAMESPACE},
            "status": {"podIP": self.addresses[index]},
        }
        (container,) = template["spec"]["containers"]
        of_group = {
            "LWS_LEADER_ADDRESS": self.leader,
            "LWS_GROUP_SIZE": str(inner["size"]),
            "LWS_WORKER_INDEX": str(index),
        }
        environment = variables(container, pod, self._data, {**os.environ, **of_group, **(more or {})})
        program, *arguments = command(container, environment)
        assert program == "python"
        return await self.run(index, [sys.executable, *arguments], environment)

    async def run(self, index: int, argv: Sequence[str], environment: Mapping[str, str]) -> PodProcess:
        """Whatever else runs in a pod's network."""
        enter = self._networks[index].enter if self.apart else ()
        process = await asyncio.create_subprocess_exec(
            *enter, *argv, env=dict(environment), cwd=ROOT, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        lines: list[str] = []
        started = PodProcess(process, lines, asyncio.create_task(_read(process, lines)))
        self._started.append(started)
        return started

    async def until_ready(self, index: int, port: int, process: PodProcess, within_s: float) -> None:
        """As a readiness probe sees it."""
        loop, answer = asyncio.get_running_loop(), b"nothing"
        until = loop.time() + within_s
        while loop.time() < until:
            assert process.process.returncode is None, process.lines[-20:]
            try:
                status, answer = await self.ask(index, port, "GET", "/ready")
            except OSError:
                status = 0
            if status == 200:
                return
            await asyncio.sleep(_LOOK_S)
        raise AssertionError(f"not ready within {within_s:g} s: {answer!r}; {process.lines[-20:]}")

    async def ask(self, index: int, port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        """One request from inside the pod's network to its address."""

        def asked() -> tuple[int, bytes]:
            if self.apart:
                with open(f"/proc/{self._networks[index].pid}/ns/net") as network:
                    if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "setns")
            address = self.addresses[index]
            connection = http.client.HTTPConnection(address, port, timeout=_HTTP_S)
            connection.sock = socket.create_connection((address, port), _HTTP_S)
            try:
                connection.request(method, path, body, {"content-type": "application/json"})
                answer = connection.getresponse()
                return answer.status, answer.read()
            finally:
                connection.close()

        # A thread of its own: the network that it enters is its alone, and ends with it.
        with ThreadPoolExecutor(1) as thread:
            return await asyncio.get_running_loop().run_in_executor(thread, asked)

    async def close(self) -> None:
        for each in self._started:
            each.ask_to_end()
        for each in self._started:
            await each.close()
        self._disconnect()

    def _name(self, index: int) -> str:
        """As StatefulSets of a LeaderWorkerSet call their pods."""
        first = f"{self.set['metadata']['name']}-0"
        return f"{first}-{index}" if index else first

    def _data(self, kind: str, _name: str) -> Mapping[str, str] | None:
        return self._settings if kind == "ConfigMap" else None

    def _disconnect(self) -> None:
        for network in self._networks:
            network.close()
        self._networks.clear()


async def _read(process: asyncio.subprocess.Process, lines: list[str]) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        lines.append(line.decode(errors="replace").rstrip())
