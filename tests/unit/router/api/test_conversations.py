"""Whatever was asked before, a conversation has the tokens of one that is rendered and tokenized at once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.chat_templates.chat_template import Message
from router.api.chat_templates.render import FileRenderer, Renderer, SimpleRenderer, Tokenized
from router.api.chat_templates.templates import InlineTemplates
from router.api.conversations import Conversations
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.model.directory import open_model
from tandem.process.metrics import PrometheusMeter
from tests.worlds.chat_models import FAMILIES, Family, family_renderer, tokenizer_of
from tests.worlds.front_stage import Inline, Stage, on_stage
from tests.worlds.rendered import chat, done, rendered

T = TypeVar("T")
DAY_S = 86_400.0


class Calendar:
    """A clock that is set by hand; only its date is asked for."""

    wall_s = 1_800_000_000.0

    def now(self) -> float:
        return self.wall_s

    def wall(self) -> float:
        return self.wall_s


CALENDAR = Calendar()


class Counting:
    """A renderer that counts the characters it tokenizes."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.vocab_size = renderer.vocab_size
        self.cuts = renderer.cuts
        self.dialect, self.defaults = renderer.dialect, renderer.defaults
        self.render, self.chat = renderer.render, renderer.chat
        self.text, self.token_bytes = renderer.text, renderer.token_bytes
        self.characters = 0

    def tokenize(self, rendered: str) -> Tokenized:
        self.characters += len(rendered)
        return self._renderer.tokenize(rendered)


@cache
def renderer_of(name: str) -> Renderer:
    if name == "simulated":
        return SimpleRenderer(CALENDAR)
    if name == "demo":
        return FileRenderer(open_model("demo"), InlineTemplates(CALENDAR))
    family = next(family for family in FAMILIES if family.name == name)
    with TemporaryDirectory() as directory:
        return family_renderer(family, Path(directory), CALENDAR)


def outcome(work: Callable[[], bytes]) -> bytes | str:
    """Tokens, or why there are none."""
    try:
        return work()
    except TandemError as error:
        return error.message


NAMES = ("simulated", "demo", *(family.name for family in FAMILIES))
PIECES = (
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|begin|>",
        "<|user|>",
        "<|end|>",
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
    ),
    *(
        "<start_of_turn>",
        "<end_of_turn>",
        "<bos>",
        "<tool>",
        " ||",
        "<|",
        "|>",
        "<|im_",
        "_of_turn>",
        "[IN",
        "</think>",
    ),
    *(
        "<|im_start|>user\n",
        "{{ messages }}",
        "{% for m in messages %}",
        "{# no #}",
        "gap",
        "word",
        "words",
        " ",
        "\n",
    ),
    *("\n\n", "\t ", "", "é", "e", "\u0301", "\u0338", "\uff1c", "日本", "🦊", "1", "23", "a", "b", "The user asks"),
)
CONTENT = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(("user", "assistant", "user", "system")), "content": CONTENT},
    optional={"name": st.sampled_from(("ann", "<|im_end|>"))},
)
CHANGE = st.tuples(st.integers(0, 5), st.integers(0, 5), st.lists(TURN, min_size=1, max_size=3))
"""Of the conversations so far, which one goes on, after leaving out how many of its last messages, with what."""


def conversations(changes: Sequence[tuple[int, int, list[Message]]]) -> list[list[Message]]:
    """Conversations that grow, branch, are edited and begin anew."""
    found: list[list[Message]] = []
    for which, without, turns in changes:
        before = found[-1 - which] if which < len(found) else []
        kept = before[: max(0, len(before) - without)]
        answered = [{"role": "assistant", "content": "an answer"}] if kept and kept[-1]["role"] == "user" else []
        found.append([*kept, *answered, *turns])
    return found


