"""`tandem scale POOL=COUNT …`: other numbers of workers for a running `tandem up`."""

import argparse
import asyncio
from collections.abc import Sequence

from tandem.apps.cli.change_summary import sentences
from tandem.apps.cli.control import ControlRequest
from tandem.apps.cli.control_client import request_change
from tandem.apps.cli.registry import find_with_pools
from tandem.core.deadlines import Deadlines


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 once the platform has what was asked for, 1 when it could not be had."""
    given = _parser().parse_args(arguments)
    wanted = dict(given.pools)
    platform = find_with_pools(given.url, wanted.keys(), given.service)
    change = asyncio.run(request_change(platform, ControlRequest(scale=wanted, within_s=given.within), _print))
    for sentence in sentences(change):
        _print(sentence)
    return 0


def _print(sentence: str) -> None:
    print(sentence, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem scale",
        description="Start and drain workers of a running `tandem up`. The newest drain first; their streams finish "
        "or move to other workers.",
    )
    parser.add_argument("pools", nargs="+", type=pool_count, metavar="POOL=COUNT", help="such as decode=3")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the platform (default %(default)s)")
    parser.add_argument(
        "--service", metavar="NAME", help="which one, where several on Ray share the URL and have such a pool"
    )
    parser.add_argument(
        "--within",
        type=float,
        default=Deadlines.drain_s,
        help="seconds a worker may take to drain (default %(default)g)",
    )
    return parser


def pool_count(text: str) -> tuple[str, int]:
    """`decode=3` as a name and a number."""
    name, equals, count = text.partition("=")
    if not name or not equals or not count.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not POOL=COUNT, such as decode=3")
    return name, int(count)
