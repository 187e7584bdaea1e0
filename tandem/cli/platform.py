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
_ASK_STARTING_S: Final = 0.1
_ASK_READY_S: Final = 2.0
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

    @property
    def router(self) -> Member:
        return next(member for member in self.members if member.role == ROUTER)

    async def run(self, board: Board, work: Callable[[Supervisor], Awaitable[T]]) -> T:
        """Start everything, do `work`, and stop everything in order. A first signal stops, a second hurries.

        Raises what `work` raises, and `engine_failed` when a process cannot start; `work` is then cancelled.
        """
        supervisor = Supervisor(self.control, self.members, self.directory, SystemClock(), board.changed)
        serving = asyncio.create_task(supervisor.run(), name="supervisor")
        watch = asyncio.create_task(self._watch(supervisor), name="watch router")
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
        """Wait until every process serves. Raises `deadline_exceeded` naming those that do not."""
        try:
            async with asyncio.timeout(within_s):
                await supervisor.all_ready()
        except TimeoutError:
            late = ", ".join(f"{member.name} ({member.state})" for member in self.members if member.state != "ready")
            raise TandemError("deadline_exceeded", f"not ready within {within_s:g} s: {late}") from None

    async def _watch(self, supervisor: Supervisor) -> None:
        """Find out when the router serves (again), then keep its figures fresh."""
        while True:
            if self.router.state == "ready":
                await self._read_figures()
            elif self.router.pid is not None and await self._answers():
                supervisor.ready(self.router)
            await asyncio.sleep(_ASK_READY_S if self.router.state == "ready" else _ASK_STARTING_S)

    async def _answers(self) -> bool:
        try:
            status, _ = await ask(self.target, "GET", "/ready", timeout_s=5.0)
        except TandemError:
            return False
        return status == 200

    async def _read_figures(self) -> None:
        try:
            status, body = await ask(self.target, "GET", "/metrics", timeout_s=5.0)
        except TandemError:
            self.figures.line = "the router does not answer"
            return
        if status == 200:
            self.figures.line = figures_line(body.decode("utf-8", "replace"))

    def curl(self) -> str:
        """A request to paste into a shell."""
        body = {
            "model": self.service.model_name,
            "messages": [{"role": "user", "content": "Tell me a story about a fox and a lantern."}],
            "stream": True,
        }
        data = shlex.quote(msgspec.json.encode(body).decode())
        return f"curl -N {self.url}/v1/chat/completions -H 'Content-Type: application/json' -d {data}"


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def figures_line(metrics: str) -> str:
    """A few figures of a Prometheus page, summed over labels."""
    parts = []
    for label, name in _FIGURES.items():
        values = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", metrics, re.MULTILINE)
        if values:
            parts.append(f"{label} {sum(map(float, values)):,.0f}")
    return "   ".join(parts)


async def _ended(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel what still runs and wait for it; errors have been seen or do not matter any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
