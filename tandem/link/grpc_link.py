"""`Link` over gRPC: one HTTP/2 connection and two bidirectional streams per router and worker.

gRPC carries the same bytes as TCP does (`tandem.link.messages`): one call's message is what one tick said.

Liveness is not gRPC's business here: heartbeats are messages, so keepalive stays off. A closing end first writes
what was sent before, within `LinkLimits.flush_s`, then ends its streams.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Any, Final

import grpc
import grpc.aio

from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.core.messages import (
    PROTOCOL_VERSION,
    RouterMessage,
    StateRequest,
    StateUpdate,
    WorkerCommand,
)
from tandem.link.address import GRPC, LinkAddress, parse_address, split_host
from tandem.link.grpc_stream import END_FRAME, GrpcChannel, GrpcLink, Stream
from tandem.link.messages import COMMANDS, ROUTER_MESSAGES, STATE_REQUESTS, STATE_UPDATES
from tandem.link.proof import NONCE_BYTES, LinkKeys, both
from tandem.link.protocol import RouterLink, WorkerLink
from tandem.link.queue import LinkLimits

_SERVICE: Final = "tandem.worker.v1.WorkerLink"
TOKENS: Final = f"/{_SERVICE}/Tokens"
STATE: Final = f"/{_SERVICE}/State"
_METHODS: Final = {"tokens": TOKENS, "state": STATE}
# In the metadata of both sides: the router's version when it calls, the worker's when it serves the link.
_PROTOCOL: Final = "tandem-protocol"
_LINK: Final = "tandem-link"
# Where there is a key: the router's nonce, and the worker's with its proof, hexadecimal.
_NONCE: Final = "tandem-nonce"
_CHALLENGE: Final = "tandem-challenge"

_DIGITS_MAX: Final = 10
CONNECTIONS_MAX: Final = 1024
"""Connections that a worker's port may have open at once, from routers and any other client. Further ones are closed
as soon as they come."""
_IDLE_MS: Final = 60_000
"""How long a connection that is no link is kept."""

_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.enable_retries", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.use_local_subchannel_pool", 1),
)

_RouterEnd = GrpcLink[WorkerCommand, RouterMessage, StateRequest, StateUpdate]
_WorkerEnd = GrpcLink[RouterMessage, WorkerCommand, StateUpdate, StateRequest]


def _router_end(peer: str, limits: LinkLimits) -> _RouterEnd:
    return GrpcLink(
        peer,
        GrpcChannel(COMMANDS.encode, ROUTER_MESSAGES.decode, limits),
        GrpcChannel(STATE_REQUESTS.encode, STATE_UPDATES.decode, limits),
        limits,
    )


def _worker_end(peer: str, limits: LinkLimits) -> _WorkerEnd:
    return GrpcLink(
        peer,
        GrpcChannel(ROUTER_MESSAGES.encode, COMMANDS.decode, limits),
        GrpcChannel(STATE_UPDATES.encode, STATE_REQUESTS.decode, limits),
        limits,
    )


class GrpcDialer:
    """`tandem.link.protocol.Dialer` over gRPC. `name` is how workers know this router; with `keys` both ends prove
    that they hold the same one: the worker in its initial metadata, the router in its first message."""

    def __init__(
        self,
        name: str,
        entropy: Entropy,
        limits: LinkLimits | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        protocol: int = PROTOCOL_VERSION,
        server_name: str | None = None,
        keys: LinkKeys | None = None,
    ) -> None:
        self._name = name
        self._keys = keys
        self._entropy = entropy
        self._limits = limits or LinkLimits()
        self._credentials = credentials
        self._protocol = protocol
        # Those we dial may share one name instead of having their addresses in their certificates.
        self._options = (*_OPTIONS, ("grpc.ssl_target_name_override", server_name)) if server_name else _OPTIONS
        self._running: set[asyncio.Task[None]] = set()

    async def dial(self, address: str, timeout_s: float) -> RouterLink:
        """Connect both streams. Raises `link_lost`, also for a worker that does not prove our key,
        `protocol_mismatch` when the worker refuses our version, and `bad_setting` for an address that is none."""
        channel = self._channel(parse_address(address).target)
        pair = self._entropy.token(16).hex()
        nonce = b"" if self._keys is None else self._entropy.token(NONCE_BYTES)
        metadata = (
            (_PROTOCOL, str(self._protocol)), (_LINK, pair), ("tandem-router", self._name), (_NONCE, nonce.hex())
        )  # fmt: skip
        calls = {stream: _call(channel, method, metadata) for stream, method in _METHODS.items()}
        try:
            async with asyncio.timeout(timeout_s):
                for stream, call in calls.items():
                    challenge = await _opened(call, address)
                    if self._keys is not None:
                        await call.write(_proved(self._keys, pair, stream, nonce, challenge, address))
        except TimeoutError:
            await _abandon(list(calls.values()), channel)
            raise TandemError("link_lost", f"worker {address} did not answer within {timeout_s:g} s") from None
        except BaseException:
            await _abandon(list(calls.values()), channel)
            raise
        link = _router_end(address, self._limits)
        running = _run_router_end(link, list(calls.values()), channel)
        task = asyncio.get_running_loop().create_task(running, name=f"link {address}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return link

    def _channel(self, target: str) -> grpc.aio.Channel:
        if self._credentials is not None:
            return grpc.aio.secure_channel(target, self._credentials, options=self._options)
        return grpc.aio.insecure_channel(target, options=_OPTIONS)


def _call(channel: grpc.aio.Channel, method: str, metadata: tuple[tuple[str, str], ...]) -> Any:
    """Start a stream of raw frames; the link encodes and decodes them itself."""
    multi: Any = channel.stream_stream(method, None, None)
    return multi(metadata=metadata)


async def _opened(call: Any, address: str) -> str:
    """Wait until the worker says that it serves the link, or asks for a proof; its challenge, or nothing. The end of
    the call tells why it does not.

    A refused call has initial metadata too, without our key, and may have it before it is done.
    """
    begun = dict(await call.initial_metadata() or ())
    if _PROTOCOL in begun:
        return str(begun.get(_CHALLENGE, ""))
    code, details = await call.code(), await call.details()
    if code == grpc.StatusCode.FAILED_PRECONDITION:
        raise TandemError("protocol_mismatch", f"worker {address} refused the link: {details}")
    raise TandemError("link_lost", f"worker {address} cannot be reached: {details}")


def _proved(keys: LinkKeys, pair: str, stream: str, nonce: bytes, challenge: str, address: str) -> bytes:
    """Our proof for a worker that has given its own."""
    given = _unhex(challenge)
    if not given:
        raise TandemError("link_lost", f"worker {address} does not prove that it holds the ticket key of this router")
    try:
        router, worker = both(pair, stream, nonce, given[:NONCE_BYTES])
        return keys.answer(worker, given[NONCE_BYTES:], router)
    except TandemError as error:
        raise TandemError(error.code, f"worker {address}: {error.message}") from None


def _unhex(text: str) -> bytes:
    """Empty for what is no hexadecimal number."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


