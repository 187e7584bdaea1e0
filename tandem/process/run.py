"""One way to run every service: start, ready, drain, stop, with named root tasks.

`run_service` is the order of a service's life and knows neither signals nor processes; `serve_process` is the edge
of a process around it.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tandem.core.errors import TandemError
from tandem.process.health import Health
from tandem.process.logs import EventLines, event

_log = logging.getLogger(__name__)

STOP_S: Final = 10.0
"""Bound of the last clean-up."""
TELL_EVERY_S: Final = 0.5
"""Seconds between the checks of a draining service on what it still holds; it reports changes."""


class Service(Protocol):
    """The actions of a service at each stage of its life."""

    async def start(self) -> None:
        """Load and bind; nothing is served yet. Raises `TandemError` when the service cannot run."""
        ...

    def roots(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """The long-lived tasks. When one of them ends, the process ends."""
        ...

    async def serve(self) -> None:
        """Begin to take work; the root tasks run. The service is ready when this returns."""
        ...

    async def drain_requested(self) -> float | None:
        """Wait until a peer asks the service to drain; gives the seconds it has, or None for the default."""
        ...

    async def drain(self, within_s: float) -> None:
        """Refuse new work, let what runs end, at most for `within_s`; then cancel the rest."""
        ...

    def held(self) -> Mapping[str, int]:
        """Counts by kind of what keeps the service from leaving; read while it drains."""
        ...

    async def stop(self) -> None:
        """Clean up once."""
        ...


@dataclass
class StopSignal:
    """The signal for a process to end: `ask` once to drain, again to hurry."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    hurried: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self) -> None:
        (self.hurried if self.asked.is_set() else self.asked).set()


class RootEnded(Exception):
    """A root task came to an end by itself, which none may do."""


async def run_service(service: Service, stop: StopSignal, health: Health, drain_s: float) -> None:
    """Run a service from start to stop. Raises what a root task raised, or `RootEnded`."""
    try:
        if await _first(service.start(), stop.asked.wait()) == 1:
            return
        await _run_roots(service, stop, health, drain_s)
    finally:
        health.stopping()
        await _bounded(service.stop(), STOP_S, "stop")


async def _run_roots(service: Service, stop: StopSignal, health: Health, drain_s: float) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            roots = [
                group.create_task(_root(name, root), name=f"root {name}") for name, root in service.roots().items()
            ]
            within_s = drain_s
            if await _first(service.serve(), stop.asked.wait()) == 0:
                health.ready()
                within_s = await _leave(service, stop, drain_s)
            await _drain(service, stop, health, within_s)
            await _end(roots)
    except BaseExceptionGroup as failed:
        raise _leaf(failed) from None


async def _end(roots: Sequence[asyncio.Task[None]]) -> None:
    """Cancel what runs for as long as the process lives, again where it went on as if nothing had happened."""
    while left := [root for root in roots if not root.done()]:
        for root in left:
            root.cancel()
        await asyncio.wait(left, timeout=STOP_S)
        for root in left:
            if not root.done():
                event(_log, "root_stays", level=logging.WARNING, root=root.get_name())


async def _drain(service: Service, stop: StopSignal, health: Health, within_s: float) -> None:
    """Drain the service until it has released everything, its bound has passed, or a second signal came."""

    async def tell() -> None:
        while True:
            health.draining(service.held())
            await asyncio.sleep(TELL_EVERY_S)

    draining = _bounded(service.drain(within_s), within_s + STOP_S, "drain")
    await _first(draining, stop.hurried.wait(), tell())


async def _root(name: str, root: Callable[[], Awaitable[None]]) -> None:
    await root()
    raise RootEnded(f"{name} ended by itself")


async def _leave(service: Service, stop: StopSignal, drain_s: float) -> float:
    """Wait until this service is asked to end; gives the seconds it has."""
    given: list[float | None] = []

    async def asked() -> None:
        given.append(await service.drain_requested())

    await _first(stop.asked.wait(), asked())
    return given[0] if given and given[0] is not None else drain_s


async def _first(*waiting: Awaitable[object]) -> int:
    """Index of the awaitable that ends first; its error is raised, the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in waiting]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        index = next(index for index, task in enumerate(tasks) if task.done())
        tasks[index].result()
        return index
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _bounded(stage: Awaitable[None], within_s: float, name: str) -> None:
    try:
        async with asyncio.timeout(within_s):
            await stage
    except TimeoutError:
        event(_log, "stage_timed_out", stage=name, within_s=within_s)


def _leaf(failed: BaseException) -> BaseException:
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    return failed


def serve_process(
    build: Callable[[EventLines], Service],
    events: EventLines,
    drain_s: float,
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    health: Health | None = None,
) -> int:
    """The edge of a service process: signals in, exit status out, one sentence on standard error when it fails."""
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_serve(build, events, drain_s, health or Health(events)))
    except TandemError as error:
        return fail(events, error)
    except Exception as error:  # noqa: BLE001 the edge of the process: whatever it is, say it in one sentence
        _log.critical("crashed", exc_info=error)
        return fail(events, TandemError("internal", f"{type(error).__name__}: {error}"))
    return 0


def fail(events: EventLines, error: TandemError) -> int:
    """Say why the process ends; gives its exit status."""
    events.emit("failed", code=error.code, message=error.message)
    sys.stderr.write(f"{error.code}: {error.message}\n")
    sys.stderr.flush()
    return 1


async def _serve(build: Callable[[EventLines], Service], events: EventLines, drain_s: float, health: Health) -> None:
    stop = StopSignal()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.ask)
    await run_service(build(events), stop, health, drain_s)
