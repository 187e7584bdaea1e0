"""What clients see, and what is freed, when something goes wrong after a request was accepted."""

import asyncio

import msgspec
import pytest

from router.api.settings import ApiSettings
from router.generation import Generation, Sink, Usage
from router.http_server.response_writer import ResponseWriterLimits
from tandem.core.errors import TandemError
from tests.worlds.front_stage import MODEL, Script, Stage, chat_body, on_stage, silent, until
from tests.worlds.outputs import said

CHAT = "/v1/chat/completions"
STREAM = msgspec.json.encode(chat_body(stream=True))


def say(sink: Sink, position: int, text: str = "word") -> None:
    sink.output(said(0, position, (position,), text))


def test_an_error_in_mid_stream_is_an_event_and_not_a_silent_end() -> None:
    def play(generation: Generation, sink: Sink) -> None:
        say(sink, 1)
        sink.failed(TandemError("deadline_exceeded", "too late"))

    async def test(stage: Stage) -> None:
        answer = await stage.chat(stream=True)
        assert answer.status == 200
        *_, last = answer.events()
        assert last["error"] == {
            "message": "too late",
            "type": "timeout_error",
            "param": None,
            "code": "deadline_exceeded",
        }
        assert stage.door.open_requests == 0

    on_stage(test, Script(play))


