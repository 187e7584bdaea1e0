"""Asking a router's HTTP interface: one request, one whole answer, bounded."""

import asyncio
from contextlib import aclosing

import msgspec

from tandem.bench.client import Client, Target
from tandem.bench.wire import BadAnswer
from tandem.core.errors import TandemError
from tandem.core.spans import Span


async def ask(
    target: Target, method: str, path: str, body: bytes = b"", timeout_s: float = 10.0
) -> tuple[int, bytes]:
    """Status and body. Raises `link_lost` when nobody answers in time."""
    try:
        async with (
            aclosing(Client(target)) as client,
            asyncio.timeout(timeout_s),
            await client.exchange(method, path, body) as answer,
        ):
            return answer.status, await answer.read()
    except (OSError, TimeoutError, BadAnswer) as error:
        why = str(error) or type(error).__name__
        raise TandemError("link_lost", f"no answer from {target.authority}: {why}") from error


class _Problem(msgspec.Struct):
    message: str = ""
    code: str | None = None


class _Refusal(msgspec.Struct):
    error: _Problem


class _Answer(msgspec.Struct):
    spans: tuple[Span, ...]


async def spans_of(target: Target, request_id: str) -> tuple[Span, ...]:
    """What a router knows of a request. Raises `not_found` with the router's own sentence, `link_lost`."""
    status, body = await ask(target, "GET", f"/v1/requests/{request_id}")
    if status != 200:
        raise TandemError("not_found", refusal(status, body))
    return msgspec.json.decode(body, type=_Answer).spans


def refusal(status: int, body: bytes) -> str:
    """The message of an OpenAI error object, or what there is instead."""
    try:
        return msgspec.json.decode(body, type=_Refusal).error.message
    except msgspec.DecodeError:
        return f"status {status}: {body[:200].decode('utf-8', 'replace')}"
