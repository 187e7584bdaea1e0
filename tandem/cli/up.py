"""`tandem up`: a router and its workers on this machine, from a `ModelService` file or flags."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from rich.console import Console

from tandem.cli.board import Board, LineBoard, TableBoard
from tandem.cli.platform import Platform
from tandem.cli.run_directory import tail
from tandem.cli.supervisor import Supervisor
from tandem.cli.up_options import UpOptions, parse
from tandem.core.errors import TandemError


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 after a stop that was asked for, 1 when something could not start, 2 for wrong use."""
    options = parse(arguments)
    platform = Platform(options.service, os.environ)
    try:
        asyncio.run(_up(platform, options))
    except TandemError as error:
        if error.code == "cancelled":
            platform.directory.remove()
            return 130
        show_log(platform, error)
        raise
    platform.directory.remove()
    return 0


async def _up(platform: Platform, options: UpOptions) -> None:
    board = _board(platform, options.plain)

    async def serve(supervisor: Supervisor) -> None:
        asked = asyncio.Event()
        _on_signals(supervisor, asked, board)
        await platform.ready(supervisor, options.start_s)
        board.say(f"{platform.service.model_name} is served at {platform.url}/v1\n\n{platform.curl()}\n")
        await asked.wait()

    with board:
        await platform.run(board, serve)
    print("stopped", flush=True)


def _board(platform: Platform, plain: bool) -> Board:
    console = Console()
    if console.is_terminal and not plain:
        return TableBoard(console, platform.members, lambda: platform.figures.line)
    return LineBoard(lambda line: print(line, flush=True))


def _on_signals(supervisor: Supervisor, asked: asyncio.Event, board: Board) -> None:
    def signalled() -> None:
        if asked.is_set():
            board.say("stopping now")
            supervisor.hurry()
        else:
            board.say("stopping; running streams may end first, another Ctrl-C stops at once")
            asked.set()
            supervisor.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signalled)


def show_log(platform: Platform, error: TandemError) -> None:
    """The end of the log of the process an error is about, and where all logs are."""
    if error.param is not None and error.code == "engine_failed":
        last = tail(platform.control.log_of(error.param))
        if last:
            print(f"--- last lines of {error.param}'s log\n{last}\n---", file=sys.stderr)
    print(f"logs: {platform.directory.logs}", file=sys.stderr)
