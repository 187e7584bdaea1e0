"""The external scaler as KEDA calls it: with the stub of its protocol, over real sockets."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from math import ceil
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from control_plane.autoscale import History, PoolScaling, Scaling
from control_plane.scaler import MetricCache, ScalerServer, ScalerSettings, serve
from control_plane.scaler import server as scaler_server
from control_plane.scaler.metric_cache import STALE_S, PoolName
from protos import externalscaler_pb2 as wire
from protos import externalscaler_pb2_grpc as stubs
from tandem.core.errors import TandemError
from tandem.process.system import SystemClock
from tandem.process.tls import read_pem
from tandem.process.tls_settings import TlsSettings
from tests.unit.tandem.link.test_worker_tls import _certificates

ExternalScalerStub: Any = stubs.ExternalScalerStub
SETTINGS = ScalerSettings(bind="127.0.0.1:0")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


class TurnedClock(SystemClock):
    """Can be put forward."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


def scaling(prefill: int, decode: int, active: bool = True, load: float = 0.5) -> Scaling:
    pools = {
        "prefill": PoolScaling(prefill, prefill - load, 1, ("why",)),
        "decode": PoolScaling(decode, decode - load, 1, ("why",)),
    }
    return Scaling(pools, active, "why", History())


def post(board: MetricCache, made: Scaling, prefill: int = 1, decode: int = 1) -> None:
    board.keep([("llm", "llama"), ("llm", "new")])
    board.publish("llm", "llama", made, {"prefill": prefill, "decode": decode})


def reference(pool: str = "decode", service: str = "llama", namespace: str = "llm") -> wire.ScaledObjectRef:
    """As of a ScaledObject that the operator has made."""
    metadata = {"scalerAddress": "tandem-operator:9090", "service": service, "pool": pool}
    return wire.ScaledObjectRef(name=f"{service}-{pool}", namespace=namespace, scalerMetadata=metadata)


@asynccontextmanager
async def asked(board: MetricCache, clock: SystemClock, settings: ScalerSettings = SETTINGS) -> AsyncIterator[Any]:
    server = await serve(board, clock, settings)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield ExternalScalerStub(channel)
    finally:
        await server.close(0.2)


async def test_every_call_of_a_poll_is_answered_and_rounds_up_to_the_decision() -> None:
    clock = SystemClock()
    board = MetricCache(clock)
    async with asked(board, clock) as keda:
        for wanted, decided in ((1, 3), (3, 3), (12, 11), (11, 12), (5, 1)):
            post(board, scaling(2, decided), decode=wanted)
            spec = (await keda.GetMetricSpec(reference())).metricSpecs[0]
            request = wire.GetMetricsRequest(scaledObjectRef=reference(), metricName=spec.metricName)
            value = (await keda.GetMetrics(request)).metricValues[0]
            # What the autoscaler makes of an AverageValue, in thousandths as KEDA tells them.
            replicas = ceil(int(value.metricValueFloat * 1000) / int(spec.targetSizeFloat * 1000))
            assert replicas == decided
            assert ceil(value.metricValue / spec.targetSize) == decided
            assert (await keda.IsActive(reference())).result is True
        post(board, scaling(0, 0, active=False))
        value = (await keda.GetMetrics(wire.GetMetricsRequest(scaledObjectRef=reference()))).metricValues[0]
        assert (value.metricValueFloat, value.metricValue) == (0.0, 0)
        assert (await keda.IsActive(reference("prefill"))).result is False


async def test_a_pool_is_found_by_the_name_of_its_scaled_object_too() -> None:
    clock = SystemClock()
    board = MetricCache(clock)
    post(board, scaling(2, 3))
    async with asked(board, clock) as keda:
        bare = wire.ScaledObjectRef(name="llama-prefill", namespace="llm")
        value = (await keda.GetMetrics(wire.GetMetricsRequest(scaledObjectRef=bare))).metricValues[0]
        assert value.metricValue == 2


