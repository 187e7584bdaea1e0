"""A whole platform on this machine: run directory, supervised processes, and a watch on the router's answers."""

import asyncio
import os
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from tandem.bench.client import Target
from tandem.cli.ask import ask
from tandem.cli.board import Board
from tandem.cli.launches import Places, members_of
from tandem.cli.member import Member
from tandem.cli.ports import check_free, free_port
from tandem.cli.run_directory import RunDirectory
from tandem.cli.service_spec import ModelService
from tandem.cli.supervisor import ROUTER, Supervisor
from tandem.core.errors import TandemError
from tandem.service.local_processes import LocalProcesses
from tandem.service.system import SystemClock, SystemEntropy

T = TypeVar("T")
_LINKED_EVERY_S: Final = 0.05
_FIGURES_EVERY_S: Final = 2.0
_FIGURES: Final = {
    "running": "tandem_requests_running",
    "tokens out": "tandem_output_tokens_total",
    "KV bytes moved": "tandem_kv_transfer_bytes_total",
}


@dataclass
class Figures:
    """What the router last said of its work, as a line."""

    line: str = ""


class Platform:
    """Checks ports and makes the run directory; `run` then starts, serves and stops everything."""

    def __init__(
        self, service: ModelService, environment: Mapping[str, str], router_flags: Sequence[str] = ()
    ) -> None:
        router = service.spec.router
        check_free(router.host, {"--port": router.port, "--grpc-port": router.grpc_port or 0})
        reachable = "127.0.0.1" if router.host in ("0.0.0.0", "::") else router.host
        port = router.port or free_port(router.host)
        self.service = service
        self.target = Target(reachable, port, False, "")
        self.directory = RunDirectory()
        self.directory.draw_key(SystemEntropy())
        self.control = LocalProcesses(self.directory.logs)
        self.figures = Figures()
        places = Places(
            self.directory.fleet_file, self.directory.key_file, self.directory.sockets, port, router.grpc_port
        )
        self.members = members_of(service, places, cores(), environment, router_flags)

    @property
    def url(self) -> str:
        host = f"[{self.target.host}]" if ":" in self.target.host else self.target.host
        return f"http://{host}:{self.target.port}"

    async def run(self, board: Board, work: Callable[[Supervisor], Awaitable[T]]) -> T:
        """Start everything, do `work`, and stop everything in order. A first signal stops, a second hurries.

        Raises what `work` raises, and `engine_failed` when a process cannot start; `work` is then cancelled.
        """
        supervisor = Supervisor(self.control, self.members, self.directory, SystemClock(), board.changed)
        serving = asyncio.create_task(supervisor.run(), name="supervisor")
        watch = asyncio.create_task(self._watch(), name="watch router")
        working = asyncio.ensure_future(work(supervisor))
        try:
            await asyncio.wait((serving, working), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await serving
                raise TandemError("cancelled", "stopped before everything was ready")
            return await working
        finally:
            supervisor.stop()
            await _ended(working, watch)
            await serving

    async def ready(self, supervisor: Supervisor, within_s: float) -> None:
        """Wait until every process is ready and the router has a link to every worker.

        Raises `deadline_exceeded` naming what is missing.
        """
        try:
            async with asyncio.timeout(within_s):
                await supervisor.all_ready()
                await self._all_linked()
        except TimeoutError:
            late = ", ".join(f"{member.name} ({member.state})" for member in self.members if member.state != "ready")
            missing = late or "links from the router to its workers"
            raise TandemError("deadline_exceeded", f"not ready within {within_s:g} s: {missing}") from None

    async def _all_linked(self) -> None:
        while True:
            if linked_workers(await self._metrics()) >= len(self.members) - 1:
                return
            await asyncio.sleep(_LINKED_EVERY_S)

    async def _watch(self) -> None:
        """Keep the figures of router and workers fresh."""
        while True:
            if self._router.state == "ready":
                router = await self._metrics()
                workers = [await self._worker_metrics(member) for member in self.members if member.metrics]
                self.figures.line = (
                    figures_line("\n".join([router, *workers])) if router else "the router does not answer"
                )
            await asyncio.sleep(_FIGURES_EVERY_S)

    async def _metrics(self) -> str:
        """The router's metrics page, empty when it does not answer."""
        return await _page(self.target)

    async def _worker_metrics(self, member: Member) -> str:
        host, _, port = member.metrics.rpartition(":")
        return await _page(Target(host, int(port), False, "")) if member.state == "ready" else ""

    @property
    def _router(self) -> Member:
        return next(member for member in self.members if member.role == ROUTER)

    def curl(self) -> str:
        """A request to paste into a shell."""
        body = {
            "model": self.service.model_name,
            "messages": [{"role": "user", "content": "Tell me a story about a fox and a lantern."}],
            "stream": True,
        }
        data = shlex.quote(msgspec.json.encode(body).decode())
        return f"curl -N {self.url}/v1/chat/completions -H 'Content-Type: application/json' -d {data}"


async def _page(target: Target) -> str:
    """A metrics page, empty when nobody answers."""
    try:
        status, body = await ask(target, "GET", "/metrics", timeout_s=5.0)
    except TandemError:
        return ""
    return body.decode("utf-8", "replace") if status == 200 else ""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def figures_line(metrics: str) -> str:
    """A few figures of a Prometheus page, summed over labels."""
    sums = {label: _values(metrics, name) for label, name in _FIGURES.items()}
    return "   ".join(f"{label} {sum(values):,.0f}" for label, values in sums.items() if values)


def linked_workers(metrics: str) -> int:
    """How many workers the router of a Prometheus page has links to and may use."""
    return round(sum(_values(metrics, "tandem_workers", 'state="ready"')))


def _values(metrics: str, name: str, label: str = "") -> list[float]:
    """All values of a metric, of those samples whose labels contain `label`."""
    samples = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", metrics, re.MULTILINE)
    return [float(value) for labels, value in samples if label in labels]


async def _ended(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel what still runs and wait for it; errors have been seen or do not matter any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
