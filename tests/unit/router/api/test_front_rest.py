"""What the REST interface answers when all goes well."""

import msgspec
import pytest

from router.generation import Generation, Sink, Usage
from tandem.core.kv import unpack_tokens
from tandem.core.spans import Span
from tests.worlds.front_stage import MODEL, Script, Stage, chat_body, on_stage
from tests.worlds.outputs import said

USAGE = {
    "prompt_tokens": 19,
    "completion_tokens": 2,
    "total_tokens": 21,
    "prompt_tokens_details": {"cached_tokens": 1},
}


def test_a_chat_request_is_answered_as_openai_does() -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.chat()
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        body = answer.json()
        assert body["object"] == "chat.completion"
        assert body["model"] == MODEL
        assert body["created"] == 1_800_000_000
        assert body["id"] == answer.headers["x-request-id"]
        assert body["id"].startswith("chatcmpl-")
        message = {"role": "assistant", "content": "Hello 0", "refusal": None}
        assert body["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}]
        assert body["usage"] == USAGE
        assert bytes(unpack_tokens(stage.script.only.generation.prompt)) == b"user: hi\nassistant:"

    on_stage(test)


def test_a_stream_begins_with_the_role_and_ends_with_done() -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.chat(stream=True)
        assert answer.headers["content-type"].startswith("text/event-stream")
        *events, done = answer.events()
        assert done == "[DONE]"
        assert {event["object"] for event in events} == {"chat.completion.chunk"}
        assert {event["id"] for event in events} == {answer.headers["x-request-id"]}
        assert [event["choices"][0]["delta"] for event in events] == [
            {"role": "assistant", "content": ""},
            {"content": "Hello"},
            {"content": " 0"},
        ]
        assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, "length"]
        assert all("usage" not in event for event in events)

    on_stage(test)


def test_usage_comes_last_in_a_stream_that_asked_for_it() -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.chat(stream=True, stream_options={"include_usage": True})
        *events, last, done = answer.events()
        assert done == "[DONE]"
        assert last["choices"] == []
        assert last["usage"] == USAGE
        assert all(event["usage"] is None for event in events)

    on_stage(test)


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_and_choices_are_numbered_prompt_by_prompt(stream: bool) -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.complete(["a", "bc"], n=2, stream=stream, max_tokens=5)
        assert [started.generation.prompt_tokens for started in stage.script.started] == [1, 2]
        assert len({started.generation.request_id for started in stage.script.started}) == 2
        texts = {0: "Hello 0", 1: "Hello 1", 2: "Hello 0", 3: "Hello 1"}
        if not stream:
            body = answer.json()
            assert {choice["index"]: choice["text"] for choice in body["choices"]} == texts
            assert body["usage"]["prompt_tokens"] == 3
            assert body["usage"]["completion_tokens"] == 8
            return
        found = dict.fromkeys(range(4), "")
        for event in answer.events()[:-1]:
            found[event["choices"][0]["index"]] += event["choices"][0]["text"]
        assert found == texts

    on_stage(test)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("ab", [(97, 98)]), ([97, 98], [(97, 98)]), ([[1], [2, 3]], [(1,), (2, 3)]), (["a", [98]], [(97,), (98,)])],
)
def test_prompts_are_text_or_token_ids_or_lists_of_either(prompt: object, tokens: list[tuple[int, ...]]) -> None:
    async def test(stage: Stage) -> None:
        assert (await stage.complete(prompt)).status == 200
        assert [unpack_tokens(started.generation.prompt) for started in stage.script.started] == tokens

    on_stage(test)


def test_chat_logprobs_name_tokens_and_bytes() -> None:
    async def test(stage: Stage) -> None:
        body = (await stage.chat(logprobs=True, top_logprobs=2)).json()
        first, _ = body["choices"][0]["logprobs"]["content"]
        assert (first["token"], first["logprob"], first["bytes"]) == ("H", -0.5, [72])
        assert [(top["token"], top["logprob"]) for top in first["top_logprobs"]] == [("H", -0.5), ("I", -1.5)]

    on_stage(test)


