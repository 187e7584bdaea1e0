"""Tool calls and reasoning, as OpenAI's own client and a generated gRPC client see them."""

import json
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam

from protos import inference_pb2 as pb
from tests.e2e.test_grpc_client import generate, refusal
from tests.e2e.test_grpc_resume import resume
from tests.unit.router.api.test_front_tools_resume import TEXT, PieceScript
from tests.worlds.front_server import Served, serving
from tests.worlds.front_stage import MODEL
from tests.worlds.tool_stage import CALL, THINKING_TEMPLATE, WEATHER, ToolScript, renderer, saying

TOOL: ChatCompletionFunctionToolParam = WEATHER  # type: ignore[assignment]
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Weather in Oslo?"}]
SCHEMA = json.dumps(WEATHER["function"]["parameters"])  # type: ignore[index]
CHAT = pb.Chat(
    messages=[pb.Message(role="user", content="Weather?")],
    tools=[pb.Tool(name="get_weather", description="The weather.", parameters=SCHEMA)],
)


def openai(served: Served) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none", max_retries=0)


async def test_openai_s_client_calls_a_tool_and_sends_the_result_back() -> None:
    async with serving(ToolScript(saying(*CALL)), renderer=renderer()) as served, openai(served) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=ASKED, tools=[TOOL])
        message = answer.choices[0].message
        assert answer.choices[0].finish_reason == "tool_calls"
        assert message.tool_calls is not None
        (call,) = message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
        sent_back: Any = [
            *ASKED,
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "rain"},
        ]
        served.script.play = saying("It rains.")
        again = await client.chat.completions.create(model=MODEL, messages=sent_back, tools=[TOOL])
        assert again.choices[0].message.content == "It rains."
        assert again.choices[0].finish_reason == "stop"


async def test_openai_s_client_follows_a_stream() -> None:
    async with serving(ToolScript(saying(*CALL)), renderer=renderer()) as served, openai(served) as client:
        async with client.chat.completions.stream(model=MODEL, messages=ASKED, tools=[TOOL]) as stream:
            kinds = [event.type async for event in stream]
            whole = await stream.get_final_completion()
        assert "tool_calls.function.arguments.delta" in kinds
        called: Any = whole.choices[0].message.tool_calls
        (call,) = called
        assert call.function.arguments == '{"city": "Oslo"}'


async def test_a_grpc_client_gets_reasoning_and_calls_apart() -> None:
    script = ToolScript(saying("hm", "</think>", "So:", *CALL))
    async with serving(script, renderer=renderer(THINKING_TEMPLATE)) as served:
        *chunks, last = await generate(served, pb.GenerateRequest(model=MODEL, chat=CHAT))
    assert "".join(chunk.reasoning for chunk in chunks) == "hm"
    assert "".join(chunk.text for chunk in chunks) == "So:"
    calls = [call for chunk in chunks for call in chunk.tool_calls]
    assert (calls[0].name, calls[0].id[:5]) == ("get_weather", "call_")
    assert "".join(call.arguments for call in calls) == '{"city": "Oslo"}'
    assert chunks[-1].finish_reason == "tool_calls"
    assert last.usage.completion_tokens == 3 + len(CALL) == sum(len(chunk.tokens) for chunk in chunks)


async def test_a_broken_grpc_call_goes_on_in_mid_call() -> None:
    script = PieceScript(size=3)
    async with serving(script, renderer=renderer(THINKING_TEMPLATE)) as served:
        served.door.services = replace(served.door.services, resumer=script)
        asked = pb.GenerateRequest(model=MODEL, chat=CHAT, resumable=True)
        whole = await generate(served, asked, **{"x-request-id": "mine"})

        def joined(chunks: list[pb.GenerateChunk]) -> tuple[str, str, str, int]:
            calls = "".join(f"{call.name}{call.arguments}" for chunk in chunks for call in chunk.tool_calls)
            reasoning = "".join(chunk.reasoning for chunk in chunks)
            return reasoning, "".join(chunk.text for chunk in chunks), calls, sum(len(each.tokens) for each in chunks)

        assert joined(whole)[2] == 'get_weather{"city": "Oslo"}'
        for at in range(0, len(whole) - 1, 4):
            rest = await resume(served, "mine", tuple(whole[at].positions))
            assert joined([*whole[: at + 1], *rest]) == joined(whole)
            assert rest[-1].usage == whole[-1].usage
    assert TEXT.startswith(joined(whole)[0])


@pytest.mark.parametrize(
    ("structure", "kind", "text"),
    [
        (pb.Structure(json_object=True), "json", ""),
        (pb.Structure(json_schema=SCHEMA), "json", SCHEMA),
        (pb.Structure(regex="a+"), "regex", "a+"),
        (pb.Structure(choice=pb.Choices(texts=["a", "b"])), "choice", '["a","b"]'),
        (pb.Structure(grammar="root ::= a"), "ebnf", "root ::= a"),
    ],
)
async def test_a_grpc_client_binds_the_answer(structure: pb.Structure, kind: str, text: str) -> None:
    script = ToolScript(saying("x"), ("grammar",))
    async with serving(script, renderer=renderer()) as served:
        await generate(
            served, pb.GenerateRequest(model=MODEL, text="x", parameters=pb.Parameters(structure=structure))
        )
    grammar = script.only.generation.grammar
    assert grammar is not None
    assert (grammar.kind, grammar.text) == (kind, text)


async def test_a_grpc_client_is_told_what_the_engine_cannot_do_and_what_is_no_schema() -> None:
    chat, blind = pb.Chat(), pb.Chat()
    chat.CopyFrom(CHAT)
    chat.called_tool = "get_weather"
    blind.CopyFrom(CHAT)
    blind.tools[0].parameters = "{"
    async with serving(ToolScript(saying("x")), renderer=renderer()) as served:
        code, error = await refusal(served, pb.GenerateRequest(model=MODEL, chat=chat))
        assert (code, error.code, error.param) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "unsupported_parameter",
            "tool_choice",
        )
        code, error = await refusal(served, pb.GenerateRequest(model=MODEL, chat=blind))
        assert (error.code, error.param) == ("invalid_request", "tools[0].parameters")
