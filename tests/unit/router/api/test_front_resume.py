"""Resumable streams at the front door: ids of events, coming back, refusals; and the log that makes it possible."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.resumption import place_bytes, place_of
from router.dispatch.answer_log import AnswerLog
from router.generation import Generation, Resumed, Sink, Usage
from tandem.core.errors import TandemError
from tandem.core.messages import SequenceOutput
from tandem.core.request import Sampling, Stopping
from tandem.core.spans import TraceContext
from tests.worlds.front_stage import (
    MODEL,
    Answer,
    Client,
    Script,
    Stage,
    Started,
    chat_body,
    logprobs,
    on_stage,
    until,
)
from tests.worlds.outputs import Speaker

TOKENS = 6


@dataclass
class Kept:
    """`router.generation.Resumed` of a scripted generation."""

    generation: Generation
    log: AnswerLog
    speaker: Speaker = field(init=False)
    left: list[Sink] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.speaker = Speaker(self.log)

    def chars(self, after: tuple[int, ...]) -> tuple[int, ...]:
        return self.log.chars(after)

    def listen(self, sink: Sink, after: tuple[int, ...]) -> Started:
        self.log.listen(sink, after)
        return Leaving(self.generation, sink, self)


@dataclass
class Leaving(Started):
    """A listener that only leaves."""

    kept: "Kept | None" = None

    def __init__(self, generation: Generation, sink: Sink, kept: Kept) -> None:
        super().__init__(generation, sink)
        self.kept = kept

    def cancel(self, reason: str) -> None:
        assert self.kept is not None
        self.kept.log.leave(self.sink)
        self.kept.left.append(self.sink)


@dataclass
class ResumableScript(Script):
    """Plays word by word into logs, `until` a given word; `more` says the rest."""

    kept: dict[str, Kept] = field(default_factory=dict)
    words: int = TOKENS

    def start(self, generation: Generation, sink: Sink) -> Started:
        if generation.resume is None:
            return super().start(generation, sink)
        kept = self.kept[generation.request_id] = Kept(generation, AnswerLog(generation, sink))
        asyncio.get_running_loop().call_soon(self.say, kept, 0, self.words)
        return Leaving(generation, sink, kept)

    def say(self, kept: Kept, first: int, end: int) -> None:
        """Words `first` to `end` of every sequence."""
        wanted = kept.generation.sampling.logprobs
        for word in range(first, end):
            for sequence in range(kept.generation.n):
                finish = "stop" if word == TOKENS - 1 else None
                drawn = logprobs(wanted, 65 + word)
                text = "" if word == 2 else f" w{word}s{sequence}"
                kept.speaker.say(sequence, word + 1, (65 + word,), text, drawn, finish)
        if end == TOKENS:
            kept.log.done(Usage(kept.generation.prompt_tokens, TOKENS * kept.generation.n, 1))

    async def resume(self, request_id: str, tenant: str) -> Resumed:
        found = self.kept.get(request_id)
        if found is None or found.generation.tenant != tenant:
            raise TandemError("not_found", "it is not known")
        return found


def on_resumable(test: Callable[[Stage, ResumableScript], Any], words: int = TOKENS) -> None:
    script = ResumableScript(words=words)

    async def body(stage: Stage) -> None:
        stage.door.services = replace(stage.door.services, resumer=script)
        await test(stage, script)

    on_stage(body, script)


def events(answer: Answer) -> list[tuple[str, Any]]:
    """(id, data) of every event."""
    found = []
    for block in answer.body.decode().removesuffix("\n\n").split("\n\n"):
        event_id, data = block.split("\n")
        text = data.removeprefix("data: ")
        found.append((event_id.removeprefix("id: "), text if text == "[DONE]" else msgspec.json.decode(text)))
    return found


def texts(found: list[tuple[str, Any]]) -> dict[int, str]:
    said: dict[int, str] = {}
    for _, event in found:
        for choice in event["choices"] if event != "[DONE]" else ():
            text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            said[choice["index"]] = said.get(choice["index"], "") + text
    return said


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("chat", [True, False])
def test_after_every_event_the_rest_can_be_had_and_nothing_twice(n: int, chat: bool) -> None:
    async def test(stage: Stage, script: ResumableScript) -> None:
        more: dict[str, Any] = {"n": n, "stream": True, "resumable": True, "logprobs": True if chat else 1}
        more["stream_options"] = {"include_usage": True}
        whole = events(await (stage.chat(**more) if chat else stage.complete("hi", **more)))
        name = whole[0][1]["id"]
        assert whole[-1][1] == "[DONE]"
        assert whole[-2][1]["usage"]["completion_tokens"] == TOKENS * n
        assert whole[-1][0] == ".".join([str(TOKENS)] * n)
        for at, (event_id, _) in enumerate(whole[:-1]):
            rest = events(await stage.get(f"/v1/requests/{name}/events", last_event_id=event_id))
            before, after = texts(whole[: at + 1]), texts(rest)
            joined = {index: before.get(index, "") + after.get(index, "") for index in range(n)}
            assert joined == texts(whole)
            assert rest[-2:] == whole[-2:]
            drawn = [choice["logprobs"] for _, event in rest[:-1] for choice in event["choices"]]
            known = [choice["logprobs"] for _, event in whole[:-1] for choice in event["choices"]]
            assert all(one in known for one in drawn)
        again = events(await stage.get(f"/v1/requests/{name}/events"))
        assert texts(again) == texts(whole)

    on_resumable(test)


def test_streams_that_are_not_resumable_have_no_ids() -> None:
    async def test(stage: Stage, script: ResumableScript) -> None:
        plain = await stage.chat(stream=True)
        assert b"id: " not in plain.body
        assert script.started[0].generation.resume is None

    on_resumable(test)


def test_a_client_that_leaves_is_not_the_end_and_a_newer_connection_ends_the_older() -> None:
    async def test(stage: Stage, script: ResumableScript) -> None:
        client = stage.client()
        asked = asyncio.create_task(ask(client, stage, "mine"))
        await until(lambda: b"w1" in client.body)
        client.leave()
        await asked
        kept = script.kept["mine"]
        assert len(kept.left) == 1
        assert stage.door.open_requests == 0
        first, second = stage.client(), stage.client()
        one = asyncio.create_task(first.ask("GET", "/v1/requests/mine/events", headers={"last-event-id": "2"}))
        await until(lambda: first.status == 200)
        two = asyncio.create_task(second.ask("GET", "/v1/requests/mine/events", headers={"last-event-id": "1"}))
        await until(lambda: second.status == 200)
        assert events(await one)[-1][1]["error"]["code"] == "taken_over"
        assert stage.door.open_requests == 1
        script.say(kept, 2, TOKENS)
        said = events(await two)
        assert texts(said)[0] == " w1s0 w3s0 w4s0 w5s0"
        assert [event_id for event_id, _ in said] == ["2", "4", "5", "6", "6"]
        assert stage.door.open_requests == 0

    on_resumable(test, words=2)


async def ask(client: Client, stage: Stage, name: str) -> Answer:
    body = msgspec.json.encode(chat_body(stream=True, resumable=True))
    return await client.ask("POST", "/v1/chat/completions", body, {"x-request-id": name})


@pytest.mark.parametrize(
    ("event_id", "problem"),
    [("7", "6 tokens so far, not 7"), ("1.1", "1 positions are needed"), ("x", "no event id"), ("-1", "no event id")],
)
def test_a_place_that_does_not_exist_is_named(event_id: str, problem: str) -> None:
    async def test(stage: Stage, script: ResumableScript) -> None:
        await ask(stage.client(), stage, "mine")
        answer = await stage.get("/v1/requests/mine/events", last_event_id=event_id)
        assert answer.status == 400
        assert answer.error["param"] == "Last-Event-ID"
        assert problem in answer.error["message"]

    on_resumable(test)


def test_what_is_not_there_is_404_and_only_get_is_allowed() -> None:
    async def test(stage: Stage, script: ResumableScript) -> None:
        assert (await stage.get("/v1/requests/other/events")).status == 404
        assert (await stage.post("/v1/requests/other/events", {})).status == 405
        stage.door.services = replace(stage.door.services, resumer=None)
        assert (await stage.get("/v1/requests/other/events")).status == 404

    on_resumable(test)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"prompt": "x", "resumable": True}, "only allowed when stream is true"),
        ({"prompt": ["x", "y"], "resumable": True, "stream": True}, "has one prompt"),
        ({"prompt": "x", "resumable": True, "stream": True, "n": 4, "max_tokens": 90}, "at most 300 tokens"),
    ],
)
def test_what_cannot_be_resumable_is_refused(body: dict[str, Any], problem: str) -> None:
    async def test(stage: Stage, script: ResumableScript) -> None:
        stage.door.settings = replace(stage.door.settings, resumable_tokens_max=300)
        answer = await stage.post("/v1/completions", {"model": MODEL, **body})
        assert answer.status == 400
        assert answer.error["param"] == "resumable"
        assert problem in answer.error["message"]

    on_resumable(test)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=128))
def test_a_place_survives_the_way_to_the_client_and_back(positions: list[int]) -> None:
    assert place_of(place_bytes(positions).decode(), len(positions)) == tuple(positions)


class Recorder:
    """A sink that keeps text and order."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.text: dict[int, str] = {}
        self.ends = 0

    def output(self, output: SequenceOutput) -> None:
        self.tokens.setdefault(output.sequence, []).extend(output.tokens)
        self.text[output.sequence] = self.text.get(output.sequence, "") + output.text

    def done(self, usage: Usage) -> None:
        self.ends += 1

    def failed(self, error: TandemError) -> None:
        self.ends += 1


