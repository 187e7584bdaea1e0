"""The public gRPC interface `tandem.v1.Inference`: the REST interface's semantics as typed streams."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
import msgspec

from router.api.auth import Caller, Keys
from router.api.core import ApiCore
from router.api.errors import for_client
from router.api.grpc import rpc
from router.api.grpc.chunk_stream import ChunkStream
from router.api.grpc.messages import Context, MessageReader
from router.api.grpc.parsed_chunks import ParsedChunks
from router.api.model_names import by_name
from router.api.parsers.delta import ParsedDelta
from router.api.parsers.output import OutputParser, ParserSpec
from router.api.request_context import RequestContext
from router.api.response import ApiResponse
from router.api.resumption import ResumedStarter, decode_resume_context, source_of
from router.generation import Generation, Usage
from tandem.core.errors import TandemError
from tandem.core.messages import SequenceOutput

ERROR_METADATA: Final = "tandem-error-bin"
_HANDSHAKE_MS: Final = 10_000
"""Milliseconds that a connection may take to say that it speaks HTTP/2."""
_IDLE_MS: Final = 300_000
"""Milliseconds for which a connection without a call is kept; clients reconnect when they have a call."""


class PublicGrpc:
    """The server. `Generate` streams until its usage chunk; closing the call cancels the request. A connection above
    `connections_max`, or else above `front.grpc_connections_max`, is closed as soon as it comes."""

    def __init__(self, door: ApiCore, keys: Keys, connections_max: int | None = None) -> None:
        self._core = door
        self._keys = keys
        wanted = door.settings.grpc_connections_max
        self._connections_max = wanted if connections_max is None else connections_max
        self._messages = MessageReader(door.settings)
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; gives the port. Raises `bad_setting` when it cannot be had."""
        options = (
            ("grpc.max_receive_message_length", self._messages.most_bytes),
            # What is not asked for yet waits at the client; a window that adapts would take megabytes of it.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.so_reuseport", 0),
            ("grpc.max_allowed_incoming_connections", self._connections_max),
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
            ("grpc.max_connection_idle_ms", _IDLE_MS),
        )
        most = self._core.settings.connections_max
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=most)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(rpc.SERVICE, self._handlers()),))
        shown = f"[{host}]" if ":" in host else host
        try:
            bound = server.add_insecure_port(f"{shown}:{port}")
        except RuntimeError as error:
            raise TandemError(
                "bad_setting", f"cannot listen on {shown}:{port}: {error}", param="grpc_port"
            ) from error
        await server.start()
        self._server = server
        return bound

    async def close(self, within_s: float) -> None:
        """Accept nothing more, let calls end within the bound, cut the rest."""
        if self._server is not None:
            await self._server.stop(within_s)

    def _handlers(self) -> dict[str, "grpc.RpcMethodHandler[Any, Any]"]:
        return {
            # The same on the wire as one message, which is not taken before it is asked for.
            "Generate": grpc.stream_stream_rpc_method_handler(self._generate),
            "Resume": grpc.stream_stream_rpc_method_handler(self._resume),
            "ListModels": grpc.stream_unary_rpc_method_handler(self._list_models),
        }

    async def _list_models(self, messages: object, context: Context) -> bytes:
        try:
            caller = self._caller(_metadata(context))
        except TandemError as error:
            await _abort(context, error)
        named = by_name(self._core.services.generator.models()).items()
        asked = [(name, one) for name, one in named if not caller.models or one.name in caller.models]
        return rpc.encode_models([msgspec.structs.replace(one, name=name) for name, one in asked])

    async def _generate(self, messages: object, context: Context) -> None:
        metadata = _metadata(context)
        arrival = self._core.arrivals.arrive(metadata.get("x-request-id"), metadata.get("traceparent"), "gen")
        await context.send_initial_metadata((("x-request-id", arrival.request_id),))
        resumable, generations = await self._prepare(arrival, metadata, context)
        start = (0,) * generations[0].n if resumable else None
        call = _Call(self._core, generations[0], arrival.request_id, start, arrival.speech)
        call.begin(lambda stream: self._core.start(arrival, generations, stream))
        try:
            await call.carry(context.write)
        except TandemError as error:
            await _abort(context, error)

    async def _resume(self, messages: object, context: Context) -> None:
        try:
            caller = self._caller(_metadata(context))
            with self._core.bodies.share() as share:
                request_id, positions = rpc.decode_resume(await self._messages.read(context, share))
            resumed = await self._core.find(request_id, caller)
            generation = resumed.generation
            after = positions or (0,) * generation.n
            chars, speech = resumed.chars(after), decode_resume_context(generation).speech
            await context.send_initial_metadata((("x-request-id", request_id),))
            call = _Call(self._core, generation, request_id, after, speech, chars)
            call.begin(
                lambda stream: self._core.rejoin(caller, resumed, ResumedStarter(resumed, after, stream), stream)
            )
            await call.carry(context.write)
        except TandemError as error:
            await _abort(context, error)

    async def _prepare(
        self, arrival: RequestContext, metadata: Mapping[str, str], context: Context
    ) -> tuple[bool, tuple[Generation, ...]]:
        """Whether the answer is resumable, and what to generate; the message itself is not kept."""
        try:
            arrival.caller = self._caller(metadata)
            key = metadata.get("idempotency-key")
            with self._core.reading(arrival, retried=key is not None) as share:
                raw = await self._messages.read(context, share)
                await self._core.check_message(raw)
                self._core.claim(arrival, key, "gen", raw)
                request = rpc.decode_generate(raw)
                return bool(request.resumable), await self._core.prepare(arrival, request)
        except TandemError as error:
            self._core.refused(arrival, error)
            await _abort(context, error)
        except asyncio.CancelledError:
            self._core.left(arrival)
            raise

    def _caller(self, metadata: Mapping[str, str]) -> Caller:
        return self._keys.caller(metadata.get("authorization"))