def test_completion_logprobs_are_four_lists_with_running_offsets_also_in_streams() -> None:
    async def test(stage: Stage) -> None:
        whole = (await stage.complete("x", logprobs=1)).json()["choices"][0]["logprobs"]
        assert whole == {
            "tokens": ["H", "0"],
            "token_logprobs": [-0.5, -0.5],
            "top_logprobs": [{"H": -0.5}, {"0": -0.5}],
            "text_offset": [0, 1],
        }
        events = (await stage.complete("x", logprobs=0, stream=True)).events()[:-1]
        shown = [event["choices"][0]["logprobs"] for event in events]
        assert [each["tokens"] for each in shown] == [["H"], ["0"]]
        assert [each["text_offset"] for each in shown] == [[0], [5]]

    on_stage(test)


def test_text_that_needs_escaping_survives_a_stream() -> None:
    nasty = 'a "quote", a \\ backslash,\na line, \u2028 and 🦊'

    def play(generation: Generation, sink: Sink) -> None:
        for position, character in enumerate(nasty, start=1):
            sink.output(said(0, position, (1,), character))
        sink.output(said(0, len(nasty) + 1, (2,), "", (), "stop", "STOP"))
        sink.done(Usage(1, len(nasty) + 1, 0))

    async def test(stage: Stage) -> None:
        answer = await stage.chat(stream=True)
        assert answer.text() == nasty
        last = answer.events()[-2]["choices"][0]
        assert (last["delta"], last["finish_reason"], last["stop_reason"]) == ({}, "stop", "STOP")

    on_stage(test, Script(play))


def test_a_held_back_token_sends_nothing() -> None:
    def play(generation: Generation, sink: Sink) -> None:
        sink.output(said(0, 1, (1,), ""))
        sink.output(said(0, 2, (1,), ""))
        sink.output(said(0, 3, (1,), "late", (), "stop"))
        sink.done(Usage(1, 3, 0))

    async def test(stage: Stage) -> None:
        events = (await stage.complete("x", stream=True)).events()
        assert [event["choices"][0]["text"] for event in events[:-1]] == ["late"]

    on_stage(test, Script(play))


def test_parameters_reach_the_generation() -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.chat(
            temperature=0.5,
            top_p=0.9,
            top_k=7,
            min_p=0.1,
            presence_penalty=0.3,
            frequency_penalty=-0.4,
            repetition_penalty=1.2,
            logit_bias={"9": -5, "3": 1.5},
            seed=-1,
            stop=["a", "b"],
            stop_token_ids=[4, 4_000_000_000],
            ignore_eos=True,
            min_tokens=2,
            max_completion_tokens=6,
            n=2,
            timeout=3,
            priority=-5,
            user="me",
            metadata={"a": "b"},
        )
        assert answer.status == 200
        generation = stage.script.only.generation
        sampling, stopping = generation.sampling, generation.stopping
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 7, 0.1)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.3, -0.4)
        assert sampling.repetition_penalty == 1.2
        assert sampling.logit_bias == ((3, 1.5), (9, -5.0))
        assert sampling.logprobs is None
        assert (stopping.stop, stopping.stop_token_ids, stopping.ignore_eos) == (("a", "b"), (4,), True)
        assert (stopping.min_tokens, stopping.max_tokens) == (2, 6)
        assert (generation.n, generation.timeout_s, generation.priority) == (2, 3.0, -5)
        assert generation.seed == (1 << 64) - 1

    on_stage(test)


def test_defaults_fill_the_context_and_draw_a_seed() -> None:
    async def test(stage: Stage) -> None:
        await stage.chat()
        await stage.chat()
        first, second = (started.generation for started in stage.script.started)
        assert first.stopping.max_tokens == 100 - 19
        assert first.timeout_s == 600.0
        assert first.seed != second.seed

    on_stage(test)


def test_message_content_may_be_text_parts_and_an_answer_can_be_sent_back() -> None:
    async def test(stage: Stage) -> None:
        first = (await stage.chat()).json()["choices"][0]["message"]
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        turns = [{"role": "user", "content": parts}, first, {"role": "user", "content": "c"}]
        assert (await stage.post("/v1/chat/completions", {"model": MODEL, "messages": turns})).status == 200
        prompt = bytes(unpack_tokens(stage.script.started[1].generation.prompt))
        assert prompt == b"user: ab\nassistant: Hello 0\nuser: c\nassistant:"

    on_stage(test)


