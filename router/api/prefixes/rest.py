"""`/v1/cache/prefixes` over HTTP: POST pins, GET lists, DELETE lets go."""

import asyncio
from typing import Final

import msgspec

from router.api.auth import Caller, Keys
from router.api.core import ApiCore
from router.api.errors import check_method
from router.api.prefixes.manager import PendingPin, PrefixManager
from router.api.prefixes.request import decode_prefix
from router.api.request_context import RequestContext
from router.api.rest.body import ClientGone, check_encoding, gone, read_body
from router.api.rest.http_request import HttpRequest
from router.api.rest.sse import respond, respond_error
from router.http_server.response_writer import Header
from tandem.core.errors import TandemError

PREFIXES: Final = "/v1/cache/prefixes"


class PrefixRest:
    """The handlers of one router's prefixes."""

    def __init__(self, door: ApiCore, keys: Keys) -> None:
        self._core = door
        self._desk = PrefixManager(door)
        self._keys = keys

    async def serve(self, method: str, call: HttpRequest) -> None:
        """Raises what is to be answered as an error."""
        path, _, prefix_id = call.path.removeprefix(PREFIXES).partition("/")
        if path:
            raise TandemError("not_found", f"there is nothing at {call.path}")
        if prefix_id:
            check_method(method, ("GET", "HEAD", "DELETE"), call.path)
            caller = self._caller(call)
            act = self._desk.unpin if method == "DELETE" else self._desk.one
            respond(call.outlet, 200, msgspec.json.encode(act(caller, prefix_id)), ())
            return
        check_method(method, ("POST", "GET", "HEAD"), call.path)
        if method == "POST":
            await self._pin(call)
        else:
            listed = {"object": "list", "data": self._desk.listed(self._caller(call))}
            respond(call.outlet, 200, msgspec.json.encode(listed), ())

    async def _pin(self, call: HttpRequest) -> None:
        arrival = self._core.arrivals.arrive(call.header(b"x-request-id"), call.header(b"traceparent"), "prefix")
        headers = ((b"x-request-id", arrival.request_id.encode()),)
        try:
            order = await self._order(call, arrival)
        except TandemError as error:
            self._core.refused(arrival, error)
            respond_error(call.outlet, error, headers)
        except (ClientGone, asyncio.CancelledError):
            self._core.left(arrival)
            raise
        else:
            await self._carry_out(call, arrival, order, headers)

    async def _order(self, call: HttpRequest, arrival: RequestContext) -> PendingPin:
        arrival.caller = self._caller(call)
        key = call.header(b"idempotency-key")
        with self._core.reading(arrival, retried=key is not None) as share:
            check_encoding(call.headers.get(b"content-encoding"))
            body = await read_body(call.receive, call.headers.get(b"content-length"), self._core.settings, share)
            await self._core.check_shape(body)
            self._core.claim(arrival, key, "prefix", body)
            return await self._desk.order(arrival, decode_prefix(body, self._core.settings.prefixes))

    async def _carry_out(
        self, call: HttpRequest, arrival: RequestContext, order: PendingPin, headers: tuple[Header, ...]
    ) -> None:
        """Work until the prefix is pinned or the client has gone, which ends the work for the prefix."""
        loop = asyncio.get_running_loop()
        work = loop.create_task(self._desk.carry_out(arrival, order), name=f"prefix {arrival.request_id}")
        left = loop.create_task(gone(call.receive), name=f"client of {arrival.request_id}")
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                respond(call.outlet, 200, msgspec.json.encode(work.result()), headers)
        except TandemError as error:
            respond_error(call.outlet, error, headers)
        finally:
            for task in (work, left):
                task.cancel()
            await asyncio.gather(work, left, return_exceptions=True)

    def _caller(self, call: HttpRequest) -> Caller:
        return self._keys.caller(call.header(b"authorization"))
