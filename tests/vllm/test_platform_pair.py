"""One prefill and one decode worker with vLLM behind the OpenAI API: the tokens of one worker, of which decode has
computed nothing that was handed to it; adapters; bound answers; tool calls."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tandem.apps.cli.platform import Platform
from tandem.apps.cli.request_trace import PULL, number, place_of
from tandem.apps.cli.supervisor import ROUTER
from tests.vllm.lending import BLOCK_TOKENS, DEMO
from tests.vllm.plain_llm import answers
from tests.vllm.serving import Serving, serving, token_ids
from tests.vllm.tiny_adapter import write_adapter

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

ADAPTERS = ("tuned", "other", "third")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,8}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SPACES: dict[str, int] = {
    str(token): -100
    for text, token in json.loads((DEMO / "tokenizer.json").read_text())["model"]["vocab"].items()
    if not text.strip("ĠĊĉč")
}
"""Grammars of JSON allow any white space between any two parts, and so small a model fills its answers with it."""
PHONE = "[0-9]{3}-[a-z]{4}"
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "extra_body": {"top_k": 40}},
    "min-p": {"temperature": 1.2, "extra_body": {"min_p": 0.05}},
    "penalised": {"temperature": 0.8, "frequency_penalty": 0.6, "presence_penalty": 0.3},
    "repeating": {"temperature": 0.0, "extra_body": {"repetition_penalty": 1.2}},
    "json": {"temperature": 0.9, "extra_body": {"structured_outputs": {"json": SCHEMA}}},
    "regex": {"temperature": 1.0, "extra_body": {"structured_outputs": {"regex": PHONE}}},
}
LENGTHS = (2, 31, 32, 33, 63, 64, 65, 129)
"""Around the edges of blocks and of chunks."""
ANSWER = 250
CONVERSATIONS = 6
FETCHING = {"TANDEM_REUSE": "always", "TANDEM_CORE__PLACEMENT__TRANSFER_SETUP_MS": "0"}
"""What others have is brought, though so small a model computes it as fast."""
HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me about the weather in Paris."}]
TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": "look_up", "description": "finds a person", "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {
            "name": "wait",
            "parameters": {
                "type": "object",
                "properties": {"minutes": {"type": "integer", "minimum": 1, "maximum": 60}},
                "required": ["minutes"],
                "additionalProperties": False,
            },
        },
    },
]


@dataclass(frozen=True)
class Ask:
    """A completion of token ids."""

    prompt: tuple[int, ...]
    parameters: Mapping[str, Any]
    seed: int
    adapter: str = ""
    most: int = 20
    """Tokens of the answer."""


@dataclass(frozen=True)
class Told:
    """What came of it."""

    tokens: tuple[int, ...]
    text: str
    finish: str
    request_id: str
    cached: int


@dataclass(frozen=True)
class Wanted:
    """What one unified worker answers; `turns` by conversation."""

    first: list[Told]
    further: list[Told]
    turns: list[tuple[Told, Told]]


def prompt(length: int, base: int) -> tuple[int, ...]:
    return tuple(3 + (base * 37 + 11 * number * number) % 1500 for number in range(length))


def first_asks() -> list[Ask]:
    return [
        Ask(prompt(length, base), parameters, 1000 + length)
        for base, parameters in enumerate(KINDS.values())
        for length in LENGTHS
    ]


def further_asks() -> list[Ask]:
    """Prompts that begin like earlier ones, up to an edge of a block, beside it, and all of it."""
    return [
        Ask(prompt(length, base)[:kept] + prompt(more, 50 + base), KINDS["greedy"], 3)
        for base, (length, kept, more) in enumerate(((129, 128, 20), (129, 64, 1), (129, 100, 40), (65, 65, 0)))
    ]


def first_turn(conversation: int) -> Ask:
    return Ask(prompt(70, 70 + conversation), KINDS["greedy"], 4, most=ANSWER)


def second_turn(first: Ask, answer: Told) -> Ask:
    """What was said so far, and more."""
    return Ask((*first.prompt, *answer.tokens, *prompt(40, 90)), KINDS["greedy"], 5)


async def converse(platform: Serving, conversation: int, pause_s: float = 0.0) -> tuple[Told, Told]:
    """Both answers of a conversation of two turns."""
    (first,) = await tell(platform, [first_turn(conversation)])
    await asyncio.sleep(pause_s)
    (second,) = await tell(platform, [second_turn(first_turn(conversation), first)])
    return first, second


async def tell(platform: Serving, asks: Sequence[Ask]) -> list[Told]:
    """All of them, eight at a time."""
    room = asyncio.Semaphore(8)
    async with platform.client() as api:
        return list(await asyncio.gather(*(_tell(api, platform.model, ask, room) for ask in asks)))


async def _tell(api: openai.AsyncOpenAI, model: str, ask: Ask, room: asyncio.Semaphore) -> Told:
    parameters = dict(ask.parameters)
    more = {**parameters.pop("extra_body", {}), "return_token_ids": True}
    bound = "structured_outputs" in more
    async with room:
        answer = await api.completions.create(
            model=ask.adapter or model,
            prompt=list(ask.prompt),
            max_tokens=60 if bound else ask.most,
            seed=ask.seed,
            extra_body={**more, "ignore_eos": not bound},
            **parameters,
        )
    (choice,) = answer.choices
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(ask.prompt)
    details = answer.usage.prompt_tokens_details
    cached = details.cached_tokens if details is not None else 0
    return Told(tuple(token_ids(choice)), choice.text, choice.finish_reason, answer.id, cached or 0)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories by name."""
    places = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(DEMO, places / name, seed=seed) for seed, name in enumerate(ADAPTERS)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wanted() -> Wanted:
    async with serving(["--prefill", "0", "--decode", "1"]) as alone:
        first, further = await tell(alone, first_asks()), await tell(alone, further_asks())
        turns = await asyncio.gather(*(converse(alone, number) for number in range(CONVERSATIONS)))
        return Wanted(first, further, turns)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(adapters: dict[str, Path], wanted: Wanted) -> AsyncIterator[Serving]:
    """`wanted` is there first, so that no third engine runs beside the two."""
    flags = [part for place in adapters.values() for part in ("--adapter", str(place))]
    async with serving(["--prefill", "1", "--decode", "1", *flags], FETCHING, change=one_adapter_slot) as running:
        yield running


