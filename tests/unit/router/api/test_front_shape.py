"""What there is in a body is counted before it is decoded, and one client's bodies do not stop the others."""

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import inference_pb2 as pb
from router.api.body_shape import UNITS_MIN, BodyShape, check_shape
from router.api.message_shape import check_message
from tandem.core.errors import TandemError
from tests.worlds.front_stage import CONTEXT, MODEL, Script, Stage, chat_body, on_stage

texts = st.text(st.sampled_from('a,:[]{}"\\\né'), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=30,
)


def units_of(value: Any) -> int:
    """By the definition: an element of a list after another 1, a key 3, an object or array 12."""
    if isinstance(value, dict):
        within = sum(map(units_of, value.values()))
        return 12 + 3 * len(value) + max(0, len(value) - 1) + within
    if isinstance(value, list):
        return 12 + max(0, len(value) - 1) + sum(map(units_of, value))
    return 0


@given(values, st.booleans(), st.integers(1, 7))
def test_a_body_is_counted_the_same_however_it_is_cut(value: Any, ascii_only: bool, size: int) -> None:
    body, shape = json.dumps(value, ensure_ascii=ascii_only).encode(), BodyShape()
    for place in range(0, len(body), size):
        shape.add(body[place : place + size])
    assert shape.units == units_of(value)


def test_a_run_of_backslashes_is_looked_at_once() -> None:
    """Otherwise what is kept for the next piece grows with every piece."""
    shape = BodyShape()
    shape.add(b'["')
    for _ in range(100):
        shape.add(b"\\" * 101)
    shape.add(b'",1]')
    assert shape.units == 13


def test_a_body_is_refused_as_soon_as_it_has_too_much() -> None:
    looks = check_shape(b"[" + b"{} , " * 400_000, UNITS_MIN)
    next(looks)
    with pytest.raises(TandemError) as refused:
        next(looks)
    assert refused.value.code == "invalid_request"


def grpc_messages() -> dict[str, tuple[bytes, int]]:
    """Serialized requests and what is in them by the definition."""
    turn = pb.Message(role="user", content="a")
    called = pb.Message(role="assistant", tool_calls=[pb.ToolCall(id="1", name="f", arguments="{}")] * 3)
    stops = pb.Parameters(stop=["a", "b"], stop_token_ids=[1, 300], logit_bias={5: 1.0}, temperature=0.5)
    return {
        "text": (pb.GenerateRequest(model="m", text="a" * 300).SerializeToString(), 6),
        "turns": (pb.GenerateRequest(chat=pb.Chat(messages=[turn] * 7)).SerializeToString(), 12 + 7 * (12 + 6)),
        "calls": (pb.GenerateRequest(chat=pb.Chat(messages=[called])).SerializeToString(), 12 + 12 + 3 + 3 * 21),
        "ids": (pb.GenerateRequest(token_ids=pb.TokenIds(ids=range(70_000))).SerializeToString(), 12 + 70_000),
        "parameters": (pb.GenerateRequest(parameters=stops).SerializeToString(), 12 + 6 + 2 + 12 + 6 + 3),
        "nothing that is known": (b"\xfa\x7f\x02ab" * 5, 15),
    }


@pytest.mark.parametrize("name", list(grpc_messages()))
def test_what_is_in_a_grpc_message_is_counted(name: str) -> None:
    raw, units = grpc_messages()[name]
    assert list(check_message(raw, units)) is not None
    with pytest.raises(TandemError, match="the message has too many parts"):
        list(check_message(raw, units - 1))


@given(st.binary(max_size=200))
def test_counting_ends_whatever_bytes_come(raw: bytes) -> None:
    assert list(check_message(raw, 1 << 20)) is not None


def test_the_grpc_door_counts_before_it_reads() -> None:
    message = pb.GenerateRequest(chat=pb.Chat(messages=[pb.Message()] * 110_000)).SerializeToString()

    async def test(stage: Stage) -> None:
        with pytest.raises(TandemError) as refused:
            await stage.door.check_message(message)
        assert refused.value.code == "invalid_request"
        await stage.door.check_message(pb.GenerateRequest(text="a" * 200_000).SerializeToString())

    on_stage(test)


MANY = {
    "messages": chat_body(messages=[{"role": "user", "content": "a"}] * 20_000),
    "tool calls": chat_body(
        messages=[
            {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]}
        ]
        * 8_000
    ),
    "ids": {"model": MODEL, "prompt": [1] * 400_000},
    "keys": chat_body(metadata={str(number): "a" for number in range(70_000)}),
    "unknown": chat_body(**{f"k{number}": 1 for number in range(70_000)}),
    "lists of ids": {"model": MODEL, "prompt": [[1] * 3_000] * 127},
}


@pytest.mark.parametrize("kind", MANY)
def test_a_body_with_too_many_parts_is_refused_by_name(kind: str) -> None:
    async def test(stage: Stage) -> None:
        path = "/v1/completions" if "prompt" in MANY[kind] else "/v1/chat/completions"
        answer = await stage.post(path, MANY[kind])
        assert (answer.status, answer.error["code"]) == (400, "invalid_request")
        assert "too many parts" in answer.error["message"]
        assert not stage.script.started

    on_stage(test)


def test_arguments_of_tools_are_bounded_before_they_are_decoded() -> None:
    async def test(stage: Stage) -> None:
        call = {"type": "function", "function": {"name": "f", "arguments": json.dumps({"a": "b" * 300_000})}}
        turns = [{"role": "assistant", "tool_calls": [call]}, {"role": "assistant", "tool_calls": [call]}]
        answer = await stage.chat(messages=turns)
        assert (answer.status, answer.error["param"]) == (400, "messages[1].tool_calls[0].function.arguments")

    on_stage(test)


def test_more_than_the_longest_context_takes_is_not_read() -> None:
    async def test(stage: Stage) -> None:
        within = (1 << 20) + 64 * CONTEXT
        answer = await stage.chat(messages=[{"role": "user", "content": "a" * within}])
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
        prompts = ["a" * (within // 100)] * 128
        assert (await stage.complete(prompts)).error["code"] == "context_length_exceeded", "each has its context"

    on_stage(test)


def test_who_sends_as_much_as_is_read_does_not_stop_others() -> None:
    """By the processor time of a turn of the loop, eight such bodies at once; it was seconds."""

    async def test(stage: Stage) -> None:
        turns, over = list[float](), False

        async def watch() -> None:
            while not over:
                began = time.thread_time()
                await asyncio.sleep(0)
                turns.append(time.thread_time() - began)

        watching = asyncio.create_task(watch())
        hostile = json.dumps(chat_body(messages=[{"role": "user", "content": "a"}] * 30_000)).encode()
        answers = await asyncio.gather(*[stage.post("/v1/chat/completions", hostile) for _ in range(8)])
        over = True
        await watching
        assert {answer.status for answer in answers} == {400}
        # All eight are handed to the application in one turn here.
        assert max(turns) < 0.25

    on_stage(test, Script())
