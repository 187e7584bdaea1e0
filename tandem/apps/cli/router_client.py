"""Asking a router's HTTP interface: one request, one whole answer, bounded."""

import asyncio
from contextlib import aclosing

import msgspec

from router.fleet.split_listing import FleetOutlook
from router.generation import RequestStatus
from tandem.apps.client.answer import error_of
from tandem.apps.client.http import Client, Target
from tandem.apps.client.wire import BadResponse
from tandem.core.errors import TandemError
from tandem.core.spans import Span
from tandem.link.address import split_host


async def send_request(
    target: Target, method: str, path: str, body: bytes = b"", timeout_s: float = 10.0
) -> tuple[int, bytes]:
    """Send a request; gives the status and body of the answer. Raises `link_lost` when no answer comes in time."""
    try:
        async with (
            aclosing(Client(target)) as client,
            asyncio.timeout(timeout_s),
            await client.exchange(method, path, body) as answer,
        ):
            return answer.status, await answer.read()
    except (OSError, TimeoutError, BadResponse) as error:
        why = str(error) or type(error).__name__
        raise TandemError("link_lost", f"no answer from {target.authority}: {why}") from error


async def metrics_page(address: str, timeout_s: float) -> str | None:
    """The Prometheus page of a process that serves its metrics at `host:port`; None while it does not, or while its
    address is not known."""
    host, port = split_host(address)
    if port is None:
        return None
    try:
        status, body = await send_request(Target(host, port, False, ""), "GET", "/metrics", timeout_s=timeout_s)
    except TandemError:
        return None
    return body.decode("utf-8", "replace") if status == 200 else None


class _Outlooks(msgspec.Struct):
    data: tuple[FleetOutlook, ...]


class RunningStatus(msgspec.Struct, frozen=True, tag_field="status", tag="running"):
    """A request that has not ended, as a router reports it."""

    stage: str
    prefill: str | None
    decode: str | None
    tokens: int
    attempts: int

    @property
    def standing(self) -> RequestStatus:
        return RequestStatus(self.stage, self.prefill, self.decode, self.tokens, self.attempts)


class EndedStatus(msgspec.Struct, frozen=True, tag_field="status", tag="ended"):
    """A request that has ended, as a router reports it."""

    spans: tuple[Span, ...]


async def fetch_status(target: Target, request_id: str) -> RunningStatus | EndedStatus:
    """The router's status of a request. Raises `not_found` with the router's own sentence, `link_lost`."""
    status, body = await send_request(target, "GET", f"/v1/requests/{request_id}")
    if status != 200:
        raise TandemError("not_found", refusal(status, body))
    return parse_status(body)


def parse_status(body: bytes) -> RunningStatus | EndedStatus:
    """The answer to `GET /v1/requests/{id}`. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(body, type=RunningStatus | EndedStatus)


async def fleet_outlooks(target: Target) -> tuple[FleetOutlook, ...]:
    """The router's outlooks for the workers of role `auto`. Raises `not_found` with the router's own sentence,
    `link_lost`, and `protocol_mismatch` for an answer that cannot be read."""
    status, body = await send_request(target, "GET", "/v1/explain/fleet")
    if status != 200:
        raise TandemError("not_found", refusal(status, body))
    try:
        return msgspec.json.decode(body, type=_Outlooks).data
    except msgspec.DecodeError as error:
        raise TandemError("protocol_mismatch", f"the router's answer cannot be read: {error}") from error


async def spans_of(target: Target, request_id: str) -> tuple[Span, ...]:
    """The spans of a request that has ended. Raises `not_found`, also while it runs, and `link_lost`."""
    found = await fetch_status(target, request_id)
    if isinstance(found, RunningStatus):
        raise TandemError("not_found", f"the request {request_id!r} has not ended yet")
    return found.spans


def refusal(status: int, body: bytes) -> str:
    """The message of an OpenAI error object, or what there is instead."""
    error = error_of(body)
    return error.message if error is not None else f"status {status}: {body[:200].decode('utf-8', 'replace')}"