def one_adapter_slot(platform: Platform) -> None:
    """Adapters take turns; `spec.engine.extraArgs` says so in a `ModelService`."""
    for member in platform.members:
        if member.role != ROUTER:
            argv = (*member.command.argv, "--vllm.extra.max_loras", "1")
            member.command = replace(member.command, argv=argv)


async def test_tokens_are_those_of_one_worker_and_decode_computes_none_of_the_prompt(
    pair: Serving, wanted: Wanted
) -> None:
    first, further = first_asks(), further_asks()
    assert len(first) + len(further) >= 50
    told = [await tell(pair, first), await tell(pair, further)]
    for asks, found, right in zip((first, further), told, (wanted.first, wanted.further), strict=True):
        for ask, one, other in zip(asks, found, right, strict=True):
            about = f"{len(ask.prompt)} tokens, {dict(ask.parameters)}"
            assert (one.tokens, one.text, one.finish) == (other.tokens, other.text, other.finish), about
            await _assert_handed_off(pair, ask, one, about)
    assert [one.cached for one in told[1]] == [128, 64, 96, 64]
    for one in told[0]:
        assert one.tokens


async def _assert_handed_off(pair: Serving, ask: Ask, one: Told, about: str) -> None:
    """Prefill has computed the prompt but for what it found; decode has pulled what it did not find."""
    story = await pair.story(one.request_id)
    assert story.computed("decode-0") == 0, about
    pulls = [span for span in story.named(PULL) if place_of(span) == "decode-0"]
    assert len(pulls) == 1, about
    assert story.computed("prefill-0") == len(ask.prompt) - one.cached, about
    blocks = -(-len(ask.prompt) // BLOCK_TOKENS)
    assert 1 <= number(pulls[0], "blocks") <= blocks, about


async def test_the_second_turn_finds_the_answer_of_the_first(pair: Serving, wanted: Wanted) -> None:
    """Decode has computed the answer, and prefill brings it from there once it lies in decode's stage and the router
    has heard of it: some moments after the end of the first turn."""
    found = list[int]()
    for conversation, right in enumerate(wanted.turns):
        first, second = await converse(pair, conversation, pause_s=0.3 * (conversation + 1))
        assert (first.tokens, second.tokens) == (right[0].tokens, right[1].tokens)
        found.append(second.cached)
        # The last token of the answer was drawn and not computed.
        known = len(first_turn(conversation).prompt) + ANSWER - 1
        if second.cached == known // BLOCK_TOKENS * BLOCK_TOKENS:
            break
    else:
        pytest.fail(f"cached tokens of second turns: {found}")
    story = await pair.story(second.request_id)
    assert story.computed("prefill-0") == len(second_turn(first_turn(conversation), first).prompt) - second.cached


async def test_adapters_are_models_of_their_own_and_are_loaded_when_asked_for(
    pair: Serving, adapters: dict[str, Path]
) -> None:
    """More of them than can be in place at a time, beside requests without one."""
    models = ("", *ADAPTERS)
    asks = [Ask(prompt(length, 60), KINDS["greedy"], 1, model) for length in (20, 64, 90) for model in models]
    sampling = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True}
    plain = [
        {"prompt": ask.prompt, "sampling": sampling, "adapter": str(adapters[ask.adapter]) if ask.adapter else None}
        for ask in asks
    ]
    async with pair.client() as api:
        listed = {model.id: model async for model in api.models.list()}
    assert sorted(listed) == sorted([pair.model, *ADAPTERS])
    told = [one.tokens for one in await tell(pair, asks)]
    assert told == [tuple(tokens) for tokens in await asyncio.to_thread(answers, plain)]
    assert len(dict.fromkeys(told)) == len(asks)
    # Nobody's blocks are another's, and one's own are there again: all full ones, but for a last token.
    again = await tell(pair, asks)
    assert [one.tokens for one in again] == told
    assert [one.cached for one in again] == [0] * 4 + [63] * 4 + [64] * 4


