"""Keeps a router and its workers running: starts them together, restarts what crashes, stops in order.

Runs on asyncio and the `ProcessControl` seam only, so that tests drive it on virtual time.
"""

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.cli.member import Member
from tandem.cli.restart import RestartPolicy, exit_reason
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.service.processes import Process, ProcessControl

ROUTER = "router"


class FleetDirectory(Protocol):
    """Where the addresses of live workers are published for the router."""

    def publish(self, addresses: Sequence[str]) -> None: ...


@dataclass(frozen=True)
class StopTimes:
    """How long members may take to stop: after the first signal, after the second, before they are killed."""

    drain_s: float = 35.0
    hurry_s: float = 3.0


class Supervisor:
    """Owns the members. `changed(member, sentence)` tells of every change of state, the sentence when it matters."""

    def __init__(
        self,
        control: ProcessControl,
        members: Sequence[Member],
        fleet: FleetDirectory,
        clock: Clock,
        changed: Callable[[Member, str], None],
        policy: RestartPolicy | None = None,
        times: StopTimes | None = None,
    ) -> None:
        self.members = tuple(members)
        self._control = control
        self._fleet = fleet
        self._clock = clock
        self._changed = changed
        self._policy = policy or RestartPolicy()
        self._times = times or StopTimes()
        self._processes: dict[str, Process] = {}
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._all_ready = asyncio.Event()

    async def run(self) -> None:
        """Until `stop` was called and everything has ended. Raises `engine_failed` when a member cannot start."""
        self._fleet.publish(())
        try:
            async with asyncio.TaskGroup() as group:
                for member in self.members:
                    group.create_task(self._keep(member), name=f"keep {member.name}")
                group.create_task(self._stop_in_order(), name="stop")
        except* TandemError as errors:
            raise _first(errors) from None

    async def all_ready(self) -> None:
        """Wait until every member is ready, all at one time."""
        await self._all_ready.wait()

    def stop(self) -> None:
        """Drain and end: streams may finish first."""
        self._stopping.set()

    def hurry(self) -> None:
        """Stop without waiting for streams."""
        self._stopping.set()
        self._hurrying.set()

    # ---- one member ----

    async def _keep(self, member: Member) -> None:
        exits = 0
        while not self._stopping.is_set():
            began = self._clock.now()
            status = await self._one_life(member)
            if self._stopping.is_set():
                break
            exits = self._policy.row(exits, self._clock.now() - began)
            await self._wait_to_restart(member, status, exits)
        member.state, member.pid = "stopped", None
        self._changed(member, "")

    async def _one_life(self, member: Member) -> int:
        """Start the process and stay until it ends."""
        process = await self._control.start(member.command)
        self._processes[member.name] = process
        if self._stopping.is_set():
            process.signal(signal.SIGKILL)  # started while the others were being stopped
        member.begin(process.pid)
        self._changed(member, "")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(member, process), name=f"lines of {member.name}")
                status = await process.wait()
        finally:
            # Reached by cancellation too, when another member could not start; then this one still runs.
            process.signal(signal.SIGKILL)
            member.exit_status = await process.wait()
            del self._processes[member.name]
            self._left(member)
        return status

    async def _listen(self, member: Member, process: Process) -> None:
        while (lines := await process.lines()) is not None:
            was_ready, address = member.state == "ready", member.address
            for line in lines:
                member.take(line)
            if member.address != address:
                self._publish()
            if member.state == "ready" and not was_ready:
                self._ready(member)
            else:
                self._changed(member, "")

    def _ready(self, member: Member) -> None:
        self._changed(member, f"{member.name} is ready")
        if all(other.state == "ready" for other in self.members):
            self._all_ready.set()

    def _left(self, member: Member) -> None:
        self._all_ready.clear()
        member.address = ""
        self._publish()

    async def _wait_to_restart(self, member: Member, status: int, exits: int) -> None:
        reason = f"{member.name} {exit_reason(status)}"
        if member.problem:
            reason += f": {member.problem}"
        if not member.ever_ready:
            raise TandemError("engine_failed", member.problem or reason, param=member.name)
        wait_s = self._policy.wait_s(exits)
        member.state, member.restarts = "restarting", member.restarts + 1
        member.note = f"{exit_reason(status)}, starting again in {wait_s:g} s"
        self._changed(member, f"{reason}; starting it again in {wait_s:g} s")
        try:
            async with asyncio.timeout(wait_s):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _publish(self) -> None:
        workers = [member for member in self.members if member.role != ROUTER]
        self._fleet.publish([member.address for member in workers if member.address])

    # ---- stopping ----

    async def _stop_in_order(self) -> None:
        """The router first, as its streams need the workers; then the workers, all together."""
        await self._stopping.wait()
        await self._end([member for member in self.members if member.role == ROUTER])
        await self._end([member for member in self.members if member.role != ROUTER])

    async def _end(self, members: Sequence[Member]) -> None:
        for member in members:
            member.state = "stopping"
            self._changed(member, "")
        self._signal(members, signal.SIGTERM)
        if not await self._gone(members, self._times.drain_s, self._hurrying):
            self._signal(members, signal.SIGTERM)
            if not await self._gone(members, self._times.hurry_s):
                self._signal(members, signal.SIGKILL)

    async def _gone(self, members: Sequence[Member], within_s: float, unless: asyncio.Event | None = None) -> bool:
        """Wait until none of them runs, at most `within_s` or until `unless` is set; whether they are gone."""
        deadline = self._clock.now() + within_s
        while any(member.name in self._processes for member in members):
            if self._clock.now() >= deadline or (unless is not None and unless.is_set()):
                return False
            await asyncio.sleep(0.05)
        return True

    def _signal(self, members: Sequence[Member], number: int) -> None:
        for member in members:
            if member.name in self._processes:
                self._processes[member.name].signal(number)


def _first(errors: BaseExceptionGroup[TandemError]) -> TandemError:
    """The first leaf of an exception group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, TandemError)
    return error