def test_a_request_id_and_a_trace_are_taken_over() -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"

    async def test(stage: Stage) -> None:
        answer = await stage.post(
            "/v1/chat/completions", chat_body(), x_request_id="mine.1", traceparent=f"00-{trace}-b7ad6b7169203331-01"
        )
        assert answer.headers["x-request-id"] == "mine.1"
        assert answer.json()["id"] == "mine.1"
        generation = stage.script.only.generation
        assert generation.request_id == "mine.1"
        assert generation.trace.trace_id == trace
        (root,) = [span for span in stage.recorder.spans("mine.1") if span.name == "request"]
        assert (root.parent_id, root.span_id) == ("b7ad6b7169203331", generation.trace.span_id)

    on_stage(test)


@pytest.mark.parametrize("given", ["", "with space", "a" * 129, "../x", "é"])
def test_a_request_id_that_is_not_one_is_replaced(given: str) -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.post("/v1/chat/completions", chat_body(), x_request_id=given)
        assert answer.headers["x-request-id"].startswith("chatcmpl-")

    on_stage(test)


def test_the_story_of_a_request_can_be_asked_for() -> None:
    async def test(stage: Stage) -> None:
        request_id = (await stage.complete(["a", "b"])).headers["x-request-id"]
        root_id = stage.script.started[0].generation.trace.span_id
        part = Span("t", "s", root_id, "dispatch", "router", 5.0, 6.0, {})
        stage.recorder.record(f"{request_id}.1", [part])
        answer = await stage.get(f"/v1/requests/{request_id}")
        spans = msgspec.convert(answer.json()["spans"], list[Span])
        assert {span.name for span in spans} == {"request", "tokenize", "dispatch"}
        assert spans == sorted(spans, key=lambda span: span.start_s)
        (root,) = [span for span in spans if span.name == "request"]
        assert root.attributes["outcome"] == "ok"
        assert root.attributes["completion_tokens"] == 4
        assert (await stage.get("/v1/requests/other")).status == 404

    on_stage(test)


def test_models_are_listed_and_looked_up() -> None:
    async def test(stage: Stage) -> None:
        listed = (await stage.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert [model["id"] for model in listed["data"]] == [MODEL]
        assert (await stage.get(f"/v1/models/{MODEL}")).json() == listed["data"][0]
        missing = await stage.get("/v1/models/other")
        assert (missing.status, missing.error["code"]) == (404, "model_not_found")

    on_stage(test)


def test_health_ready_and_metrics() -> None:
    async def test(stage: Stage) -> None:
        assert (await stage.get("/health")).status == 200
        assert (await stage.get("/ready")).status == 200
        await stage.chat()
        metrics = (await stage.get("/metrics")).body.decode()
        assert 'tandem_requests_total{model="tiny",outcome="ok"} 1.0' in metrics
        assert 'tandem_output_tokens_total{model="tiny"} 2.0' in metrics
        assert 'tandem_prompt_tokens_total{model="tiny"} 19.0' in metrics
        assert 'tandem_goodput_requests_total{model="tiny"} 1.0' in metrics
        stage.script.alive = False
        unready = await stage.get("/ready")
        assert (unready.status, unready.json()["reason"]) == (503, "no worker is connected")

    on_stage(test)


def test_token_ids_are_told_where_they_are_asked_for() -> None:
    async def test(stage: Stage) -> None:
        whole = (await stage.complete(["a", "bc"], n=2, return_token_ids=True)).json()
        assert [choice["prompt_token_ids"] for choice in whole["choices"]] == [[97], [97], [98, 99], [98, 99]]
        assert [choice["token_ids"] for choice in whole["choices"]] == [[72, 48], [72, 49]] * 2
        chat = (await stage.chat(return_token_ids=True)).json()
        assert bytes(chat["prompt_token_ids"]) == b"user: hi\nassistant:"
        assert chat["choices"][0]["token_ids"] == [72, 48]
        assert "token_ids" not in (await stage.chat()).json()["choices"][0]
        refused = await stage.chat(return_token_ids=True, stream=True)
        assert (refused.status, refused.error["param"]) == (400, "return_token_ids")

    on_stage(test)