@pytest.mark.parametrize("name", NAMES)
@given(changes=st.lists(CHANGE, min_size=1, max_size=8), bound=st.sampled_from((0, 3_000, 1 << 20)))
def test_cached_tokens_are_those_of_the_whole(name: str, changes: Any, bound: int) -> None:
    renderer = renderer_of(name)
    cached = Conversations(renderer, Inline(), CALENDAR, PrometheusMeter(), bound)
    for number, messages in enumerate(conversations(changes)):
        CALENDAR.wall_s += DAY_S * (number % 3 == 2)
        found = outcome(lambda messages=messages: done(cached.tokens(messages, "salt")))  # type: ignore[misc]
        assert found == outcome(lambda messages=messages: chat(renderer, messages))  # type: ignore[misc]
        assert cached.size_bytes <= bound


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("simulated", "thinking")])
def test_a_conversation_that_goes_on_costs_what_is_new(name: str) -> None:
    renderer = Counting(renderer_of(name))
    cached = Conversations(renderer, Inline(), CALENDAR, PrometheusMeter(), 1 << 20)
    messages = [{"role": "user", "content": "words and words " * 20}]
    for turn in range(6):
        before, renderer.characters = renderer.characters, 0
        assert done(cached.tokens(messages, "salt")) == chat(renderer, messages)
        assert turn < 2 or renderer.characters <= before + 10
        messages += [{"role": "assistant", "content": f"answer {turn}"}, {"role": "user", "content": f"why, {turn}?"}]
    assert renderer.characters < 200
    assert len(rendered(renderer, messages)) > 500


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_tokens_are_those_that_the_library_gives_with_their_places_in_the_text(family: Family) -> None:
    renderer, tokenizer = renderer_of(family.name), tokenizer_of(family)
    for content in PIECES:
        text = rendered(renderer, [{"role": "user", "content": f"word {content} word"}])
        assert renderer.tokenize(text).packed == pack_tokens(tokenizer.encode(text, add_special_tokens=False).ids)
        assert renderer.text(content) == pack_tokens(tokenizer.encode(content).ids)


def test_conversations_that_begin_alike_share_the_beginning_and_nobody_elses_is_found() -> None:
    renderer = Counting(renderer_of("chatml"))
    cached = Conversations(renderer, Inline(), CALENDAR, PrometheusMeter(), 1 << 20)
    system = {"role": "system", "content": "Be of help. " * 50}

    def cost(salt: str, question: str) -> int:
        renderer.characters = 0
        messages = [system, {"role": "user", "content": question}]
        assert done(cached.tokens(messages, salt)) == chat(renderer, messages)
        return renderer.characters

    assert cost("one", "why?") > 600
    assert cost("one", "when?") < 100
    assert cost("other", "when?") > 600
    assert cost("other", "where?") < 100


def test_what_is_known_and_what_is_tokenized_is_counted() -> None:
    renderer, meter = renderer_of("chatml"), PrometheusMeter()
    cached = Conversations(renderer, Inline(), CALENDAR, meter, 1 << 20)
    messages = [{"role": "system", "content": "x " * 500}, {"role": "user", "content": "why?"}]
    for _ in range(3):
        done(cached.tokens(messages, ""))
    figures = dict(
        line.rsplit(" ", 1) for line in meter.render().decode().splitlines() if line.startswith("tandem_prompt_char")
    )
    known = float(figures['tandem_prompt_characters_total{how="known"}'])
    tokenized = float(figures['tandem_prompt_characters_total{how="tokenized"}'])
    assert known + tokenized == 3 * len(rendered(renderer, messages))
    assert known > 2000


def test_a_model_that_writes_a_special_token_itself_is_not_cut_there(tmp_path: Path) -> None:
    family = replace(FAMILIES[0], special=("<|im_start|>", "<|im_end|>", "<unk>"), byte_level=False, composed=False)
    renderer = family_renderer(family, tmp_path, CALENDAR)
    assert renderer.cuts is not None
    ids = renderer.cuts.tokens
    places = renderer.cuts.places("<|im_start|>a<|im_end|>", [ids["<|im_start|>"], 99, ids["<|im_end|>"]])
    assert list(places.characters) == [0, 13]
    mistaken = renderer.cuts.places("<|im_start|>a", [ids["<|im_start|>"], ids["<|im_end|>"]])
    assert not mistaken.characters


def test_requests_get_the_tokens_of_the_whole_under_their_own_salt() -> None:
    renderer = renderer_of("demo")
    messages = [{"role": role, "content": "hi"} for role in ("user", "assistant", "user")]

    async def test(stage: Stage) -> None:
        counter = 'tandem_prompt_characters_total{how="known"} '
        known = []
        for salt in ("one", "one", "other"):
            assert (await stage.chat(messages=messages, cache_salt=salt)).status == 200
            lines = stage.meter.render().decode().splitlines()
            known.append(next(float(line.removeprefix(counter)) for line in lines if line.startswith(counter)))
        assert [each.generation.prompt for each in stage.script.started] == [chat(renderer, messages)] * 3
        assert known[0] == 0.0
        assert known[1] == known[2] > 0.0

    on_stage(test, renderer=renderer)
