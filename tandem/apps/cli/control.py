"""The control socket of `tandem up`: a request is one JSON line, the answer is JSON lines until a result or an error
ends it.

    {"scale": {"decode": 1}}                     {"progress": "decode-1 drains, for at most 30 s"}
    {"drain": "decode-0", "within_s": 20}        {"change": {…}}
    {"describe": true}                           {"platform": {…}}
    {"scale": {"decode": 0}}                     {"error": {"code": "bad_setting", "message": "…"}}

The socket lies in the run directory, and only its owner may connect. A requested change continues when its client
disconnects.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from tandem.apps.cli.operations import Change, Say
from tandem.apps.cli.registry import PlatformEntry
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError

LINE_MAX: Final = 64 * 1024
_CONNECTIONS_MAX: Final = 16
_ASK_WITHIN_S: Final = 10.0
_WRITE_WITHIN_S: Final = 5.0


class ControlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request to the control socket: exactly one of `scale` (workers wanted, by pool), `drain` (a worker) and
    `describe`."""

    scale: dict[str, int] | None = None
    drain: str | None = None
    describe: bool = False
    within_s: float = Deadlines.drain_s
    remove: bool = False
    """With `drain`: the worker is not replaced."""


class ControlError(msgspec.Struct, frozen=True):
    """An error of `tandem.core.errors`."""

    code: str
    message: str


class ReplyLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of an answer. All but `progress` are the last one."""

    progress: str | None = None
    change: Change | None = None
    platform: PlatformEntry | None = None
    error: ControlError | None = None


class Changing(Protocol):
    """What carries changes out: `tandem.apps.cli.operations.Operations`, and that of Tandem on Ray."""

    async def scale(self, wanted: Mapping[str, int], within_s: float, say: Say) -> Change: ...

    async def drain(self, name: str, within_s: float, remove: bool, say: Say) -> Change: ...


class ControlServer:
    """Listens at `path`. `describe` gives the platform's own entry."""

    def __init__(self, path: Path, operations: Changing, describe: Callable[[], PlatformEntry]) -> None:
        self._path = path
        self._operations = operations
        self._describe = describe
        self._connections = 0

    async def run(self) -> None:
        """Serve until cancelled; clients that wait for an answer then see the connection end."""
        listener = _listener(self._path)
        async with asyncio.TaskGroup() as group:

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                # A task of our own, as a server does not wait for those it starts.
                await asyncio.wait((group.create_task(self._serve(reader, ReplyStream(writer)), name="control"),))

            server = await asyncio.start_unix_server(accept, sock=listener, limit=LINE_MAX)
            try:
                await asyncio.Event().wait()
            finally:
                server.close()
                self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, answer: "ReplyStream") -> None:
        self._connections += 1
        try:
            if self._connections > _CONNECTIONS_MAX:
                raise TandemError("over_quota", f"{_CONNECTIONS_MAX} connections to this socket are open already")
            answer.say(await self._do(await _wish(reader), answer))
        except TandemError as error:
            answer.say(ReplyLine(error=ControlError(error.code, error.message)))
        finally:
            self._connections -= 1
            await answer.end()

    async def _do(self, wish: ControlRequest, answer: "ReplyStream") -> ReplyLine:
        if wish.describe:
            return ReplyLine(platform=self._describe())

        def say(sentence: str) -> None:
            answer.say(ReplyLine(progress=sentence))

        if wish.scale is not None:
            return ReplyLine(change=await self._operations.scale(wish.scale, wish.within_s, say))
        assert wish.drain is not None, "a wish has one of the three"
        return ReplyLine(change=await self._operations.drain(wish.drain, wish.within_s, wish.remove, say))


class ReplyStream:
    """Reply lines to one client, for as long as it listens. There are a few hundred at most."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def say(self, line: ReplyLine) -> None:
        if not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(line) + b"\n")

    async def end(self) -> None:
        """Close the connection and wait, within bounds, until the lines written have been sent."""
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_WRITE_WITHIN_S):
                await self._writer.wait_closed()


async def _wish(reader: asyncio.StreamReader) -> ControlRequest:
    """Read the request of a connection. Raises `bad_setting`, saying what is wrong with the line."""
    try:
        async with asyncio.timeout(_ASK_WITHIN_S):
            line = await reader.readline()
    except TimeoutError:
        raise TandemError("bad_setting", f"no line came within {_ASK_WITHIN_S:g} s") from None
    except ValueError:
        raise TandemError("bad_setting", f"the line is longer than {LINE_MAX} bytes") from None
    except ConnectionError as error:
        raise TandemError("bad_setting", f"the connection ended: {error}") from error
    try:
        wish = msgspec.json.decode(line, type=ControlRequest)
    except msgspec.DecodeError as error:
        raise TandemError("bad_setting", f"not a wish: {error}") from error
    if (wish.scale is not None) + (wish.drain is not None) + wish.describe != 1:
        raise TandemError("bad_setting", "a wish has exactly one of `scale`, `drain` and `describe`")
    return wish


def _listener(path: Path) -> socket.socket:
    """A socket that no other user can connect to, not even between its creation and the change of its mode: it does
    not listen yet."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        os.chmod(path, 0o600)
    except OSError:
        listener.close()
        raise
    return listener
