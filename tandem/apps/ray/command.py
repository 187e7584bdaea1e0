"""`tandem up --on ray`: workers and routers of a `ModelService` file on a Ray cluster."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from tandem.apps.cli.control import ControlServer
from tandem.apps.cli.printing import print_line, silence
from tandem.apps.cli.registry import PlatformEntry, open_registry, process_start
from tandem.apps.cli.rolling.spec_watch import SpecWatch
from tandem.apps.cli.run_directory import RunDirectory
from tandem.apps.ray.cluster import connected, require_ray
from tandem.apps.ray.up_control import RayOperations, publishing
from tandem.apps.ray.up_options import RayUpOptions, parse
from tandem.core.errors import TandemError
from tandem.process.system import SystemClock

_PUBLISH_S: Final = 2.0
_ASKED: Final = 5
"""How often a hub that cannot be reached is asked."""
_HURRY_S: Final = 5.0


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
    from tandem.apps.ray.hub_client import hub_of_this_cluster
    from tandem.apps.ray.ray_platform import RayPlatform

    stop = _Stop()
    platform = RayPlatform(hub_of_this_cluster(), options.settings, options.service, print_line)
    serving = asyncio.create_task(_serve(platform, options, make_hub), name="serve")
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
            await _leave(platform, stop)
    print_line("stopped")


def takes_away(wanted: bool, found: bool, *, failed: bool, keep: bool) -> bool:
    """Whether the command takes its service away when it ends. What it never asked for, and what was there before a
    start that failed, is not its to take."""
    return wanted and not keep and not (failed and found)


async def _serve(platform: Any, options: RayUpOptions, make_hub: Any) -> None:
    """Start, say where the service is, and follow edits of its file, until cancelled."""
    await platform.start(make_hub)
    events = asyncio.create_task(platform.say_events(), name="events of the hub")
    try:
        await platform.ready(options.start_s)
        name = platform.service.model_name
        print_line(f"{name} is served at {platform.url}/v1\n\n{platform.curl()}\n")
        async with _findable(platform, options):
            await _follow(platform, options)
    finally:
        events.cancel()
        await asyncio.gather(events, return_exceptions=True)


async def _follow(platform: Any, options: RayUpOptions) -> None:
    """Carry out edits of the file, for ever. A mistake in it changes nothing."""
    edits = SpecWatch(options.file, options.reread, options.service)
    while True:
        service = await edits.next()
        try:
            if isinstance(service, TandemError):
                raise service
            revision = await platform.want(service)
        except TandemError as error:
            print_line(f"{options.file} is not carried out: {error.message}")
        else:
            print_line(f"{options.file}: {platform.name} is to be revision {revision}")


async def _patiently(ask: Callable[[], Awaitable[object]]) -> None:
    """Ask the hub, a few times while it cannot be reached: it may be coming back. Raises what the last try raised."""
    for left in reversed(range(_ASKED)):
        try:
            await ask()
            return
        except TandemError as error:
            if error.code != "link_lost" or not left:
                raise
        await asyncio.sleep(_PUBLISH_S)


@asynccontextmanager
async def _findable(platform: Any, options: RayUpOptions) -> AsyncIterator[None]:
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
            asyncio.create_task(publishing(entry, registry.publish, _PUBLISH_S), name="registry"),
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


async def _leave(platform: Any, stop: "_Stop") -> None:
    """End what was started: in order, or at once after a second signal."""
    leaving = asyncio.create_task(platform.leave(), name="leave")
    hurried = asyncio.create_task(stop.hurried.wait(), name="hurry")
    try:
        await asyncio.wait((leaving, hurried), return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            leaving.result()
            return
        print_line("stopping now; what still drains on the cluster ends by itself")
        await platform.hurry(_HURRY_S)
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


class _Stop:
    """What signals have asked for: an end, and an end at once."""

    def __init__(self) -> None:
        self.asked, self.hurried = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)

    def _signalled(self) -> None:
        (self.hurried if self.asked.is_set() else self.asked).set()

    def _hung_up(self) -> None:
        silence()
        self.asked.set()