async def test_what_cannot_be_answered_has_a_status_of_its_own() -> None:
    clock = TurnedClock()
    board = MetricCache(clock)

    async def status(request: wire.ScaledObjectRef) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await keda.IsActive(request)
        return raised.value.code(), raised.value.details() or ""

    async with asked(board, clock) as keda:
        assert (await status(reference()))[0] == grpc.StatusCode.UNAVAILABLE
        post(board, scaling(1, 1))
        code, sentence = await status(reference("sideways"))
        assert code == grpc.StatusCode.NOT_FOUND
        assert "'sideways' of service 'llama'" in sentence
        assert (await status(reference(service="other")))[0] == grpc.StatusCode.NOT_FOUND
        assert (await status(reference(namespace="other")))[0] == grpc.StatusCode.NOT_FOUND
        assert (await status(wire.ScaledObjectRef(name="nobody", namespace="llm")))[0] == grpc.StatusCode.NOT_FOUND
        assert (await status(wire.ScaledObjectRef()))[0] == grpc.StatusCode.INVALID_ARGUMENT
        code, sentence = await status(reference(service="new"))
        assert code == grpc.StatusCode.UNAVAILABLE
        assert "nothing has been decided" in sentence
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await keda.GetMetrics(wire.GetMetricsRequest(scaledObjectRef=reference(), metricName="s0-other"))
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND
        clock.ahead_s = STALE_S + 1
        assert (await status(reference()))[0] == grpc.StatusCode.UNAVAILABLE
        # The target is the same for good, so that an autoscaler can be made before anything is decided.
        assert (await keda.GetMetricSpec(reference(service="new"))).metricSpecs[0].targetSizeFloat == 1.0


async def test_changes_are_pushed_at_once() -> None:
    clock = SystemClock()
    board = MetricCache(clock)
    post(board, scaling(0, 0, active=False))
    async with asked(board, clock) as keda:
        stream = keda.StreamIsActive(reference())
        assert (await asyncio.wait_for(stream.read(), 100)).result is False
        took = []
        for number in range(20):
            active = number % 2 == 0
            # A decision that does not change the answer says nothing.
            post(board, scaling(0, 0, active=not active))
            began = time.perf_counter()
            post(board, scaling(1, 1, active=active))
            assert (await asyncio.wait_for(stream.read(), 100)).result is active
            took.append(time.perf_counter() - began)
        assert sorted(took)[len(took) // 2] < 0.1
        stream.cancel()


async def test_a_stream_waits_for_the_first_decision_and_ends_when_the_service_goes() -> None:
    clock = SystemClock()
    board = MetricCache(clock)
    board.keep([("llm", "llama")])
    async with asked(board, clock) as keda:
        stream = keda.StreamIsActive(reference())
        reading = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0.1)
        assert not reading.done()
        post(board, scaling(1, 1))
        assert (await asyncio.wait_for(reading, 100)).result is True
        board.keep([])
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await asyncio.wait_for(stream.read(), 100)
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND


async def test_a_stream_ends_after_a_while_so_that_it_is_opened_anew() -> None:
    clock = SystemClock()
    board = MetricCache(clock)
    post(board, scaling(1, 1))
    async with asked(board, clock, ScalerSettings("127.0.0.1:0", stream_s=0.2)) as keda:
        stream = keda.StreamIsActive(reference())
        async with asyncio.timeout(100):
            assert [each.result async for each in stream] == [True]


async def test_clients_that_go_away_leave_nothing_behind() -> None:
    clock = SystemClock()
    board = MetricCache(clock)
    post(board, scaling(1, 1))
    server = await serve(board, clock, ScalerSettings("127.0.0.1:0", streams_max=16))
    for _ in range(5):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            streams = [ExternalScalerStub(channel).StreamIsActive(reference()) for _ in range(8)]
            for stream in streams:
                assert (await asyncio.wait_for(stream.read(), 100)).result is True
        async with asyncio.timeout(100):
            while board.waiting:  # noqa: ASYNC110  (there is nothing to be told by)
                await asyncio.sleep(0.02)
    await server.close(0.2)


async def test_connections_above_the_bound_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaler_server, "_CONNECTIONS_MAX", 2)
    clock = SystemClock()
    server = await serve(MetricCache(clock), clock, SETTINGS)
    kept = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
    async with asyncio.timeout(100):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b"", "nothing is said to a connection that is too many"
        assert await kept[0][0].read(1) != b"", "one that fits is greeted"
    for _, each in (*kept, (reader, writer)):
        each.close()
    await server.close(0.2)


