"""Tools and reasoning through the REST interface: what templates are shown, and what clients get back."""

from typing import Any

import msgspec
import pytest

from router.api.parsers.output import OutputParser
from router.generation import Generation, Sink, Usage
from tandem.core.kv import unpack_tokens
from tests.worlds.front_stage import MODEL, Answer, Script, Stage, chat_body, on_stage
from tests.worlds.outputs import said
from tests.worlds.tool_stage import (
    CALL,
    CLOCK_TOOL,
    THINKING_TEMPLATE,
    TOOLS_TEMPLATE,
    WEATHER,
    ToolScript,
    gathered,
    renderer,
    saying,
)

TOOLS = [WEATHER, CLOCK_TOOL]


def ask(script: Script, template: str = TOOLS_TEMPLATE, tool_parser: str = "auto", **parameters: Any) -> Answer:
    """The answer to a chat request."""

    async def test(stage: Stage) -> Answer:
        return await stage.chat(**parameters)

    return on_stage(test, script, renderer=renderer(template, tool_parser))


def prompt_of(script: Script) -> str:
    tokens = unpack_tokens(script.started[-1].generation.prompt)
    return b"".join(map(renderer().token_bytes, tokens)).decode()


def test_a_call_is_answered_as_openai_does() -> None:
    script = ToolScript(saying("Let me see.\n", CALL))
    body = ask(script, tools=TOOLS).json()
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["role"], message["content"]) == ("assistant", "Let me see.")
    (call,) = message["tool_calls"]
    assert call["id"].startswith("call_")
    assert call["type"] == "function"
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert "The weather in a city." in prompt_of(script)


def test_a_call_alone_has_no_content() -> None:
    message = ask(ToolScript(saying(CALL)), tools=TOOLS).json()["choices"][0]["message"]
    assert message["content"] is None
    assert "reasoning_content" not in message


def test_a_stream_has_the_deltas_of_openai() -> None:
    answer = ask(ToolScript(saying("So:", *CALL, "\n")), tools=TOOLS, stream=True)
    *events, done = answer.events()
    assert done == "[DONE]"
    message = gathered(events)
    assert message["content"] == "So:"
    (call,) = message["tool_calls"]
    assert (call["name"], call["arguments"]) == ("get_weather", '{"city": "Oslo"}')
    assert message["finish_reason"] == "tool_calls"
    pieces = [
        event["choices"][0]["delta"]["tool_calls"][0]
        for event in events
        if "tool_calls" in event["choices"][0]["delta"]
    ]
    assert [set(piece) for piece in pieces[:2]] == [{"index", "id", "type", "function"}, {"index", "function"}]
    assert len(pieces) == len('{"city": "Oslo"}'), "arguments come as they are written"
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_was_cut_off_ends_with_length(stream: bool) -> None:
    pieces = ['<tool_call>{"name": "get_weather", "arguments": {"ci']
    answer = ask(ToolScript(saying(*pieces, finish="length")), tools=TOOLS, stream=stream)
    if stream:
        message = gathered(answer.events())
        assert (message["tool_calls"][0]["arguments"], message["finish_reason"]) == ('{"ci', "length")
    else:
        assert answer.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_every_sequence_is_read_by_itself(stream: bool) -> None:
    def play(generation: Generation, sink: Sink) -> None:
        for at, character in enumerate(CALL, 1):
            for sequence, text in enumerate((character, character.upper())):
                sink.output(said(sequence, at, (65,), text, (), "stop" if at == len(CALL) else None))
        sink.done(Usage(generation.prompt_tokens, 2 * len(CALL), 0))

    answer = ask(ToolScript(play), tools=TOOLS, n=2, stream=stream)
    if not stream:
        first, second = answer.json()["choices"]
        assert first["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
        assert (second["message"]["content"], second["finish_reason"]) == (CALL.upper(), "stop")
        return
    events = answer.events()[:-1]
    assert gathered([each for each in events if each["choices"][0]["index"] == 0])["tool_calls"]
    assert gathered([each for each in events if each["choices"][0]["index"] == 1])["content"] == CALL.upper()


def test_calls_and_their_results_are_shown_to_the_template() -> None:
    script = ToolScript(saying("Rain."))
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    assert ask(script, tools=TOOLS, messages=messages).status == 200
    prompt = prompt_of(script)
    assert '"arguments": {"city": "Oslo"}}</tool_call><|im_end|>\n<|im_start|>tool\nrain<|im_end|>' in prompt


def test_arguments_that_are_no_json_are_shown_as_they_are() -> None:
    script = ToolScript(saying("Rain."))
    call = {"function": {"name": "get_weather", "arguments": "Oslo {"}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "?"}]
    assert ask(script, tools=TOOLS, messages=messages).status == 200
    assert '"arguments": "Oslo {"' in prompt_of(script)


