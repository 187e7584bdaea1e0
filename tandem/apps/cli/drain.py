"""`tandem drain WORKER`: let one worker of a running `tandem up` leave without breaking a stream."""

import argparse
import asyncio
from collections.abc import Sequence

from tandem.apps.cli.change_summary import sentences
from tandem.apps.cli.control import ControlRequest
from tandem.apps.cli.control_client import request_change
from tandem.apps.cli.registry import find
from tandem.core.deadlines import Deadlines


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 once the worker has left, 1 when it could not be asked to."""
    given = _parser().parse_args(arguments)
    wish = ControlRequest(drain=given.worker, within_s=given.within, remove=given.remove)
    change = asyncio.run(request_change(find(given.url), wish, _print))
    for sentence in sentences(change):
        _print(sentence)
    return 0


def _print(sentence: str) -> None:
    print(sentence, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem drain",
        description="Drain a worker of a running `tandem up`: it takes no new work, streams finish there or move to "
        "other workers, and it starts again as a new incarnation.",
    )
    parser.add_argument("worker", help="such as decode-0")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the platform (default %(default)s)")
    parser.add_argument(
        "--within", type=float, default=Deadlines.drain_s, help="seconds it may take (default %(default)g)"
    )
    parser.add_argument("--remove", action="store_true", help="start nothing in its place")
    return parser
