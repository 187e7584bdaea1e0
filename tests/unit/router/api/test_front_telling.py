"""A request's story as its tenant and as an operator see it, and the place in the text where a prompt parted."""

from pathlib import Path

import msgspec
import pytest

from router.api.auth import Keys, load_keys
from router.api.chat_templates.render import SimpleRenderer
from router.api.prompt_texts import PromptTexts, place_in_text
from tandem.core.kv import pack_tokens
from tandem.core.spans import FOR_OPERATORS, Attribute, Span
from tandem.process.system import SystemClock
from tests.worlds.front_stage import Stage, on_stage

RENDERER = SimpleRenderer(SystemClock())
MISSED: dict[str, Attribute] = {
    "missed": "never_seen",
    "missed_token": 3,
    "missed_because": "…",
    f"{FOR_OPERATORS}missed_because": "another tenant's",
}


def keys(folder: Path) -> Keys:
    """Keys `a` and `b` of tenants of the same names, and `root` of an operator."""
    content = {"salt_key": "x" * 16, "keys": {"a": "a", "b": "b", "root": {"tenant": "ops", "operator": True}}}
    (folder / "keys").write_bytes(msgspec.json.encode(content))
    return load_keys(folder / "keys")


async def ask(stage: Stage, prompt: str, key: str, request_id: str) -> str:
    """A request whose dispatch says why it missed; gives the id of its root span."""
    headers = {"authorization": f"Bearer {key}", "x_request_id": request_id}
    await stage.post("/v1/completions", {"model": "tiny", "prompt": prompt}, **headers)
    generation = stage.script.started[-1].generation
    span_id = f"dispatch-of-{key}"
    parent = generation.trace.span_id
    stage.recorder.record(request_id, [Span("t", span_id, parent, "dispatch", "router", 1.0, 2.0, MISSED)], key)
    return parent


async def told(stage: Stage, key: str, request_id: str) -> list[Span]:
    answer = await stage.get(f"/v1/requests/{request_id}", authorization=f"Bearer {key}")
    return msgspec.convert(answer.json()["spans"], list[Span]) if answer.status == 200 else []


def test_an_operator_sees_more_and_everybodys_a_tenant_only_its_own(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        await ask(stage, "abcdef", "a", "one")
        (own,) = [span for span in await told(stage, "a", "one") if span.name == "dispatch"]
        assert own.attributes["missed_because"] == "…"
        assert not [name for name in own.attributes if name.startswith(FOR_OPERATORS)]
        assert (own.attributes["missed_before"], own.attributes["missed_after"]) == ("abc", "def")
        assert await told(stage, "b", "one") == []
        (seen,) = [span for span in await told(stage, "root", "one") if span.name == "dispatch"]
        assert seen.attributes[f"{FOR_OPERATORS}missed_because"] == "another tenant's"

    on_stage(test, keys=keys(tmp_path))


def test_an_id_that_two_tenants_used_shows_each_its_own_request(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        roots = {"a": await ask(stage, "secret of a", "a", "same"), "b": await ask(stage, "of b", "b", "same")}
        for key, root in roots.items():
            spans = await told(stage, key, "same")
            assert {span.span_id for span in spans if span.name == "request"} == {root}
            assert {span.parent_id for span in spans if span.name == "dispatch"} == {root}
        (own,) = [span for span in await told(stage, "b", "same") if span.name == "dispatch"]
        assert own.attributes["missed_before"] == "of "

    on_stage(test, keys=keys(tmp_path))


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_tenant_hides_no_story_of_another_by_using_its_id(first: str, tmp_path: Path) -> None:
    """However often it does, before or after."""

    async def test(stage: Stage) -> None:
        roots: dict[str, list[str]] = {"a": [], "b": []}
        for key in (first, "b" if first == "a" else "a"):
            roots[key] = [await ask(stage, f"of {key}", key, "same") for _ in range(1 if key == "a" else 300)]
        own = await told(stage, "a", "same")
        assert {span.name for span in own} == {"request", "tokenize", "dispatch"}
        assert [span.span_id for span in own if span.name == "request"] == roots["a"]
        others = await told(stage, "b", "same")
        assert [span.span_id for span in others if span.name == "request"] == roots["b"][:1]
        assert not {span.span_id for span in others} & {span.span_id for span in own}
        seen = await told(stage, "root", "same")
        assert [span.span_id for span in seen if span.name == "request"] == roots[first][:1]

    on_stage(test, keys=keys(tmp_path))


def test_a_place_in_the_text_is_counted_in_characters_and_lines() -> None:
    text = "first\nsecond é line"
    tokens = tuple(text.encode())
    place = place_in_text(tokens, len("first\nsecond é".encode()), RENDERER)
    assert (place.character, place.line, place.column) == (14, 2, 9)
    assert (place.before, place.after) == ("first\nsecond é", " line")
    start = place_in_text(tokens, 0, RENDERER)
    assert (start.character, start.line, start.column, start.before) == (0, 1, 1, "")
    inside = place_in_text(tokens, len(b"first\nsecond ") + 1, RENDERER)
    assert inside.character == 13, "a character is not there before its last byte"


def test_texts_are_bounded_and_the_oldest_go_first() -> None:
    texts = PromptTexts(100)
    for number in range(5):
        texts.keep("t", str(number), pack_tokens([65] * 10))
    assert [texts.place("t", str(number), 1, RENDERER) is not None for number in range(5)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert texts.place("other", "4", 1, RENDERER) is None
    assert texts.place("t", "4", 11, RENDERER) is None
    texts.keep("t", "large", pack_tokens([65] * 100))
    assert texts.place("t", "4", 1, RENDERER) is not None
