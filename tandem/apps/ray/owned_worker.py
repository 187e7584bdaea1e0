"""The worker process that a replica owns: started on a lifeline, watched, reported to the hub, drained at the end.

It knows no Ray: the hub is a value with one method, and the end of the process is told by a callback.
"""

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from tandem.apps.cli.member import Member
from tandem.apps.cli.router_client import send_request
from tandem.apps.cli.run_directory import tail
from tandem.apps.client.http import Target
from tandem.apps.ray.hub_client import HubCalls
from tandem.apps.ray.serving import WorkerTold
from tandem.core.errors import TandemError
from tandem.link.address import parse_address, split_host
from tandem.process.local_processes import LocalProcesses
from tandem.process.logs import event
from tandem.process.processes import Command, Process

_log = logging.getLogger(__name__)

REPORT_EVERY_S: Final = 1.0
REPORT_S: Final = 3.0
"""Bound of one report; the next one says the same and more."""
READY_S: Final = 7200.0
"""Bound of a start: weights are read, and kernels may be compiled."""
FETCH_S: Final = 6 * 3600.0
"""Bound of bringing weights to a node."""
CHECK_S: Final = 1.0
_END_S: Final = 10.0
"""Seconds that a worker gets beyond its drain to end, then it is killed; all within Serve's own bound."""


class OwnedWorker:
    """A worker process and the reports about it. `told` is the latest report; `lost` is called once with the exit
    status when the process ends and nobody has asked it to."""

    def __init__(self, told: WorkerTold, command: Command, hub: HubCalls, lost: Callable[[int], None]) -> None:
        self.told = told
        self._command = command
        self._member = Member(command, told.role)
        self._hub = hub
        self._lost = lost
        self._process: Process | None = None
        self._ready = asyncio.Event()
        self._changed = asyncio.Event()
        self._ended: asyncio.Task[int] | None = None
        self._reports: asyncio.Task[None] | None = None
        self._awaited = False
        """Its end is expected, or is told by an exception."""

    async def start(self, logs: Path) -> None:
        """Start the process and wait until it says that it is ready. Its output goes to `NAME.log` in `logs`.

        Raises `engine_failed` with the last lines of its log when it ends before, or is not ready in time.
        """
        control = LocalProcesses(logs, lifeline=True)
        self._process = await control.start(self._command)
        self._member.begin(self._process.pid)
        self._tell(pid=self._process.pid)
        self._ended = asyncio.create_task(self._follow(self._process), name=f"output of {self.told.name}")
        self._reports = asyncio.create_task(self._report_on(), name=f"reports of {self.told.name}")
        ready = asyncio.create_task(self._ready.wait())
        self._awaited = True
        try:
            await asyncio.wait((ready, self._ended), timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
            if not self._ready.is_set() or self._ended.done():
                raise TandemError("engine_failed", self._failure(tail(control.log_of(self.told.name))))
        except BaseException:
            await self._abandon()
            raise
        finally:
            ready.cancel()
        self._awaited = False

    async def check(self) -> None:
        """Raises `worker_lost` unless the process answers within a second: one that is frozen does not, one that
        computes does. A rank that is no worker serves no pages; for it, that the process runs is enough."""
        if self._ended is None or self._ended.done():
            raise TandemError("worker_lost", f"the process of worker {self.told.name} has ended")
        if not self.told.metrics:
            return
        host, port = split_host(self.told.metrics)
        assert port is not None, "its own event line gave it"
        try:
            status, _ = await send_request(Target(host, port, False, ""), "GET", "/alive", timeout_s=CHECK_S)
        except TandemError as error:
            raise TandemError("worker_lost", f"worker {self.told.name} does not answer: {error.message}") from error
        if status != 200:
            raise TandemError("worker_lost", f"worker {self.told.name} answers with status {status}")

    async def leave(self, drain_s: float) -> None:
        """Let the worker drain for at most `drain_s` seconds, and see that it has ended; report both."""
        if self._process is None or self._ended is None:
            return
        self._awaited = True
        self._tell(leaving_s=drain_s)
        self._process.signal(signal.SIGTERM)
        await asyncio.wait((self._ended,), timeout=drain_s + _END_S)
        await self._abandon()

    async def _abandon(self) -> None:
        """End what is left, and say that the worker is gone."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)
        if self._ended is not None:
            await asyncio.wait((self._ended,), timeout=_END_S)
        if self._reports is not None:
            self._reports.cancel()
        await self._say_gone()

    async def _follow(self, process: Process) -> int:
        """Learn from the event lines until there are none; gives the exit status."""
        while (lines := await process.lines()) is not None:
            for line in lines:
                if self._member.take(line):
                    self._take_over()
        status = await process.wait()
        if not self._awaited:
            event(_log, "worker_lost", level=logging.ERROR, worker=self.told.name, status=status)
            await self._say_gone()
            self._lost(status)
        return status

    def _take_over(self) -> None:
        """What the process has said about itself becomes the report."""
        member = self._member
        address = parse_address(member.address).target if member.address else ""
        self._tell(address=address, metrics=member.metrics, ready=member.state == "ready")
        if member.ever_ready:
            self._ready.set()

    def _tell(self, **changes: object) -> None:
        told = msgspec.structs.replace(self.told, **changes)
        if told != self.told:
            self.told = told
            self._changed.set()

    async def _report_on(self) -> None:
        """Report at once after each change, and every second. A hub that is away is told by the next report."""
        while True:
            self._changed.clear()
            with suppress(TandemError):
                await self._hub.call("report", self.told, within_s=REPORT_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(REPORT_EVERY_S):
                    await self._changed.wait()

    async def _say_gone(self) -> None:
        self._tell(ready=False, gone=True)
        with suppress(TandemError):
            await self._hub.call("report", self.told, within_s=REPORT_S)

    def _failure(self, log: str) -> str:
        ended = self._ended is not None and self._ended.done()
        how = (
            f"ended with status {self._ended.result()}" if ended and self._ended else f"is not ready in {READY_S:g} s"
        )
        said = f": {self._member.problem}" if self._member.problem else ""
        return f"worker {self.told.name} {how}{said}\n{log}".rstrip()


async def run_to_end(command: Command, logs: Path) -> None:
    """Run a command of `tandem.process.lifeline` that ends by itself; it ends with this process, too. Raises
    `bad_model` when it fails, or takes hours."""
    # It writes lines of progress; they are in its log.
    process = await LocalProcesses(logs, lifeline=True).start(command)
    try:
        async with asyncio.timeout(FETCH_S):
            while await process.lines() is not None:
                pass
            status = await process.wait()
    except TimeoutError:
        process.signal(signal.SIGKILL)
        problem = f"{command.name} has not ended within {FETCH_S:g} s; its log is in {logs}"
        raise TandemError("bad_model", problem) from None
    except BaseException:
        process.signal(signal.SIGKILL)
        raise
    if status != 0:
        raise TandemError("bad_model", f"{command.name} ended with status {status}; its log is in {logs}")
