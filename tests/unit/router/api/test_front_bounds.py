"""Bounds on what clients can make the router hold: bodies, connections, and time."""

import asyncio
import gc
import socket
import tracemalloc

import msgspec
import pytest

from router.api.body_budget import BodyBudget, BodyShare
from router.api.errors import explain
from router.api.rest.body import read_body
from router.api.settings import ApiSettings
from router.generation import Generation, Sink
from router.http_server.connections_max import ConnectionsMax, connections_within
from router.http_server.server import HttpServer
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.errors import TandemError
from tests.worlds.front_stage import Script, Stage, chat_body, on_stage, silent, until
from tests.worlds.outputs import said


def test_bodies_in_hand_are_bounded_over_all_clients() -> None:
    budget = BodyBudget(10)
    with budget.share() as one, budget.share() as other:
        one.take(6)
        other.take(4)
        with pytest.raises(TandemError) as refused:
            other.take(1)
        assert refused.value.code == "queue_full"
        assert refused.value.retry_after_s == 1.0
        assert budget.held == 10
    assert budget.held == 0


def test_a_request_is_refused_when_too_many_bytes_are_in_hand() -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.post("/v1/chat/completions", chat_body())
        assert answer.status == 503
        assert answer.error["code"] == "queue_full"
        assert answer.headers["retry-after"] == "1"

    on_stage(test, settings=ApiSettings(bodies_bytes_max=20))


def test_a_body_that_drips_is_given_up_however_steadily_it_comes() -> None:
    async def main(loop: VirtualLoop) -> float:
        async def drip() -> dict[str, object]:
            await asyncio.sleep(20.0)
            return {"type": "http.request", "body": b".", "more_body": True}

        with pytest.raises(TandemError) as late:
            await read_body(drip, None, ApiSettings(), BodyShare(BodyBudget(1 << 20)))
        assert late.value.code == "deadline_exceeded"
        return loop.time()

    assert run(main) == pytest.approx(140.0)


def test_a_stream_that_nobody_ends_is_ended_here_with_an_error_event() -> None:
    def one_word(_generation: Generation, sink: Sink) -> None:
        sink.output(said(0, 1, (72,), "Hello"))

    async def test(stage: Stage) -> None:
        answer = await stage.chat(stream=True, timeout=3)
        assert answer.status == 200
        *before, last = answer.events()
        assert "Hello" in [event["choices"][0]["delta"].get("content") for event in before]
        assert last["error"]["code"] == "deadline_exceeded"
        assert stage.clock.now() == pytest.approx(3.0 + ApiSettings().settle_s)
        assert stage.script.only.cancelled == "deadline_exceeded"

    on_stage(test, Script(one_word))


async def test_connections_over_the_bound_are_told_so_and_let_go() -> None:
    stage = Stage(VirtualLoop(), Script())
    server = HttpServer(stage.app, ConnectionsMax(2), explain=explain)
    port = await server.start("127.0.0.1", 0)
    kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    try:
        for _, writer in kept:
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert [await reader.readuntil(b"ok") for reader, _ in kept]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(60.0):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in answer
        assert b'"code":"queue_full"' in answer
        writer.close()
        kept.pop()[1].close()
        await asyncio.sleep(0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await reader.readuntil(b"ok")
        writer.close()
    finally:
        for _, writer in kept:
            writer.close()
        await server.close(0.2)


@pytest.mark.parametrize("descriptors", [1, 20, 100, 128, 500, 4096, 9000, 1 << 20])
def test_connections_fit_into_the_descriptors_there_are(descriptors: int) -> None:
    bounds = connections_within(descriptors, 8192)
    assert bounds.public >= 1
    assert bounds.turned >= 1
    assert bounds.probes >= 4
    assert bounds.descriptors <= max(descriptors, 12)
    assert bounds.public == 8192 or bounds.descriptors > descriptors - 8, "nothing lies idle"
    assert bounds.grpc == 0
    both = connections_within(descriptors, 8192, 1024)
    assert 1 <= both.grpc <= 1024
    assert both.public >= 1
    assert both.descriptors <= max(descriptors, 13)
    assert (both.public, both.grpc) == (8192, 1024) or both.descriptors > descriptors - 8, "nothing lies idle"


async def test_silent_clients_take_no_connections_from_probes() -> None:
    stage = Stage(VirtualLoop(), Script())
    server = HttpServer(stage.app, ConnectionsMax(2, turned=2, probes=2))
    public = await server.start("127.0.0.1", 0)
    probes = await server.start("127.0.0.1", 0, probes=stage.app.probes)
    silent = [await asyncio.open_connection("127.0.0.1", public) for _ in range(12)]
    try:
        for _ in range(8):
            reader, writer = await asyncio.open_connection("127.0.0.1", probes)
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            async with asyncio.timeout(60.0):
                assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.close()
    finally:
        for _, writer in silent:
            writer.close()
        await server.close(0.2)


async def test_who_is_turned_away_without_a_word_is_told_and_lets_the_next_in() -> None:
    """Ten connections where four fit: those that the kernel still holds get their answer, none a reset."""
    stage = Stage(VirtualLoop(), Script())
    server = HttpServer(stage.app, ConnectionsMax(2, turned=2), stage.meter)
    port = await server.start("127.0.0.1", 0)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(100.0):
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        writer.close()
        assert b"tandem_connections_refused_total 5.0" in stage.meter.render()
    finally:
        for _, writer in silent:
            writer.close()
        await server.close(0.2)


async def test_who_waits_to_be_accepted_when_the_router_stops_is_told() -> None:
    stage = Stage(VirtualLoop(), Script())
    server = HttpServer(stage.app, explain=explain)
    port = await server.start("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as client:
        # The loop has not run since: the connection is in the kernel's queue.
        client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        await server.close(5.0)
        answer = await asyncio.to_thread(client.recv, 65_536)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"draining"' in answer


async def test_a_pipelined_request_does_not_hide_that_the_client_hung_up() -> None:
    script = Script(play=lambda _generation, _sink: None)
    stage = Stage(VirtualLoop(), script)
    server = HttpServer(stage.app)
    port = await server.start("127.0.0.1", 0)
    try:
        with socket.create_connection(("127.0.0.1", port)) as client:
            body = b'{"model":"tiny","messages":[{"role":"user","content":"hi"}]}'
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            client.sendall(head + body)
            async with asyncio.timeout(60.0):
                while not script.started:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
                client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                await asyncio.sleep(0.05)
        async with asyncio.timeout(60.0):
            while script.started[0].cancelled is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    finally:
        await server.close(0.2)


@pytest.mark.parametrize("extra", [{"metadata": {"a": "x" * 700_000}}, {"user": "x" * 700_000}])
def test_a_running_answer_holds_nothing_of_its_body_that_it_does_not_need(extra: dict[str, object]) -> None:
    """Two hundred streams with a megabyte of metadata each once held 350 MB."""
    body = msgspec.json.encode(chat_body(stream=True, max_tokens=3, **extra))

    async def test(stage: Stage) -> None:
        client = stage.client()
        tracemalloc.start()
        try:
            asking = asyncio.ensure_future(client.ask("POST", "/v1/chat/completions", body))
            await until(lambda: stage.script.started)
            await asyncio.sleep(0.1)
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert not asking.done()
        client.leave()
        await asking
        assert held < 300_000, f"{held} bytes are held while the answer is made"

    on_stage(test, Script(silent))
