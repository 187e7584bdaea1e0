"""`tandem explain REQUEST-ID`: where a request went, why there, and where its time and bytes went; `tandem explain
fleet`: which workers of role `auto` take prompts for others, why, and what other ways would give."""

import argparse
import asyncio
import os
import re
import shutil
from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Console

from router.generation import RequestStatus
from tandem.apps.cli.every_router import fetch_status_from, routers_behind
from tandem.apps.cli.fleet_summary import NONE, render_split
from tandem.apps.cli.request_trace import assemble_trace
from tandem.apps.cli.router_client import RunningStatus, fleet_outlooks
from tandem.apps.cli.timeline import render
from tandem.apps.client.http import Target, parse_target
from tandem.core.errors import TandemError

FLEET: Final = "fleet"


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 when the router does not know the request or does not answer."""
    parser = argparse.ArgumentParser(prog="tandem explain", description="The story of one request, or of the fleet.")
    parser.add_argument("request_id", help="the id of the answer, as in `chatcmpl-…`; or `fleet`: the split in force")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="router to ask (default %(default)s)")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", ""), help="bearer key")
    parser.add_argument("--json", action="store_true", help="what the router says, unchanged")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]*", options.request_id):
        raise TandemError("bad_setting", f"{options.request_id!r} is not a request id")
    target = parse_target(options.url, options.api_key)
    if options.request_id == FLEET:
        return _fleet(target, options.json)
    others = routers_behind(target, os.environ)
    found = asyncio.run(fetch_status_from(target, others, options.request_id))
    if options.json:
        shown = found if isinstance(found, RunningStatus) else found.spans
        print(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())
    elif isinstance(found, RunningStatus):
        print(f"{options.request_id} is running: {status_line(found.standing)}")
    else:
        print(render(assemble_trace(found.spans), shutil.get_terminal_size((100, 24)).columns))
    return 0


def _fleet(target: Target, as_json: bool) -> int:
    outlooks = asyncio.run(fleet_outlooks(target))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(outlooks), indent=2).decode())
        return 0
    console = Console(highlight=False)
    for number, outlook in enumerate(outlooks):
        if number:
            console.print()
        console.print(render_split(outlook))
    if not outlooks:
        console.print(NONE)
    return 0


def status_line(standing: RequestStatus) -> str:
    """The status of a running request in one line."""
    if standing.decode is None:
        where = "waiting for a worker"
    elif standing.prefill is None:
        where = f"on {standing.decode}, which computes the prompt itself"
    else:
        where = f"prefill on {standing.prefill}, decode on {standing.decode}"
    again = f", attempt {standing.attempts}" if standing.attempts > 1 else ""
    return f"stage {standing.stage}, {where}, {standing.tokens} tokens so far{again}"