class _Call:
    """One running `Generate` or `Resume`. Chunks of a resumable request carry their position, beginning with
    `after`."""

    def __init__(
        self,
        door: ApiCore,
        generation: Generation,
        request_id: str,
        after: tuple[int, ...] | None,
        speech: ParserSpec | None = None,
        chars: tuple[int, ...] | None = None,
    ) -> None:
        """`chars` is how long the sequences' texts are there; None at the beginning."""
        self._core = door
        self._patience: asyncio.Timeout | None = None
        self._timeout_s = generation.timeout_s
        self._request_id = request_id
        self._positions = list(after or ())
        self._exchange: ApiResponse | None = None
        start, most = (0,) * generation.n, door.settings.outlet.buffer_bytes

        def encode_usage(usage: Usage) -> bytes:
            return rpc.encode_usage(request_id, usage, self._positions)

        if speech is None:
            encode = self._encode if after is None else self._encode_with_place
            self._stream = ChunkStream(encode, encode_usage, generation.n, most, self._too_slow)
        else:
            source, place = source_of(generation), (after or start, chars or start)
            self._stream = ParsedChunks(
                self._encode_delta,
                encode_usage,
                lambda index: OutputParser(speech, source, index),
                place,
                most,
                self._too_slow,
            )

    def begin(self, start: Callable[[ChunkStream], ApiResponse]) -> None:
        """Start the exchange, whose chunks `carry` writes."""
        self._exchange = start(self._stream)

    async def carry(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write chunks until the last. Raises the error the request ends with."""
        exchange = self._exchange
        assert exchange is not None, "a call carries what it has begun"
        try:
            async with asyncio.timeout(self._timeout_s + self._core.settings.settle_s) as self._patience:
                while (chunk := await self._stream.next()) is not None:
                    await write(chunk)
        except TimeoutError:
            late = TandemError("deadline_exceeded", f"the request was not finished within {self._timeout_s:g} s")
            error = self._stream.error or late
            exchange.fail(error)
            raise error from None
        except TandemError as error:
            exchange.fail(error)
            raise
        finally:
            self._patience = None
            exchange.abandon("the client closed the call")

    def _encode(self, index: int, output: SequenceOutput) -> bytes:
        return rpc.encode_chunk(self._request_id, index, output)

    def _encode_with_place(self, index: int, output: SequenceOutput) -> bytes:
        self._positions[index] += len(output.tokens)
        return rpc.encode_chunk(self._request_id, index, output, self._positions)

    def _encode_delta(self, output: SequenceOutput, said: ParsedDelta) -> bytes:
        if self._positions:
            self._positions[output.sequence] += len(output.tokens)
        return rpc.encode_chunk(self._request_id, output.sequence, output, self._positions, said)

    def _too_slow(self) -> None:
        """The client does not read, so a write in progress will not end by itself."""
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())


async def _abort(context: Context, error: TandemError) -> NoReturn:
    shown = for_client(error)
    detail = ((ERROR_METADATA, rpc.encode_error(shown)),)
    await context.abort(grpc.StatusCode[shown.kind.grpc], shown.message, detail)
    raise AssertionError("abort does not return")


def _metadata(context: Context) -> dict[str, str]:
    """The call's text metadata; of a repeated key the last."""
    return {
        key: value
        for key, value in context.invocation_metadata() or ()
        if isinstance(key, str) and isinstance(value, str)
    }
