"""The gRPC server that KEDA calls. Every replica serves it, since KEDA may ask any of them.

`StreamIsActive` sends the answer when the stream opens and then whenever it changes. HTTP/2 pings detect a client
that is gone without a word. The server closes the stream of a client that stays after a while, so that streams spread
over replicas again.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from control_plane.scaler import rpc
from control_plane.scaler.metric_cache import STALE_S, MetricCache, PoolAnswer, PoolName
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.process.grpc_tls import server_credentials
from tandem.process.tls_settings import TlsSettings

Context = grpc.aio.ServicerContext[bytes, bytes]
_STATUS: Final = {code.name: code for code in grpc.StatusCode}
_REQUEST_BYTES_MAX: Final = 64 << 10
_CONNECTIONS_MAX: Final = 256
"""KEDA's operators and metrics servers have one or two each."""


@dataclass(frozen=True)
class ScalerSettings:
    """`bind` is `host:port`, IPv6 in brackets; port 0 lets the system choose."""

    bind: str = "[::]:9090"
    ping_s: float = 20.0
    """A connection that was silent for so long is pinged, and closed when no answer comes within half of it."""
    stream_s: float = 1800.0
    """Seconds that a stream lasts; KEDA opens it again after two seconds."""
    streams_max: int = 4096
    """Calls at a time, streams included: one per ScaledObject."""


class ScalerServer:
    """Answers from `board`."""

    def __init__(self, board: MetricCache, clock: Clock, settings: ScalerSettings) -> None:
        self._board = board
        self._clock = clock
        self._settings = settings
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self, tls: TlsSettings) -> None:
        """Listen. Raises `bad_setting` when that is not possible."""
        ping_ms = round(self._settings.ping_s * 1e3)
        options = (
            ("grpc.max_receive_message_length", _REQUEST_BYTES_MAX),
            ("grpc.so_reuseport", 0),
            ("grpc.max_allowed_incoming_connections", _CONNECTIONS_MAX),
            ("grpc.keepalive_time_ms", ping_ms),
            ("grpc.keepalive_timeout_ms", ping_ms // 2),
            # What the library really waits by, a minute unless told.
            ("grpc.http2.ping_timeout_ms", ping_ms // 2),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        )
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=self._settings.streams_max)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(rpc.SERVICE, self._handlers()),))
        credentials, bind = server_credentials(tls), self._settings.bind
        try:
            self.port = (
                server.add_insecure_port(bind) if credentials is None else server.add_secure_port(bind, credentials)
            )
        except RuntimeError as error:
            raise TandemError("bad_setting", f"cannot listen on {bind}: {error}", param="scaler_bind") from error
        await server.start()
        self._server = server

    async def close(self, within_s: float = 1.0) -> None:
        """Let calls end within the bound, cut the rest."""
        if self._server is not None:
            await self._server.stop(within_s)

    def _handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        return {
            "IsActive": grpc.unary_unary_rpc_method_handler(self._is_active),
            "StreamIsActive": grpc.unary_stream_rpc_method_handler(self._stream_is_active),
            "GetMetricSpec": grpc.unary_unary_rpc_method_handler(self._metric_spec),
            "GetMetrics": grpc.unary_unary_rpc_method_handler(self._metrics),
        }

    async def _is_active(self, raw: bytes, context: Context) -> bytes:
        try:
            return rpc.write_active(self._board.answer(rpc.read_pool(raw)).active)
        except TandemError as error:
            await _abort(context, error)

    async def _metric_spec(self, raw: bytes, context: Context) -> bytes:
        # The same for every pool, known or not: KEDA makes the autoscaler before there may be a decision.
        try:
            rpc.read_pool(raw)
        except TandemError as error:
            await _abort(context, error)
        return rpc.write_spec()

    async def _metrics(self, raw: bytes, context: Context) -> bytes:
        try:
            pool, metric = rpc.read_metrics(raw)
            if metric not in ("", rpc.METRIC):
                raise TandemError("not_found", f"there is no metric {metric!r}; there is {rpc.METRIC!r}")
            answer = self._board.answer(pool)
            return rpc.write_metric(answer.metric, answer.replicas)
        except TandemError as error:
            await _abort(context, error)

    async def _stream_is_active(self, raw: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            pool = rpc.read_pool(raw)
            told: bool | None = None
            end = self._clock.now() + self._settings.stream_s
            while (left_s := end - self._clock.now()) > 0:
                version, answer = self._board.version, self._answer_if_known(pool)
                if answer is not None and answer.active != told:
                    told = answer.active
                    yield rpc.write_active(told)
                # Looked at now and then all the same: a decision also ends by growing old.
                await self._board.changed(version, min(left_s, STALE_S))
        except TandemError as error:
            await _abort(context, error)

    def _answer_if_known(self, pool: PoolName) -> PoolAnswer | None:
        """None while nothing is decided: a stream may wait for that. Raises `not_found`."""
        try:
            return self._board.answer(pool)
        except TandemError as error:
            if error.code == "not_found":
                raise
            return None


async def _abort(context: Context, error: TandemError) -> NoReturn:
    await context.abort(_STATUS[error.kind.grpc], error.message)
    raise AssertionError("abort raises")


async def serve(
    board: MetricCache, clock: Clock, settings: ScalerSettings, tls: TlsSettings | None = None
) -> ScalerServer:
    """A server that listens. Raises `bad_setting`."""
    server = ScalerServer(board, clock, settings)
    await server.start(tls or TlsSettings())
    return server
