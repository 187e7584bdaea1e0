"""How a model's form of tool calls and reasoning is found, and what an operator may say instead."""

from dataclasses import replace

import pytest

from router.api.openai.schema import ChatMessage, ChatRequest, FunctionSpec, Tool
from router.api.parsers.dialect import Dialect, ParserSettings, dialect_of
from router.api.parsers.output import ParserSpec
from router.api.request_features import opened, request_features
from router.generation import ServedModel
from router.process_settings import ProcessSettings
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens

HERMES = "{{ tools }} answer within <tool_call></tool_call>"
MISTRAL = "[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]"
LLAMA = '{{ tools }} respond with {"name": x, "parameters": y} <|start_header_id|>ipython'
CODER = "{{ tools }}<tool_call>\n<function=example>"


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        (HERMES, "hermes", False),
        (MISTRAL, "mistral", False),
        (LLAMA, "llama3_json", False),
        ("{{ tools }}<|python_tag|>", "llama3_json", False),
        (CODER, "", False),
        ("{{ messages }}", "", False),
        (HERMES + "{% if enable_thinking %}<think>{% endif %}", "hermes", True),
        ("content.split('</think>')", "", True),
    ],
)
def test_the_template_shows_the_form(template: str, tools: str, reasoning: bool) -> None:
    found = dialect_of(template, ParserSettings(), takes_tools=True, special=())
    assert (found.tools, found.reasoning) == (tools, reasoning)


def test_an_operator_may_know_better() -> None:
    said = ParserSettings("mistral", "think")
    found = dialect_of(HERMES, said, takes_tools=True, special=())
    assert (found.tools, found.reasoning) == ("mistral", True)
    none = dialect_of(HERMES + "<think>", ParserSettings("none", "none"), takes_tools=True, special=())
    assert (none.tools, none.reasoning) == ("none", False)


@pytest.mark.parametrize("name", ["tool_parser", "reasoning_parser"])
def test_a_parser_that_there_is_not_stops_the_start(name: str) -> None:
    with pytest.raises(TandemError, match=name) as refused:
        replace(ProcessSettings(workers=("here:1",)), **{name: "xml"})  # type: ignore[arg-type]
    assert (refused.value.code, refused.value.param) == ("bad_setting", name)


def test_tags_that_are_special_tokens_are_asked_for_with_tools_alone() -> None:
    dialect = dialect_of(MISTRAL, ParserSettings(), takes_tools=True, special=("[TOOL_CALLS]", "</s>"))
    assert dialect == Dialect("mistral", False, True, True, False)
    plain = ChatRequest(model="m", messages=[ChatMessage(role="user", content="x")])
    tooled = ChatRequest(
        model="m", messages=plain.messages, tools=[Tool("function", FunctionSpec("f"))], parallel_tool_calls=False
    )
    model = ServedModel("m", 100, ())
    assert not request_features(plain, model, dialect).special_text
    wanted = request_features(tooled, model, dialect)
    assert wanted.special_text
    assert wanted.speech == ParserSpec("mistral", ("f",), single=True)


@pytest.mark.parametrize(
    ("prompt", "begun"),
    [("…<think>\n", True), ("<think>", True), ("<think>\n\n</think>\n\n", False), ("user", False)],
)
def test_the_prompt_may_have_begun_the_reasoning(prompt: str, begun: bool) -> None:
    packed = pack_tokens(list(prompt.encode()))
    assert opened(ParserSpec(reasoning=True), packed, lambda token: bytes((token,))).opened is begun