async def test_an_adapter_that_is_not_there_is_refused(pair: Serving) -> None:
    async with pair.client() as api:
        with pytest.raises(openai.NotFoundError):
            await api.completions.create(model="nobody", prompt="x")


async def test_bound_answers_are_what_they_are_bound_to(pair: Serving) -> None:
    async with pair.client() as api:
        answer = await api.chat.completions.create(
            model=pair.model,
            messages=HI,
            temperature=1.0,
            seed=4,
            max_tokens=80,
            logit_bias=SPACES,
            response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
        )
        phone = await api.completions.create(
            model=pair.model, prompt="Call ", temperature=1.0, seed=5, max_tokens=40,
            extra_body={"structured_outputs": {"regex": PHONE}},
        )  # fmt: skip
        colour = await api.completions.create(
            model=pair.model, prompt="Sky is ", max_tokens=20, extra_body={"guided_choice": ["red", "blue"]}
        )
    assert answer.choices[0].finish_reason == "stop"
    _assert_person(answer.choices[0].message.content or "")
    assert re.fullmatch(PHONE, phone.choices[0].text)
    assert colour.choices[0].text in ("red", "blue")


async def test_a_required_call_is_one_of_the_tools(pair: Serving) -> None:
    async with pair.client() as api:
        for seed in range(4):
            answer = await api.chat.completions.create(
                model=pair.model,
                messages=HI,
                tools=TOOLS,
                tool_choice="required",
                parallel_tool_calls=False,
                temperature=1.0,
                seed=seed,
                max_tokens=120,
                logit_bias=SPACES,
            )
            (choice,) = answer.choices
            (call,) = choice.message.tool_calls or []
            assert call.type == "function"
            assert choice.finish_reason == "tool_calls"
            if call.function.name == "look_up":
                _assert_person(call.function.arguments)
            else:
                assert call.function.name == "wait"
                assert 1 <= json.loads(call.function.arguments)["minutes"] <= 60


async def test_a_named_call_streams_its_arguments(pair: Serving) -> None:
    async with pair.client() as api:
        stream = await api.chat.completions.create(
            model=pair.model,
            messages=HI,
            tools=TOOLS,
            tool_choice={"type": "function", "function": {"name": "look_up"}},
            temperature=1.0,
            seed=9,
            max_tokens=80,
            logit_bias=SPACES,
            stream=True,
        )
        chunks = [chunk async for chunk in stream]
    deltas = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    functions = [delta.function for delta in deltas if delta.function is not None]
    assert [function.name for function in functions if function.name] == ["look_up"]
    _assert_person("".join(function.arguments or "" for function in functions))


def _assert_person(text: str) -> None:
    person = json.loads(text)
    assert set(person) == {"name", "age"}
    assert re.fullmatch("[a-z]{1,8}", person["name"])
    assert 0 <= person["age"] <= 99
