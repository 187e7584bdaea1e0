"""Asking the control socket of a running platform."""

import asyncio
from collections.abc import Callable
from contextlib import closing

import msgspec

from tandem.apps.cli.control import LINE_MAX, ControlRequest, ReplyLine
from tandem.apps.cli.operations import Change
from tandem.apps.cli.registry import PlatformEntry
from tandem.core.errors import KINDS, TandemError


async def request_change(platform: PlatformEntry, wish: ControlRequest, progress: Callable[[str], None]) -> Change:
    """Request a change and wait until it is carried out; `progress` is called with each progress sentence.

    Raises the error with which the platform refuses, and `link_lost` when the platform does not answer or ends before
    it has answered.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(platform.control, limit=LINE_MAX)
    except OSError as error:
        what = f"the platform at {platform.url} does not answer on {platform.control}"
        raise TandemError("link_lost", f"{what}: {error.strerror}") from error
    with closing(writer):
        try:
            writer.write(msgspec.json.encode(wish) + b"\n")
            while raw := await reader.readline():
                line = msgspec.json.decode(raw, type=ReplyLine)
                if line.progress is not None:
                    progress(line.progress)
                if line.error is not None:
                    code = line.error.code if line.error.code in KINDS else "internal"
                    raise TandemError(code, line.error.message)
                if line.change is not None:
                    return line.change
        except (OSError, ValueError) as error:
            raise TandemError("link_lost", f"the answer of {platform.url} broke off: {error}") from error
    raise TandemError("link_lost", f"{platform.url} ended before the change was done")
