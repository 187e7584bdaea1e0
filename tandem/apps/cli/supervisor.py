"""Keeps a router and its workers running: starts them together, restarts what crashes, adds, drains, stops in order.

Runs on asyncio and the `ProcessControl` seam only, so that tests drive it on virtual time.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from tandem.apps.cli.member import Member
from tandem.apps.cli.restart import RestartPolicy, exit_reason
from tandem.apps.cli.stopping import Stopper, StopTimes, send
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.process.processes import Process, ProcessControl

ROUTER: Final = "router"
_LOOK_EVERY_S: Final = 0.05


class FleetDirectory(Protocol):
    """Publishes the addresses of live workers for the router."""

    def publish(self, addresses: Sequence[str], drains: Mapping[str, float]) -> None:
        """Publish the addresses. `drains` gives the seconds within which some of the workers are to leave."""
        ...


class Supervisor:
    """Owns the members; the list is changed in place. `changed(member, sentence)` is called on every change of state,
    with a sentence when the change matters."""

    def __init__(
        self,
        control: ProcessControl,
        members: list[Member],
        fleet: FleetDirectory,
        clock: Clock,
        changed: Callable[[Member, str], None],
        policy: RestartPolicy | None = None,
        times: StopTimes | None = None,
    ) -> None:
        self.members = members
        self._control = control
        self._fleet = fleet
        self._clock = clock
        self._changed = changed
        self._policy = policy or RestartPolicy()
        self._times = times or StopTimes()
        self._processes: dict[str, Process] = {}
        self._stopper = Stopper(self._processes, clock, self._times)
        self._removals = {member.name: asyncio.Event() for member in members}
        self._group: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._all_ready = asyncio.Event()

    async def run(self) -> None:
        """Run until `stop` is called and every member has ended. Raises `engine_failed` when a member cannot
        start."""
        self._fleet.publish((), {})
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
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
        for removal in self._removals.values():
            removal.set()

    def hurry(self) -> None:
        """Stop without waiting for streams."""
        self._hurrying.set()
        self.stop()

    # ---- while everything runs ----

    async def add(self, member: Member, within_s: float) -> None:
        """Start one more and wait until it is ready. Raises `engine_failed`, `deadline_exceeded`, `draining`; then
        it is not a member."""
        if self._group is None or self._stopping.is_set():
            raise TandemError("draining", "the platform is stopping")
        self.members.append(member)
        self._removals[member.name] = asyncio.Event()
        keeping = self._group.create_task(self._keep_added(member), name=f"keep {member.name}")
        deadline = self._clock.now() + within_s
        while not member.ever_ready and not keeping.done():
            if self._clock.now() >= deadline:
                await self.leave(member, 0.0, remove=True)
                raise TandemError("deadline_exceeded", f"{member.name} was not ready within {within_s:g} s")
            await asyncio.sleep(_LOOK_EVERY_S)
        if keeping.done() and (error := keeping.result()) is not None:
            raise error

    async def leave(self, member: Member, within_s: float, *, remove: bool) -> None:
        """Drain a worker and wait until its process has ended. Another life follows, unless it is to be removed.

        The router passes the request on, so that it knows from the start by when the streams must be elsewhere; a
        worker that it does not reach is signalled.
        """
        member.drain_within_s, member.removed, member.farewell = within_s, remove, None
        if remove:
            self._removals[member.name].set()
        there = self._stopper.running([member.name])
        if member.state == "ready":
            self._publish()
            self._changed(member, f"{member.name} drains, for at most {within_s:g} s")
            await self._stopper.gone(there, self._times.ask_s, unless=lambda: member.state != "ready")
        if member.state != "draining":
            send(there.values(), signal.SIGTERM)
        if not await self._stopper.gone(there, within_s + self._times.hurry_s, unless=self._hurrying.is_set):
            await self._stopper.insist(there)
        while remove and member in self.members:  # noqa: ASYNC110  (the end of a task that belongs to the group)
            await asyncio.sleep(_LOOK_EVERY_S)

    # ---- one member ----

    async def _keep(self, member: Member) -> None:
        exits = 0
        while not self._ends(member):
            began = self._clock.now()
            status = await self._one_life(member)
            if self._ends(member):
                break
            if member.drain_within_s is not None:
                exits = 0
                how = "has drained" if member.farewell is not None else exit_reason(status)
                self._changed(member, f"{member.name} {how}; starting it again")
                continue
            exits = self._policy.row(exits, self._clock.now() - began)
            await self._wait_to_restart(member, status, exits)
        member.state, member.pid = "stopped", None
        if member.removed:
            self.members.remove(member)
        self._changed(member, f"{member.name} has left" if member.removed else "")
        self._look_whether_all_ready()

    async def _keep_added(self, member: Member) -> TandemError | None:
        """Like `_keep`, but a member that cannot start does not end the others; gives the error in that case."""
        try:
            await self._keep(member)
        except TandemError as error:
            self.members.remove(member)
            self._changed(member, f"{member.name} could not start: {error.message}")
            return error
        return None

    def _ends(self, member: Member) -> bool:
        return self._stopping.is_set() or member.removed

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
        self._look_whether_all_ready()

    def _look_whether_all_ready(self) -> None:
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
                await self._removals[member.name].wait()
        except TimeoutError:
            return

    def _publish(self) -> None:
        workers = [member for member in self.members if member.role != ROUTER and member.address]
        drains = {each.address: each.drain_within_s for each in workers if each.drain_within_s is not None}
        self._fleet.publish([member.address for member in workers], drains)

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
        await self._stopper.end([member.name for member in members], self._hurrying)


def _first(errors: BaseExceptionGroup[TandemError]) -> TandemError:
    """The first leaf of an exception group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, TandemError)
    return error
