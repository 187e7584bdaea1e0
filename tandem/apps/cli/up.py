"""`tandem up`: a router and its workers on this machine, from a `ModelService` file or flags."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Final

from rich.console import Console

from tandem.apps.cli import drill_settings as pace
from tandem.apps.cli.display import LineDisplay, StatusDisplay, TableDisplay
from tandem.apps.cli.platform import Platform
from tandem.apps.cli.printing import print_line, silence
from tandem.apps.cli.rolling.spec_watch import SpecWatch
from tandem.apps.cli.run_directory import tail
from tandem.apps.cli.single_node import ignored_fields, stays_unified, unchecked_handoff
from tandem.apps.cli.supervisor import Supervisor
from tandem.apps.cli.up_options import UpOptions, parse, place_of
from tandem.core.errors import TandemError

ON_RAY: Final = "tandem.apps.ray.command"
"""The module of `--on ray`; it lies above this one and is imported when it is asked for."""


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 after a stop that was asked for, 1 when something could not start, 2 for wrong use."""
    if place_of(arguments) == "ray":
        status: int = import_module(ON_RAY).main(arguments)
        return status
    options = parse(arguments)
    service = options.service
    for line in (ignored_fields(service), unchecked_handoff(service), stays_unified(service)):
        if line is not None:
            print(line, file=sys.stderr)
    platform = Platform(options.service, os.environ, drills=options.drills)
    for note in platform.notes:
        print_line(note)
    with cleaning_up(platform):
        asyncio.run(_up(platform, options))
    return 0


@contextmanager
def cleaning_up(platform: Platform) -> Iterator[None]:
    """Remove the run directory at the end; when something failed, show the end of its log and keep all logs."""
    try:
        yield
    except TandemError as error:
        if error.code == "cancelled":
            platform.directory.remove()
            raise KeyboardInterrupt from error
        _show_log(platform, error)
        raise
    except BaseException:
        platform.directory.remove()
        raise
    platform.directory.remove()


async def _up(platform: Platform, options: UpOptions) -> None:
    board = _board(platform, options.plain)

    async def serve(supervisor: Supervisor) -> None:
        asked = asyncio.Event()
        _on_signals(supervisor, asked, board)
        await platform.ready(supervisor, options.start_s)
        board.say(f"{platform.service.model_name} is served at {platform.url}/v1\n\n{platform.curl()}\n")
        board.say(f"the router's health and metrics: http://{platform.router.metrics}/metrics\n")
        if options.drills:
            board.say(pace.notice(platform.url, options.service.spec.engine))
        following = asyncio.create_task(_follow(platform, options, supervisor, board), name="follow edits")
        try:
            await asked.wait()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    with board:
        await platform.run(board, serve)
    print_line("stopped")


async def _follow(platform: Platform, options: UpOptions, supervisor: Supervisor, board: StatusDisplay) -> None:
    """Carry out edits of the file, if there is one. A mistake here must not end what is being served."""
    if options.file is None or options.reread is None:
        return
    try:
        await platform.follow(supervisor, SpecWatch(options.file, options.reread, options.service), board.say)
    except Exception as error:  # noqa: BLE001  (whatever it is, serving goes on)
        board.say(f"edits of {options.file} are not followed any more: {type(error).__name__}: {error}")


def _board(platform: Platform, plain: bool) -> StatusDisplay:
    console = Console()
    if console.is_terminal and not plain:
        return TableDisplay(console, platform.members, lambda: platform.watch.line)
    return LineDisplay(print_line)


def _on_signals(supervisor: Supervisor, asked: asyncio.Event, board: StatusDisplay) -> None:
    def signalled() -> None:
        if asked.is_set():
            supervisor.hurry()
            board.say("stopping now")
        else:
            asked.set()
            supervisor.stop()
            board.say("stopping; running streams may end first, another Ctrl-C stops at once")

    def hung_up() -> None:
        silence()
        asked.set()
        supervisor.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled)
    loop.add_signal_handler(signal.SIGHUP, hung_up)


def _show_log(platform: Platform, error: TandemError) -> None:
    """Print where all logs are, and the end of the failed process's own log when it says more than the error."""
    if error.param is not None and error.code == "engine_failed":
        last = tail(platform.control.log_of(error.param))
        if adds_to(error.message, last):
            print(f"--- last lines of {error.param}'s log\n{last}\n---", file=sys.stderr)
    print(f"logs: {platform.directory.logs}", file=sys.stderr)


def adds_to(message: str, log: str) -> bool:
    """Whether a log holds a line that neither is an event for the supervisor nor repeats the message."""
    lines = (line for line in log.splitlines() if line.strip())
    return any(message not in line and not line.startswith('{"event"') for line in lines)