@pytest.mark.parametrize(
    ("code", "status"), [("deadline_exceeded", 504), ("worker_lost", 503), ("engine_failed", 500)]
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_before_the_first_token_has_a_status(code: str, status: int, stream: bool) -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.chat(stream=stream)
        assert answer.status == status
        assert answer.error["message"] == "no luck"

    on_stage(test, Script(lambda generation, sink: sink.failed(TandemError(code, "no luck"))))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_request_at_once(stream: bool) -> None:
    async def test(stage: Stage) -> None:
        client = stage.client()
        body = msgspec.json.encode(chat_body(stream=stream))
        async with asyncio.TaskGroup() as group:
            group.create_task(client.ask("POST", CHAT, body))
            await until(lambda: stage.script.started)
            say(stage.script.only.sink, 1)
            before = stage.clock.now()
            client.leave()
            await until(lambda: stage.script.only.cancelled)
            assert stage.clock.now() - before <= 0.002
            say(stage.script.only.sink, 2)
            stage.script.only.sink.failed(TandemError("internal", "late"))
        assert stage.door.open_requests == 0
        metrics = stage.meter.render().decode()
        assert 'tandem_requests_total{model="tiny",outcome="cancelled"} 1.0' in metrics

    on_stage(test, Script(silent))


def test_a_client_that_leaves_while_sending_its_body_starts_nothing() -> None:
    async def test(stage: Stage) -> None:
        client = stage.client()
        client.leave()
        client.unread = []
        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
        await stage.app(scope, client._receive, client._send)
        assert not stage.script.started
        assert client.status == 0
        assert not stage.door.arrivals._open

    on_stage(test)


def test_one_refused_prompt_refuses_the_request_and_frees_the_others() -> None:
    class Full(Script):
        def start(self, generation: Generation, sink: Sink):  # type: ignore[no-untyped-def]
            if len(self.started) == 2:
                raise TandemError("queue_full", "full")
            return super().start(generation, sink)

    script = Full(silent)

    async def test(stage: Stage) -> None:
        answer = await stage.complete(["a", "b", "c"])
        assert (answer.status, answer.error["code"]) == (503, "queue_full")
        assert [started.cancelled for started in script.started] == ["queue_full", "queue_full"]

    on_stage(test, script)


def test_one_failed_prompt_fails_the_request_and_frees_the_others() -> None:
    def play(generation: Generation, sink: Sink) -> None:
        if generation.prompt[0] == ord("b"):
            sink.failed(TandemError("worker_lost", "gone"))

    async def test(stage: Stage) -> None:
        answer = await stage.complete(["a", "b"])
        assert answer.error["code"] == "worker_lost"
        assert stage.script.started[0].cancelled == "worker_lost"

    on_stage(test, Script(play))


def test_a_client_that_does_not_read_is_ended_and_holds_nobody_up() -> None:
    settings = ApiSettings(outlet=ResponseWriterLimits(buffer_bytes=2000, stall_s=30.0, farewell_s=2.0))

    async def test(stage: Stage) -> None:
        client = stage.client()
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(client.ask("POST", CHAT, STREAM))
            await until(lambda: stage.script.started)
            sink = stage.script.only.sink
            say(sink, 1)
            client.reads.clear()
            for position in range(2, 40):
                say(sink, position)
            await until(lambda: stage.script.only.cancelled)
            assert stage.script.only.cancelled == "slow_client"
            client.reads.set()
            answer = await asking
        assert answer.events()[-1]["error"]["code"] == "slow_client"
        assert stage.door.open_requests == 0

    on_stage(test, Script(silent), settings=settings)


def test_a_client_that_never_reads_again_is_cut_off() -> None:
    settings = ApiSettings(outlet=ResponseWriterLimits(buffer_bytes=2000, stall_s=30.0, farewell_s=2.0))

    async def test(stage: Stage) -> None:
        client = stage.client()
        asking = asyncio.create_task(client.ask("POST", CHAT, STREAM))
        await until(lambda: stage.script.started)
        client.reads.clear()
        for position in range(1, 3):
            say(stage.script.only.sink, position)
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert stage.clock.now() == pytest.approx(32.0, abs=0.1)
        assert stage.script.only.cancelled == "slow_client"
        assert stage.door.open_requests == 0

    on_stage(test, Script(silent), settings=settings)


def test_an_answer_that_ended_while_the_client_did_not_read_is_whole_when_it_reads_again() -> None:
    settings = ApiSettings(outlet=ResponseWriterLimits(buffer_bytes=20_000, stall_s=30.0, farewell_s=2.0))

    async def test(stage: Stage) -> None:
        client = stage.client()
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(client.ask("POST", CHAT, STREAM))
            await until(lambda: stage.script.started)
            sink = stage.script.only.sink
            say(sink, 1, " 1")
            client.reads.clear()
            for position in range(2, 5):
                say(sink, position, f" {position}")
            sink.output(said(0, 5, (1,), " 5", (), "stop"))
            sink.done(Usage(3, 5, 0))
            await asyncio.sleep(31.0)
            client.reads.set()
            answer = await asking
        assert answer.text() == " 1 2 3 4 5"
        assert answer.events()[-1] == "[DONE]"

    on_stage(test, Script(silent), settings=settings)


def test_an_answer_that_ends_in_the_turn_in_which_the_client_becomes_too_slow_is_whole_or_an_error() -> None:
    settings = ApiSettings(outlet=ResponseWriterLimits(buffer_bytes=2_000, stall_s=30.0, farewell_s=2.0))

    async def test(stage: Stage) -> None:
        client = stage.client()
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(client.ask("POST", CHAT, STREAM))
            await until(lambda: stage.script.started)
            sink = stage.script.only.sink
            say(sink, 1, " 1")
            client.reads.clear()
            for position in range(2, 40):
                say(sink, position, f" {position}")
            sink.output(said(0, 40, (1,), " 40", (), "stop"))
            sink.done(Usage(3, 40, 0))
            await asyncio.sleep(1.0)
            client.reads.set()
            answer = await asking
        assert answer.events()[-1] == "[DONE]"
        assert answer.text() == "".join(f" {position}" for position in range(1, 41))

    on_stage(test, Script(silent), settings=settings)


def test_a_client_that_pauses_gets_everything_in_order() -> None:
    async def test(stage: Stage) -> None:
        client = stage.client()
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(client.ask("POST", CHAT, STREAM))
            await until(lambda: stage.script.started)
            sink = stage.script.only.sink
            for position in range(1, 101):
                if position % 20 == 10:
                    client.reads.clear()
                say(sink, position, f" {position}")
                if position % 20 == 0:
                    await asyncio.sleep(1.0)
                    client.reads.set()
                    await asyncio.sleep(0.1)
            sink.done(Usage(1, 100, 0))
            answer = await asking
        assert answer.text() == "".join(f" {position}" for position in range(1, 101))
        assert answer.events()[-1] == "[DONE]"

    on_stage(test, Script(silent))


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_nobody_ends_is_ended_at_its_deadline(stream: bool) -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.chat(stream=stream, timeout=7)
        assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
        assert stage.script.only.cancelled == "deadline_exceeded"
        assert stage.clock.now() == pytest.approx(12.0)

    on_stage(test, Script(silent))


def test_draining_refuses_the_new_and_ends_what_is_left() -> None:
    async def test(stage: Stage) -> None:
        client = stage.client()
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(client.ask("POST", CHAT, STREAM))
            await until(lambda: stage.script.started)
            say(stage.script.only.sink, 1)
            stage.door.drain()
            refused = await stage.chat()
            assert (refused.status, refused.error["code"]) == (503, "draining")
            assert refused.headers["retry-after"] == "1"
            assert (await stage.get("/ready")).status == 503
            assert (await stage.get("/health")).status == 200
            assert stage.door.end_all() == 1
            answer = await asking
        assert answer.events()[-1]["error"]["code"] == "draining"

    on_stage(test, Script(silent))


def test_two_open_requests_never_share_an_id() -> None:
    async def test(stage: Stage) -> None:
        first, second = stage.client(), stage.client()
        async with asyncio.TaskGroup() as group:
            for client in (first, second):
                group.create_task(client.ask("POST", CHAT, STREAM, {"x-request-id": "twin"}))
            await until(lambda: len(stage.script.started) == 2)
            ids = [started.generation.request_id for started in stage.script.started]
            assert ids[0] == "twin"
            assert ids[1].startswith("twin.")
            for started in stage.script.started:
                say(started.sink, 1)
                started.sink.done(Usage(1, 1, 0))
        assert [first.headers["x-request-id"], second.headers["x-request-id"]] == ids
        again = await stage.post(CHAT, {"model": MODEL, "messages": []}, x_request_id="twin")
        assert again.headers["x-request-id"] == "twin"

    on_stage(test, Script(silent))


def test_sampled_gaps_and_times_reach_the_meter() -> None:
    async def test(stage: Stage) -> None:
        client = stage.client()
        async with asyncio.TaskGroup() as group:
            group.create_task(client.ask("POST", CHAT, STREAM))
            await until(lambda: stage.script.started)
            sink = stage.script.only.sink
            await asyncio.sleep(1.0)
            for position in range(1, 34):
                say(sink, position)
                await asyncio.sleep(0.03)
            sink.done(Usage(5, 33, 3))
        metrics = stage.meter.render().decode()
        assert 'tandem_itl_seconds_count{model="tiny"} 2.0' in metrics
        assert 'tandem_itl_seconds_bucket{le="0.05",model="tiny"} 2.0' in metrics
        assert 'tandem_itl_seconds_bucket{le="0.02",model="tiny"} 0.0' in metrics
        assert 'tandem_prompt_tokens_total{model="tiny"} 5.0' in metrics
        assert 'tandem_cached_tokens_total{tier="unknown"} 3.0' in metrics
        assert 'tandem_ttft_seconds_bucket{le="1.0",model="tiny"} 0.0' in metrics
        assert 'tandem_tpot_seconds_bucket{le="0.05",model="tiny"} 1.0' in metrics
        assert 'tandem_e2e_seconds_bucket{le="2.0",model="tiny"} 1.0' in metrics

    on_stage(test, Script(silent))