async def test_a_client_that_falls_silent_is_given_up() -> None:
    """Its connection stays open and nobody reads it, as when a node is cut off."""
    clock = SystemClock()
    board = MetricCache(clock)
    post(board, scaling(1, 1))
    server = await serve(board, clock, ScalerSettings("127.0.0.1:0", ping_s=0.4))
    frozen = asyncio.Event()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while part := await reader.read(1 << 16):
                if frozen.is_set():
                    await asyncio.sleep(60)
                writer.write(part)

    pairs = list[asyncio.Task[None]]()

    async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", server.port)
        pairs.extend((asyncio.create_task(carry(reader, back)), asyncio.create_task(carry(there, writer))))

    proxy = await asyncio.start_server(between, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}") as channel:
        stream = ExternalScalerStub(channel).StreamIsActive(reference())
        assert (await asyncio.wait_for(stream.read(), 100)).result is True
        held = board.waiting
        frozen.set()
        async with asyncio.timeout(100):
            while board.waiting == held:  # noqa: ASYNC110  (there is nothing to be told by)
                await asyncio.sleep(0.05)
    assert (held, board.waiting) == (1, 0)
    for task in pairs:
        task.cancel()
    proxy.close()
    await server.close(0.2)


@needs_openssl
async def test_only_clients_of_the_same_authority_are_answered(tmp_path: Path) -> None:
    ours, theirs = _certificates(tmp_path / "ours"), _certificates(tmp_path / "theirs")
    clock = SystemClock()
    board = MetricCache(clock)
    post(board, scaling(1, 1))
    server = await serve(board, clock, SETTINGS, ours)
    try:
        assert (await _is_active(server, ours)).result is True
        for stranger in (theirs, None):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await _is_active(server, stranger)
            assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
    finally:
        await server.close(0.2)


@needs_openssl
async def test_certificates_are_renewed_without_a_restart(tmp_path: Path) -> None:
    first, second = _certificates(tmp_path / "first"), _certificates(tmp_path / "second")
    used = TlsSettings(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt")

    def put(there: TlsSettings) -> None:
        for source, target in zip(_paths(there), _paths(used), strict=True):
            shutil.copy(source, target)

    put(first)
    clock = SystemClock()
    board = MetricCache(clock)
    post(board, scaling(1, 1))
    server = await serve(board, clock, SETTINGS, used)
    try:
        assert (await _is_active(server, first)).result is True
        put(second)
        assert (await _is_active(server, second)).result is True
        with pytest.raises(grpc.aio.AioRpcError):
            await _is_active(server, first)
        (tmp_path / "tls.key").unlink()
        assert (await _is_active(server, second)).result is True
    finally:
        await server.close(0.2)


def _paths(tls: TlsSettings) -> tuple[Path, Path, Path]:
    assert tls.certificate is not None
    assert tls.private_key is not None
    assert tls.authority is not None
    return tls.certificate, tls.private_key, tls.authority


async def _is_active(server: ScalerServer, tls: TlsSettings | None) -> Any:
    pem = None if tls is None else read_pem(tls)
    credentials = pem and grpc.ssl_channel_credentials(pem.authority, pem.private_key, pem.certificate)
    target = f"127.0.0.1:{server.port}"
    opened = (
        grpc.aio.insecure_channel(target) if credentials is None else grpc.aio.secure_channel(target, credentials)
    )
    async with opened as channel:
        return await ExternalScalerStub(channel).IsActive(reference(), timeout=5)


async def test_a_port_that_is_taken_is_named() -> None:
    clock = SystemClock()
    server = await serve(MetricCache(clock), clock, SETTINGS)
    with pytest.raises(TandemError, match="cannot listen on") as raised:
        await serve(MetricCache(clock), clock, ScalerSettings(f"127.0.0.1:{server.port}"))
    assert raised.value.code == "bad_setting"
    await server.close(0.2)


async def test_a_change_between_two_looks_is_not_missed() -> None:
    board = MetricCache(SystemClock())
    post(board, scaling(1, 1))
    version = board.version
    post(board, scaling(0, 0, active=False))
    async with asyncio.timeout(100):
        await board.changed(version, 60)
    assert board.answer(PoolName("llm", "llama", "decode")).active is False
