"""One container of a pod: its process, through starts, probes and restarts, to its end."""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tandem.core.errors import TandemError
from tandem.kube.kinds import Json
from tandem.kube.times import timestamp
from tests.cluster.kubelet import probes
from tests.cluster.kubelet.environment import NotThere, command, variables
from tests.cluster.kubelet.image import Image
from tests.cluster.kubelet.objects import Objects
from tests.cluster.kubelet.sandbox import Sandbox
from tests.cluster.kubelet.volumes import Volumes

_log = logging.getLogger(__name__)
_LAUNCH = Path(__file__).with_name("launch.py")
_MESSAGE_MAX = 4096
_CONFIG_AGAIN_S = 1.0


@dataclass(frozen=True)
class Place:
    """What a container has from its pod and node. `backoff_s` is the first wait before a restart; it doubles."""

    pod: Callable[[], Json]
    sandbox: Sandbox
    volumes: Volumes
    objects: Objects
    image: Image
    directory: Path
    services: Mapping[str, str]
    backoff_s: float


class Container:
    """`run` until it has ended for good; `changed` is called whenever `status` differs."""

    def __init__(self, spec: Json, place: Place, restarts: str, changed: Callable[[], None]) -> None:
        self.spec = spec
        self.state: Json = {"waiting": {"reason": "ContainerCreating"}}
        self.ready = False
        self.started = False
        self._place = place
        self._policy = restarts
        self._changed = changed
        self._last: Json = {}
        self._restarts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._ending: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def exit_code(self) -> int | None:
        code: int | None = self.state.get("terminated", {}).get("exitCode")
        return code

    def status(self) -> Json:
        """As it stands in the status of the pod."""
        shown = {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": "",
            "state": self.state,
            "lastState": self._last,
            "ready": self.ready,
            "started": self.started,
            "restartCount": self._restarts,
        }
        pid = self._process.pid if self._process else None
        return {**shown, "containerID": f"process://{pid}"} if pid else shown

    async def run(self) -> None:
        """Start it, and again as the policy says, until it is stopped or done."""
        failures = 0
        while not self._stopping.is_set():
            begun = time.monotonic()
            code = await self._once()
            if self._stopping.is_set() or code is None:
                return
            if self._policy == "Never" or (self._policy == "OnFailure" and code == 0):
                return
            failures = 0 if time.monotonic() - begun > 600 else failures + 1
            self._last = self.state
            wait_s = min(300.0, self._place.backoff_s * 2.0 ** (failures - 1))
            message = f"back-off {wait_s:g}s restarting failed container={self.name}"
            self._became({"waiting": {"reason": "CrashLoopBackOff", "message": message}})
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stopping.wait()
            self._restarts += 1

    async def stop(self, grace_s: float) -> None:
        """preStop, SIGTERM, and SIGKILL at the end of the grace period. Returns when the process is gone."""
        self._stopping.set()
        end = time.monotonic() + grace_s
        hook = (self.spec.get("lifecycle") or {}).get("preStop")
        if hook and self._alive():
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._hook(hook)
        await self._end(max(0.0, end - time.monotonic()))

    def kill(self) -> None:
        """At once, with all that it has started."""
        self._stopping.set()
        self._signal(signal.SIGKILL, group=True)

    async def execute(self, argv: list[str]) -> bool:
        """Run a command inside; whether it succeeded."""
        assert self._process is not None
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "-t", str(self._process.pid), "--net", "--uts", "--mount", "--root", "--wd", "--", *argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._place.image.environment,
        )
        try:
            return await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()

    async def _once(self) -> int | None:
        """One life of the process; its exit code, None if it was never started."""
        message = self._place.directory / self.name / "message"
        while True:
            try:
                await self._start(message)
                break
            except (NotThere, TandemError, OSError) as error:
                self._became({"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}})
            with suppress(TimeoutError):
                async with asyncio.timeout(_CONFIG_AGAIN_S):
                    await self._stopping.wait()
            if self._stopping.is_set():
                return None
        assert self._process is not None
        began = timestamp(time.time())
        self.started = "startupProbe" not in self.spec
        self.ready = self.started and "readinessProbe" not in self.spec
        self._became({"running": {"startedAt": began}})
        probing = asyncio.create_task(self._probe())
        try:
            code = await self._process.wait()
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
        self._signal(signal.SIGKILL, group=True)
        self.ready = self.started = False
        self._became({"terminated": self._epitaph(code, began, message)})
        return code

    async def _start(self, message: Path) -> None:
        place, pod = self._place, self._place.pod()
        directory = place.directory / self.name / str(self._restarts)
        directory.mkdir(parents=True, exist_ok=True)
        hosts = directory / "hosts"
        _write(message, "", 0o666)
        _write(hosts, hosts_file(pod, await place.objects.services()), 0o644)
        held = await self._referred(pod)
        base = {**place.image.environment, **place.services, "HOSTNAME": pod["metadata"]["name"]}
        environment = variables(self.spec, pod, lambda kind, name: held.get((kind, name)), base)
        told = directory / "launch.json"
        described = place.image.launch(
            self.spec, pod, directory, command(self.spec, environment), environment, self._mounts(message, hosts)
        )
        told.write_text(json.dumps(described))
        with (place.directory / f"{self.name}.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig", "KILL", "--", *place.sandbox.enter, "unshare", "--mount", "--"),
                *(sys.executable, "-I", "-S", str(_LAUNCH), str(told)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _referred(self, pod: Json) -> dict[tuple[str, str], dict[str, str] | None]:
        """The ConfigMaps and Secrets that the variables come from."""
        names: set[tuple[str, str]] = set()
        for source in self.spec.get("envFrom") or ():
            names |= {(kind, source[key]["name"]) for key, kind in _FROM.items() if key in source}
        for entry in self.spec.get("env") or ():
            chosen = entry.get("valueFrom") or {}
            names |= {(kind, chosen[key]["name"]) for key, kind in _KEYS.items() if key in chosen}
        held: dict[tuple[str, str], dict[str, str] | None] = {}
        for kind, name in names:
            found = await self._place.objects.bytes_of(kind, pod["metadata"]["namespace"], name)
            held[kind, name] = None if found is None else {key: value.decode() for key, value in found.items()}
        return held

    def _mounts(self, message: Path, hosts: Path) -> list[Json]:
        mounts: list[Json] = [{"source": str(hosts), "target": "/etc/hosts", "read_only": False}]
        for mount in self.spec.get("volumeMounts") or ():
            source = self._place.volumes.path(mount["name"])
            if mount.get("subPath"):
                source = (source / mount["subPath"]).resolve()
            read_only = bool(mount.get("readOnly"))
            mounts.append({"source": str(source), "target": mount["mountPath"], "read_only": read_only})
        path = self.spec.get("terminationMessagePath") or "/dev/termination-log"
        return [*mounts, {"source": str(message), "target": path, "read_only": False}]

    async def _probe(self) -> None:
        """The startup probe first, then readiness and liveness side by side."""
        address = self._place.sandbox.address
        ports = {port["name"]: port["containerPort"] for port in self.spec.get("ports") or () if "name" in port}

        def probing(name: str, heard: Callable[[bool], None]) -> asyncio.Task[None] | None:
            probe = self.spec.get(name)
            return probe and asyncio.create_task(probes.watch(probe, address, ports, self.execute, heard))

        tasks: list[asyncio.Task[None] | None] = []
        begun = asyncio.Event()
        try:
            tasks.append(probing("startupProbe", lambda well: begun.set() if well else self._unwell("startup")))
            if tasks[0] is not None:
                await begun.wait()
                tasks[0].cancel()
                self.started = True
                self.ready = "readinessProbe" not in self.spec
                self._changed()
            tasks.append(probing("readinessProbe", self._is_ready))
            tasks.append(probing("livenessProbe", lambda well: None if well else self._unwell("liveness")))
            await asyncio.gather(*(task for task in tasks[1:] if task is not None))
        finally:
            for task in tasks:
                if task is not None:
                    task.cancel()

    def _is_ready(self, ready: bool) -> None:
        if ready != self.ready:
            self.ready = ready
            self._changed()

    def _unwell(self, probe: str) -> None:
        """A failed probe ends the process, and the policy starts it again."""
        if self._stopping.is_set():
            return
        _log.info("%s: its %s probe failed", self.name, probe)
        grace = self._place.pod()["spec"].get("terminationGracePeriodSeconds", 30)
        self._ending = asyncio.create_task(self._end(grace))

    async def _hook(self, hook: Json) -> None:
        with suppress(OSError):
            if "exec" in hook:
                await self.execute(list(hook["exec"]["command"]))
            elif "sleep" in hook:
                await asyncio.sleep(hook["sleep"]["seconds"])
            elif "httpGet" in hook:
                ports = {
                    port["name"]: port["containerPort"] for port in self.spec.get("ports") or () if "name" in port
                }
                await probes.http_get(hook["httpGet"], self._place.sandbox.address, ports)

    async def _end(self, grace_s: float) -> None:
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL, group=True)
            await self._process.wait()

    def _alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def _signal(self, number: int, *, group: bool = False) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            if group:
                os.killpg(self._process.pid, number)
            elif self._alive():
                self._process.send_signal(number)

    def _epitaph(self, code: int, began: str, message: Path) -> Json:
        shown = 128 - code if code < 0 else code
        said = message.read_text(errors="replace")[-_MESSAGE_MAX:]
        if not said and code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            log = self._place.directory / f"{self.name}.log"
            said = "\n".join(log.read_text(errors="replace").splitlines()[-80:])[-2048:]
        return {
            "exitCode": shown,
            "reason": "Error" if shown else "Completed",
            "startedAt": began,
            "finishedAt": timestamp(time.time()),
            **({"message": said} if said else {}),
        }

    def _became(self, state: Json) -> None:
        if state != self.state:
            self.state = state
            self._changed()


def hosts_file(pod: Json, services: Mapping[str, str]) -> str:
    """Names for addresses: there is no DNS here, so each Service is one of its pods, as of this start."""
    lines = ["127.0.0.1 localhost", f"{pod['status']['podIP']} {pod['metadata']['name']}"]
    for name, address in sorted(services.items()):
        short, _, namespace = name.partition(".")
        names = [name, f"{name}.svc", f"{name}.svc.cluster.local"]
        lines.append(" ".join([address, *names, *([short] if namespace == pod["metadata"]["namespace"] else [])]))
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str, mode: int) -> None:
    path.write_text(text)
    path.chmod(mode)


_FROM = {"configMapRef": "ConfigMap", "secretRef": "Secret"}
_KEYS = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}
