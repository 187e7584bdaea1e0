"""`tandem explain REQUEST-ID`: where a request went, why there, and where its time and bytes went."""

import argparse
import asyncio
import os
import re
import shutil
from collections.abc import Sequence

import msgspec

from tandem.bench.client import parse_target
from tandem.cli.ask import spans_of
from tandem.cli.request_story import tell
from tandem.cli.timeline import render
from tandem.core.errors import TandemError


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 when the router does not know the request or does not answer."""
    parser = argparse.ArgumentParser(prog="tandem explain", description="The story of one request.")
    parser.add_argument("request_id", help="the id of the answer, as in `chatcmpl-…`")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="router to ask (default %(default)s)")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", ""), help="bearer key")
    parser.add_argument("--json", action="store_true", help="the spans instead of the timeline")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]*", options.request_id):
        raise TandemError("bad_setting", f"{options.request_id!r} is not a request id")
    spans = asyncio.run(spans_of(parse_target(options.url, options.api_key), options.request_id))
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(spans), indent=2).decode())
    else:
        print(render(tell(spans), shutil.get_terminal_size((100, 24)).columns))
    return 0
