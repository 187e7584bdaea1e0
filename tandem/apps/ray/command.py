"""`tandem up --on ray`: workers and routers of a `ModelService` file on a Ray cluster."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, TypeVar

import msgspec

from tandem.apps.cli.control import ControlServer
from tandem.apps.cli.printing import print_line, silence
from tandem.apps.cli.registry import PlatformEntry, open_registry, process_start
from tandem.apps.cli.rolling.spec_watch import SpecWatch
from tandem.apps.cli.run_directory import RunDirectory
from tandem.apps.ray.cluster import connected, require_ray
from tandem.apps.ray.hub_client import hub_of_this_cluster
from tandem.apps.ray.ray_platform import PASSING, RayPlatform
from tandem.apps.ray.up_control import RayOperations, publishing
from tandem.apps.ray.up_options import RayUpOptions, parse
from tandem.core.errors import TandemError
from tandem.process.system import SystemClock

_PUBLISH_S: Final = 2.0
_ASKED: Final = 5
"""How often a hub that cannot be reached is asked."""
HURRY_S: Final = 5.0

_Answer = TypeVar("_Answer")
Findable = Callable[[RayPlatform, RayUpOptions], AbstractAsyncContextManager[None]]
"""Lets other commands find a platform for as long as it is entered: `findable`."""


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 after a stop that was asked for, 1 when something could not start, 2 for wrong use."""
    options = parse(arguments)
    require_ray()
    with connected(options.settings.address):
        asyncio.run(_up(options))
    return 0


async def _up(options: RayUpOptions) -> None:
    # They import Ray.
    from tandem.apps.ray.hub_actor import make_hub
    from tandem.apps.ray.ray_serving import RayCluster

    stop = Stop()
    stop.listen()
    platform = RayPlatform(hub_of_this_cluster(), RayCluster(make_hub), options.settings, options.service, print_line)
    await run(platform, options, stop, findable)


async def run(platform: RayPlatform, options: RayUpOptions, stop: "Stop", findable: Findable) -> None:
    """Start the platform and serve until a stop is asked for, then let it leave. Raises what its start raises."""
    serving = asyncio.create_task(_serve(platform, options, findable), name="serve")
    asked = asyncio.create_task(stop.asked.wait(), name="stop")
    try:
        await asyncio.wait((serving, asked), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        print_line(_goodbye(options))
    finally:
        asked.cancel()
        serving.cancel()
        failed = not stop.asked.is_set()
        await asyncio.gather(serving, return_exceptions=True)
        if takes_away(platform.wanted, platform.found, failed=failed, keep=options.settings.keep):
            await _leave(platform, platform.leave(), stop)
        elif not platform.wanted and not options.settings.keep:
            await _leave(platform, platform.abandon(), stop)
    print_line("stopped")


def takes_away(wanted: bool, found: bool, *, failed: bool, keep: bool) -> bool:
    """Whether the command takes its service away when it ends. What it never asked for, and what was there before a
    start that failed, is not its to take."""
    return wanted and not keep and not (failed and found)


async def _serve(platform: RayPlatform, options: RayUpOptions, findable: Findable) -> None:
    """Start, say where the service is, and follow edits of its file, until cancelled."""
    await platform.start()
    events = asyncio.create_task(platform.say_events(), name="events of the hub")
    try:
        await platform.ready(options.start_s)
        name = platform.service.model_name
        print_line(f"{name} is served at {platform.url}/v1\n\n{platform.curl()}\n")
        async with findable(platform, options):
            await _follow(platform, options)
    finally:
        events.cancel()
        await asyncio.gather(events, return_exceptions=True)


async def _follow(platform: RayPlatform, options: RayUpOptions) -> None:
    """Carry out edits of the file, for ever. A mistake in it changes nothing, and what the hub could not be told is
    told with the next edit."""
    edits = SpecWatch(options.file, options.reread, options.service)
    while True:
        service = await edits.next()
        try:
            if isinstance(service, TandemError):
                raise service
            revision = await _patiently(partial(platform.want, service))
        except TandemError as error:
            later = "; it is tried again at the next change of the file" if error.code in PASSING else ""
            print_line(f"{options.file} is not carried out: {error.message}{later}")
        else:
            print_line(f"{options.file}: {platform.name} is to be revision {revision}")


async def _patiently(ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Ask the hub, a few times while it cannot be reached: it may be coming back. Raises what the last try raised."""
    for _ in range(_ASKED - 1):
        try:
            return await ask()
        except TandemError as error:
            if error.code not in PASSING:
                raise
        await asyncio.sleep(_PUBLISH_S)
    return await ask()


@asynccontextmanager
async def findable(platform: RayPlatform, options: RayUpOptions) -> AsyncIterator[None]:
    """Let other commands of this user on this machine find the platform, as they find `tandem up`."""
    directory, registry = RunDirectory(), open_registry(os.environ)
    registry.clear_dead()
    latest: list[PlatformEntry] = []

    async def entry() -> PlatformEntry:
        pid = os.getpid()
        found: PlatformEntry = msgspec.structs.replace(
            await platform.entry(),
            url=platform.url,
            run_directory=str(directory.path),
            control=str(directory.control_socket),
            pid=pid,
            began=process_start(pid) or 0,
            service=platform.name,
            pools=tuple(pool.name for pool in platform.service.spec.pools),
        )
        latest[:] = [found]
        return found

    try:
        await _patiently(entry)
        control = ControlServer(
            directory.control_socket, RayOperations(platform, SystemClock(), options.start_s), lambda: latest[0]
        )
        beside = [
            asyncio.create_task(control.run(), name="control"),
            asyncio.create_task(publishing(entry, registry.publish, _PUBLISH_S, print_line), name="registry"),
        ]
        try:
            yield
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
    finally:
        registry.withdraw()
        directory.remove()


async def _leave(platform: RayPlatform, work: Coroutine[None, None, None], stop: "Stop") -> None:
    """End what was started: in order, or at once after a second signal."""
    leaving = asyncio.create_task(work, name="leave")
    hurried = asyncio.create_task(stop.hurried.wait(), name="hurry")
    try:
        await asyncio.wait((leaving, hurried), return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            leaving.result()
            return
        print_line("stopping now; what still drains on the cluster ends by itself")
        await platform.hurry(HURRY_S)
    except TandemError as error:
        print_line(f"not everything has left: {error.message}")
    finally:
        for task in (leaving, hurried):
            task.cancel()
        await asyncio.gather(leaving, hurried, return_exceptions=True)


def _goodbye(options: RayUpOptions) -> str:
    if options.settings.keep:
        return "everything goes on without this command; the same command without --keep takes it over again"
    return "stopping; workers drain first, another Ctrl-C stops at once"


class Stop:
    """What signals have asked for: an end, and an end at once."""

    def __init__(self) -> None:
        self.asked, self.hurried = asyncio.Event(), asyncio.Event()

    def listen(self) -> None:
        """Have signals of this process ask."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.signal)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)

    def signal(self) -> None:
        """A first one asks for an end, a second one for an end at once."""
        (self.hurried if self.asked.is_set() else self.asked).set()

    def _hung_up(self) -> None:
        silence()
        self.asked.set()