async def _abandon(calls: list[Any], channel: grpc.aio.Channel) -> None:
    for call in calls:
        call.cancel()
    await channel.close(None)


async def _run_router_end(link: _RouterEnd, calls: list[Any], channel: grpc.aio.Channel) -> None:
    tokens, state = calls
    try:
        await asyncio.gather(_router_stream(link, link.tokens, tokens), _router_stream(link, link.state, state))
    finally:
        link.lost("the link has ended")
        await _abandon(calls, channel)


async def _router_stream(link: _RouterEnd, channel: GrpcChannel[Any, Any], call: Any) -> None:
    async def reason() -> str:
        trailing = await call.trailing_metadata() or ()
        told = [value for key, value in trailing if key == "tandem-reason"]
        return told[0] if told else await call.details() or f"worker {link.peer} ended the stream"

    await link.pump(channel, Stream(call.read, call.write, reason, call.done_writing))


@dataclass
class _Meeting:
    """Where the two streams of one dialled link find each other."""

    link: _WorkerEnd
    arrived: set[str] = field(default_factory=set)
    both: asyncio.Event = field(default_factory=asyncio.Event)


class GrpcLinkServer:
    """`tandem.link.protocol.LinkServer` over gRPC. `bind` is `host:port`; port 0 takes a free one.

    `advertise` is the host part of the address handed out, when it is not the one bound to.
    """

    def __init__(
        self,
        bind: str,
        limits: LinkLimits | None = None,
        credentials: grpc.ServerCredentials | None = None,
        pair_s: float = 5.0,
        protocol: int = PROTOCOL_VERSION,
        advertise: str | None = None,
        keys: LinkKeys | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._bind = bind
        self._connections_max = connections_max
        self._keys = keys
        self._limits = limits or LinkLimits()
        self._credentials = credentials
        self._pair_s = pair_s
        self._protocol = protocol
        self._advertise = advertise
        self._meetings: dict[str, _Meeting] = {}
        self._accepting: dict[asyncio.Task[None], _WorkerEnd] = {}
        self._server: grpc.aio.Server | None = None
        self._accept: Callable[[WorkerLink], Awaitable[None]] | None = None

    async def start(self, accept: Callable[[WorkerLink], Awaitable[None]]) -> str:
        """Listen. Raises `bad_setting` when the address cannot be bound."""
        assert self._server is None, "a link server starts once"
        self._accept = accept
        bounds = (
            ("grpc.max_allowed_incoming_connections", self._connections_max),
            ("grpc.server_handshake_timeout_ms", round(self._pair_s * 1e3)),
            ("grpc.max_connection_idle_ms", _IDLE_MS),
        )
        server = grpc.aio.server(options=(*_OPTIONS, *bounds))
        handlers = {
            "Tokens": grpc.stream_stream_rpc_method_handler(self._serve_tokens),
            "State": grpc.stream_stream_rpc_method_handler(self._serve_state),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        host = split_host(self._bind)[0]
        port = self._bind_port(server)
        await server.start()
        self._server = server
        return str(LinkAddress(GRPC, self._advertise or host, port))

    def _bind_port(self, server: grpc.aio.Server) -> int:
        try:
            if self._credentials is not None:
                port = server.add_secure_port(self._bind, self._credentials)
            else:
                port = server.add_insecure_port(self._bind)
        except RuntimeError:
            port = 0
        if port == 0:
            raise TandemError(
                "bad_setting",
                f"link.bind {self._bind!r}: the address cannot be bound (in use, or not of this host)",
                param="link.bind",
            )
        return port

    async def stop(self) -> None:
        """Close every link, deliver what was sent before, and stop listening."""
        for link in list(self._accepting.values()):
            link.close("the worker stopped")
        if self._accepting:
            await asyncio.wait(list(self._accepting), timeout=self._limits.flush_s)
        late = list(self._accepting)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(self._limits.flush_s)
            self._server = None

    async def _serve_tokens(self, _requests: object, context: Any) -> None:
        await self._admit("tokens", context)
        link = await self._meet("tokens", context)
        task = asyncio.get_running_loop().create_task(self._accepted(link), name=f"accept {link.peer}")
        self._accepting[task] = link
        task.add_done_callback(self._accepting.pop)
        await self._serve(link, link.tokens, context)

    async def _serve_state(self, _requests: object, context: Any) -> None:
        await self._admit("state", context)
        link = await self._meet("state", context)
        await self._serve(link, link.state, context)

    async def _accepted(self, link: _WorkerEnd) -> None:
        assert self._accept is not None
        try:
            await self._accept(link)
        finally:
            link.close("the worker ended the link")

    async def _serve(self, link: _WorkerEnd, channel: GrpcChannel[Any, Any], context: Any) -> None:
        async def reason() -> str:
            return f"router {link.peer} ended the link"

        async def end() -> None:
            await context.write(END_FRAME)

        try:
            if self._keys is None:
                await context.send_initial_metadata(((_PROTOCOL, str(self._protocol)),))
            await link.pump(channel, Stream(context.read, context.write, reason, end))
            context.set_trailing_metadata((("tandem-reason", _header(link.reason)),))
        except BaseException:
            link.lost(f"the connection to router {link.peer} ended")
            raise

    async def _meet(self, stream: str, context: Any) -> _WorkerEnd:
        """The link both streams belong to, once both have arrived. Ends the call otherwise."""
        metadata = dict(context.invocation_metadata() or ())
        key = str(metadata.get(_LINK, ""))
        if key not in self._meetings:
            self._meetings[key] = _Meeting(_worker_end(str(metadata.get("tandem-router", "")), self._limits))
        meeting = self._meetings[key]
        if stream in meeting.arrived:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, f"the {stream} stream of this link is there already")
        meeting.arrived.add(stream)
        if len(meeting.arrived) == 2:
            meeting.both.set()
        try:
            async with asyncio.timeout(self._pair_s):
                await meeting.both.wait()
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the other stream of the link never came")
        finally:
            self._meetings.pop(key, None)
        return meeting.link

    async def _admit(self, stream: str, context: Any) -> None:
        """Ends the call of a router that speaks another version, or does not prove that it holds our key."""
        metadata = dict(context.invocation_metadata() or ())
        await self._check_protocol(metadata.get(_PROTOCOL, ""), context)
        if self._keys is None:
            return
        theirs = _unhex(str(metadata.get(_NONCE, "")))
        nonce = token_bytes(NONCE_BYTES)
        try:
            router, worker = both(str(metadata.get(_LINK, "")), stream, theirs, nonce)
            challenge = (nonce + self._keys.prove(worker)).hex()
            await context.send_initial_metadata(((_PROTOCOL, str(self._protocol)), (_CHALLENGE, challenge)))
            async with asyncio.timeout(self._pair_s):
                answer = await context.read()
            self._keys.answer(router, answer if isinstance(answer, bytes) else b"", worker)
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the router's proof did not come in time")
        except TandemError as error:
            why = "this worker has a ticket key and the router shows none" if not theirs else error.message
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"{why}; give it ticket_key_file")

    async def _check_protocol(self, theirs: str, context: Any) -> None:
        if not _is_number(theirs) or abs(int(theirs) - self._protocol) > 1:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the router speaks protocol {theirs or 'none'}, this worker {self._protocol}; "
                "only neighbouring versions work together",
            )


def _is_number(text: str) -> bool:
    """Whether it is a number that can be a version: of one with thousands of digits Python makes none."""
    return text.isascii() and text.isdigit() and len(text) < _DIGITS_MAX


def _header(text: str) -> str:
    """Metadata values are printable ASCII."""
    return text.encode("ascii", "replace").decode("ascii")[:512]