def test_tools_that_must_not_be_called_are_not_shown_and_nothing_is_read_for_calls() -> None:
    script = ToolScript(saying(CALL))
    message = ask(script, tools=TOOLS, tool_choice="none").json()["choices"][0]["message"]
    assert message["content"] == CALL
    assert "get_weather" not in prompt_of(script)


def test_one_call_at_most_where_more_are_not_wanted() -> None:
    message = ask(ToolScript(saying(CALL, CALL)), tools=TOOLS, parallel_tool_calls=False).json()["choices"][0][
        "message"
    ]
    assert len(message["tool_calls"]) == 1


def test_with_the_parser_none_calls_stay_text() -> None:
    script = ToolScript(saying(CALL))
    message = ask(script, tool_parser="none", tools=TOOLS).json()["choices"][0]["message"]
    assert message["content"] == CALL
    assert "get_weather" in prompt_of(script)


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_apart_also_where_the_prompt_opened_it(stream: bool) -> None:
    script = ToolScript(saying("hm ", "hm\n</thi", "nk>\n\nRain.", "\n" + CALL))
    answer = ask(script, THINKING_TEMPLATE, tools=TOOLS, stream=stream)
    message = gathered(answer.events()) if stream else answer.json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm hm", "Rain.")
    assert len(message["tool_calls"]) == 1


def test_reasoning_needs_no_tools() -> None:
    message = ask(ToolScript(saying("hm</think>Rain.")), THINKING_TEMPLATE).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Rain.")


def test_log_probabilities_stay_with_their_tokens() -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.chat(tools=TOOLS, stream=True, logprobs=True)
        shown = [event["choices"][0]["logprobs"] for event in answer.events()[:-1]]
        assert sum(len(each["content"]) for each in shown if each) == 2

    on_stage(test, LogprobScript(), renderer=renderer())


class LogprobScript(ToolScript):
    """Says two words with log-probabilities."""

    def __init__(self) -> None:
        super().__init__(Script().play)


def refusal(script: Script, template: str = TOOLS_TEMPLATE, **parameters: Any) -> tuple[str, str | None, str]:
    answer = ask(script, template, **parameters)
    assert answer.status == 400
    assert not script.started, "nothing is dispatched"
    return answer.error["code"], answer.error["param"], answer.error["message"]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            "response_format",
        ),
        ({"guided_json": SCHEMA}, "guided_json"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"guided_choice": ["a", "b"]}, "guided_choice"),
        ({"guided_grammar": "root ::= a"}, "guided_grammar"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_time"}}},
            "tool_choice",
        ),
    ],
)
def test_an_engine_without_grammars_is_named_before_anything_is_dispatched(
    parameters: dict[str, Any], param: str
) -> None:
    code, named, message = refusal(ToolScript(saying("x")), **parameters)
    assert (code, named) == ("unsupported_parameter", param)
    assert "grammar" in message
    assert MODEL in message


@pytest.mark.parametrize(
    ("parameters", "code", "param"),
    [
        ({"tools": TOOLS, "tool_choice": "always"}, "invalid_request", "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "invalid_request", "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}},
            "invalid_request",
            "tool_choice",
        ),
        ({"tools": [CLOCK_TOOL, CLOCK_TOOL]}, "invalid_request", "tools"),
        ({"tools": [{"type": "search"}]}, "invalid_request", "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "invalid_request", "tools[0].function"),
        ({"response_format": {"type": "json_schema"}}, "invalid_request", "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "invalid_request", "response_format.type"),
        ({"guided_json": "{"}, "invalid_request", "guided_json"),
        ({"guided_json": "[]"}, "invalid_request", "guided_json"),
        ({"structured_outputs": {}}, "invalid_request", "structured_outputs"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "invalid_request", "guided_choice"),
        (
            {"tools": TOOLS, "response_format": {"type": "json_object"}},
            "unsupported_parameter",
            "response_format",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(parameters: dict[str, Any], code: str, param: str) -> None:
    assert refusal(ToolScript(saying("x"), ("grammar",)), **parameters)[:2] == (code, param)


def test_a_model_whose_format_is_not_known_refuses_tools() -> None:
    silent = TOOLS_TEMPLATE.replace("tool_call>", "call>")
    assert refusal(ToolScript(saying("x")), silent, tools=TOOLS)[:2] == ("unsupported_parameter", "tools")
    blind = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert refusal(ToolScript(saying("x")), blind, tools=TOOLS)[:2] == ("unsupported_parameter", "tools")


@pytest.mark.parametrize(
    ("parameters", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json", ""),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            "json",
            SCHEMA,
        ),
        ({"guided_json": SCHEMA}, "json", SCHEMA),
        ({"guided_json": msgspec.json.encode(SCHEMA).decode()}, "json", SCHEMA),
        ({"structured_outputs": {"json": SCHEMA}}, "json", SCHEMA),
        ({"structured_outputs": {"json_object": True}}, "json", ""),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["a", "é"]}, "choice", ["a", "é"]),
        ({"structured_outputs": {"grammar": "root ::= a"}}, "ebnf", "root ::= a"),
    ],
)
def test_what_the_answer_has_to_be_reaches_the_workers(parameters: dict[str, Any], kind: str, text: Any) -> None:
    script = ToolScript(saying("x"), ("grammar",))
    assert ask(script, **parameters).status == 200
    grammar = script.only.generation.grammar
    assert grammar is not None
    assert grammar.kind == kind
    assert (grammar.text if isinstance(text, str) else msgspec.json.decode(grammar.text)) == text