def generation(n: int) -> Generation:
    trace = TraceContext("a" * 32, "b" * 16)
    stopping = Stopping(max_tokens=50)
    return Generation(
        prompt=b"abcd",
        sampling=Sampling(),
        stopping=stopping,
        request_id="r",
        model=MODEL,
        tenant="",
        n=n,
        seed=1,
        timeout_s=1.0,
        received=0.0,
        received_wall=0.0,
        trace=trace,
        resume=b"",
    )


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=3)), max_size=40), st.data())
def test_wherever_a_listener_joins_it_gets_exactly_the_rest(said: list[tuple[int, str]], data: st.DataObject) -> None:
    log, whole = AnswerLog(generation(3)), Recorder()
    speaker = Speaker(log)
    log.listen(whole, (0, 0, 0))
    joins = data.draw(st.integers(0, len(said)))
    counts = [0, 0, 0]
    listener, after, chars = Recorder(), (0, 0, 0), (0, 0, 0)
    for index, (sequence, text) in enumerate(said):
        if index == joins:
            after = tuple(data.draw(st.integers(0, count)) for count in counts)  # type: ignore[assignment]
            chars = log.chars(after)  # type: ignore[assignment]
            whole = Recorder()
            log.listen(listener, after)
            log.leave(listener)
            log.listen(listener, tuple(counts))
        counts[sequence] += 1
        speaker.say(sequence, counts[sequence], (index,), text)
    every = Recorder()
    log.listen(every, (0, 0, 0))
    if joins < len(said):
        for sequence in range(3):
            assert listener.tokens.get(sequence, []) == every.tokens.get(sequence, [])[after[sequence] :]
            assert listener.text.get(sequence, "") == every.text.get(sequence, "")[chars[sequence] :]
    log.done(Usage(1, sum(counts), 0))
    assert every.ends == 1