def test_completions_may_be_bound_too() -> None:
    script = ToolScript(saying("x"), ("grammar",))

    async def test(stage: Stage) -> None:
        assert (await stage.complete("x", guided_regex="a+")).status == 200

    on_stage(test, script, renderer=renderer())
    assert script.only.generation.grammar is not None


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_function_binds_the_answer_to_its_parameters(stream: bool) -> None:
    script = ToolScript(saying('{"ci', 'ty":"Oslo"}'), ("grammar",))
    choice = {"type": "function", "function": {"name": "get_weather"}}
    answer = ask(script, THINKING_TEMPLATE, tools=TOOLS, tool_choice=choice, stream=stream)
    grammar = script.only.generation.grammar
    assert grammar is not None
    assert msgspec.json.decode(grammar.text) == WEATHER["function"]["parameters"]  # type: ignore[index]
    if stream:
        message = gathered(answer.events())
        assert message["tool_calls"][0]["arguments"] == '{"city":"Oslo"}'
        assert message["finish_reason"] == "tool_calls"
    else:
        (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "get_weather", "arguments": '{"city":"Oslo"}'}


def test_a_required_call_binds_the_answer_to_calls_of_any_tool() -> None:
    said = '[{"name": "get_weather", "parameters": {"city": "Oslo"}}, {"name": "get_time", "parameters": {}}]'
    script = ToolScript(saying(*said), ("grammar",))
    message = ask(script, tools=TOOLS, tool_choice="required").json()["choices"][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather", "get_time"]
    grammar = script.only.generation.grammar
    assert grammar is not None
    schema = msgspec.json.decode(grammar.text)
    assert [each["properties"]["name"]["enum"] for each in schema["items"]["anyOf"]] == [
        ["get_weather"],
        ["get_time"],
    ]
    assert schema["items"]["anyOf"][0]["properties"]["parameters"] == WEATHER["function"]["parameters"]  # type: ignore[index]
    assert "maxItems" not in schema


def test_definitions_of_several_schemas_do_not_meet() -> None:
    def tool(name: str, kind: str) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"x": {"$ref": "#/$defs/T"}}, "$defs": {"T": {"type": kind}}}
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    script = ToolScript(saying("[]"), ("grammar",))
    ask(script, tools=[tool("a", "string"), tool("b", "integer")], tool_choice="required", parallel_tool_calls=False)
    grammar = script.only.generation.grammar
    assert grammar is not None
    schema = msgspec.json.decode(grammar.text)
    assert schema["maxItems"] == 1
    for number, kind in enumerate(("string", "integer")):
        reference = schema["items"]["anyOf"][number]["properties"]["parameters"]["properties"]["x"]["$ref"]
        assert schema["$defs"][reference.removeprefix("#/$defs/")] == {"type": kind}


def test_special_tokens_are_text_only_where_a_format_is_made_of_them() -> None:
    script = ToolScript(saying("x"))
    ask(script, tools=TOOLS)
    assert not script.only.generation.special_text
    special = renderer().dialect
    assert not special.special_tools


def test_an_adapter_is_asked_for_by_its_name() -> None:
    script = ToolScript(saying("x"), adapters=("pirate",))

    async def test(stage: Stage) -> None:
        listed = (await stage.get("/v1/models")).json()["data"]
        assert [(each["id"], each.get("parent")) for each in listed] == [(MODEL, None), ("pirate", MODEL)]
        assert (await stage.get("/v1/models/pirate")).json()["parent"] == MODEL
        for stream in (False, True):
            answer = await stage.post("/v1/chat/completions", {**chat_body(), "model": "pirate", "stream": stream})
            assert answer.status == 200
            shown = answer.events()[0] if stream else answer.json()
            assert shown["model"] == "pirate"
        await stage.chat()

    on_stage(test, script, renderer=renderer())
    assert [(each.generation.model, each.generation.adapter) for each in script.started] == [
        (MODEL, "pirate"),
        (MODEL, "pirate"),
        (MODEL, ""),
    ]


def test_a_plain_request_is_read_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*_: object) -> None:
        raise AssertionError("a reader was made")

    monkeypatch.setattr(OutputParser, "__init__", unwanted)
    for stream in (False, True):
        script = ToolScript(saying("x"))
        answer = ask(script, stream=stream)
        generation = script.only.generation
        assert (generation.grammar, generation.adapter, generation.special_text) == (None, "", False)
        assert (answer.text() if stream else answer.json()["choices"][0]["message"]["content"]) == "x"
