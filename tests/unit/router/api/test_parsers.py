"""Parsers of tool calls and reasoning: what they find, that cuts change nothing, and that no character is lost."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.parsers.delta import ParsedDelta
from router.api.parsers.json_text import JsonText
from router.api.parsers.output import OutputParser, ParserSpec

Found = tuple[str, str, list[tuple[str, str]]]
"""Content, reasoning, and (name, arguments) of every call."""

HERMES = ParserSpec(calls="hermes", names=("f", "g"))
LLAMA = ParserSpec(calls="llama3_json", names=("f", "g"))
MISTRAL = ParserSpec(calls="mistral", names=("f", "g"))
ARRAY = ParserSpec(calls="array", names=("f", "g"))
NAMED = ParserSpec(calls="named", names=("f",), single=True)
THINK = ParserSpec(reasoning=True)
OPENED = ParserSpec(reasoning=True, opened=True)
BOTH = ParserSpec(calls="hermes", names=("f", "g"), reasoning=True)
ALL = (HERMES, LLAMA, MISTRAL, ARRAY, NAMED, THINK, OPENED, BOTH)
FORMATS = (HERMES, LLAMA, MISTRAL, BOTH)


class Reader:
    """Gathers what a voice says."""

    def __init__(self, speech: ParserSpec) -> None:
        self.output_parser = OutputParser(speech, "request", 0)
        self.content = self.reasoning = ""
        self.calls: list[tuple[str, str]] = []
        self.ids: list[str] = []

    def feed(self, text: str) -> None:
        said = ParsedDelta()
        self.output_parser.feed(text, said)
        self._take(said)

    def finish(self) -> Found:
        said = ParsedDelta()
        self.output_parser.finish(said)
        self._take(said)
        return self.found

    @property
    def found(self) -> Found:
        return self.content, self.reasoning, list(self.calls)

    def _take(self, said: ParsedDelta) -> None:
        self.content += said.content
        self.reasoning += said.reasoning
        for piece in said.calls:
            if piece.name:
                assert piece.index == len(self.calls), "calls begin in order"
                assert piece.id
                self.calls.append((piece.name, ""))
                self.ids.append(piece.id)
            assert piece.index == len(self.calls) - 1, "arguments belong to the latest call"
            name, arguments = self.calls[-1]
            self.calls[-1] = name, arguments + piece.arguments


def read(speech: ParserSpec, pieces: Sequence[str]) -> Found:
    reader = Reader(speech)
    for piece in pieces:
        reader.feed(piece)
    return reader.finish()


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[begin:end] for begin, end in pairwise(ends)]


WELL = [
    (
        HERMES,
        '<tool_call>\n{"name": "f", "arguments": {"a": [1, "}"]}}\n</tool_call>',
        "",
        [("f", '{"a": [1, "}"]}')],
    ),
    (
        HERMES,
        'Let me see.\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n<tool_call>{"arguments":{"b":2},"name":"g"}'
        "</tool_call>\n",
        "Let me see.",
        [("f", "{}"), ("g", '{"b":2}')],
    ),
    (HERMES, '<tool_call>{"name":"f"}</tool_call> Done.', "Done.", [("f", "{}")]),
    (HERMES, 'So: <tool_call>{"name":"f"}</tool_call>\n\nDone.', "So: Done.", [("f", "{}")]),
    (HERMES, '<tool_call>{"name":"f","arguments":"{\\"a\\":1}"}', "", [("f", '{"a":1}')]),
    (HERMES, '<tool_call>{"name":"f","arguments":null}</tool_c', "", [("f", "{}")]),
    (
        HERMES,
        '<tool_call>{"name":"f","arguments":{"a":"<tool_call> \\u00e9"}}',
        "",
        [("f", '{"a":"<tool_call> \\u00e9"}')],
    ),
    (HERMES, '<tool_call>{"name":"unheard","arguments":{}}</tool_call>', "", [("unheard", "{}")]),
    (LLAMA, '{"name": "f", "parameters": {"x": "y"}}', "", [("f", '{"x": "y"}')]),
    (
        LLAMA,
        ' {"type":"function","name":"f","parameters":{}}; {"name":"g","arguments":{}}',
        "",
        [("f", "{}"), ("g", "{}")],
    ),
    (LLAMA, '<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", "{}")]),
    (LLAMA, 'I look.\n<|python_tag|>{"name": "unheard", "parameters": {}}', "I look.", [("unheard", "{}")]),
    (LLAMA, '{"name": "f", "parameters": {}} and so on', "and so on", [("f", "{}")]),
    (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    (MISTRAL, 'x [TOOL_CALLS]f[ARGS]{"a":1}[TOOL_CALLS]g[ARGS]{}', "x", [("f", '{"a":1}'), ("g", "{}")]),
    (MISTRAL, '[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
    (MISTRAL, '[TOOL_CALLS]f{"a": 3} then', "then", [("f", '{"a": 3}')]),
    (ARRAY, '[{"name":"f","parameters":{"a":1}}, {"name":"g","parameters":{}}]', "", [("f", '{"a":1}'), ("g", "{}")]),
    (NAMED, '{"a": 1}', "", [("f", '{"a": 1}')]),
]


@pytest.mark.parametrize(("speech", "text", "content", "calls"), WELL)
def test_calls_are_found(speech: ParserSpec, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert read(speech, [text]) == (content, "", calls)
    assert read(speech, list(text)) == (content, "", calls)


@pytest.mark.parametrize(
    ("speech", "text"),
    [
        (HERMES, "a < b, and <tool_ is no tag <tool_c"),
        (HERMES, ' <tool_call> {"nome": 1} </tool_call> z '),
        (HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        (HERMES, '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "f", "arguments"'),
        (HERMES, "<tool_call>f(x)</tool_call>"),
        (LLAMA, '  {"answer": 3}\n'),
        (LLAMA, '{"name": "Bob", "age": 3}'),
        (LLAMA, 'See {"name": "f", "parameters": {}}'),
        (LLAMA, "<|python_tag|>print(1)"),
        (LLAMA, '{"name": "f", "para'),
        (MISTRAL, "[TOOL_CALLS]see the docs (1)"),
        (MISTRAL, "[TOOL_CALLS][1, 2]"),
        (MISTRAL, "[TOOL_CALLS]"),
        (MISTRAL, "\n[TOOL_CALLS] f[ARG]{}"),
        (ARRAY, '{"name":"f"}'),
        (THINK, "no <think>x</think>"),
        (THINK, "  \n"),
        (THINK, "<thin ice"),
    ],
)
def test_what_is_no_call_is_content_to_the_last_character(speech: ParserSpec, text: str) -> None:
    assert read(speech, [text]) == (text, "", [])


@pytest.mark.parametrize(
    ("text", "content", "call"),
    [
        ('<tool_call>{"name":"f","arguments":{"a":1]}}</tool_call>x', "]}}</tool_call>x", ("f", '{"a":1')),
        ('<tool_call>{"name":"f","arguments":{"a":1}, oh}', "oh}", ("f", '{"a":1}')),
        ('<tool_call>{"name":"f","arguments":{}} no', "no", ("f", "{}")),
    ],
)
def test_a_call_that_breaks_off_goes_on_as_content(text: str, content: str, call: tuple[str, str]) -> None:
    found = read(HERMES, [text])
    assert found[2] == [call]
    assert found[0].endswith(content)


@pytest.mark.parametrize(
    ("speech", "text", "found"),
    [
        (THINK, "<think>\nhm <b\n</think>\n\nYes. ", ("Yes. ", "hm <b", [])),
        (THINK, " <think>hm", ("", "hm", [])),
        (OPENED, "hm\n</think>\n\nYes", ("Yes", "hm", [])),
        (OPENED, "<think>\nhm</think>Yes", ("Yes", "hm", [])),
        (OPENED, "hm </thi", ("", "hm </thi", [])),
        (BOTH, '<think>call f?</think>\n\n<tool_call>{"name":"f"}</tool_call>', ("", "call f?", [("f", "{}")])),
        (BOTH, '<think><tool_call>{"name":"f"}</tool_call>', ("", '<tool_call>{"name":"f"}</tool_call>', [])),
        (BOTH, "Yes </think> no", ("Yes </think> no", "", [])),
    ],
)
def test_reasoning_is_told_apart(speech: ParserSpec, text: str, found: Found) -> None:
    assert read(speech, [text]) == found
    assert read(speech, list(text)) == found


FRAGMENTS = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *('{"name": "f", "arguments": {"a": 1}}', '{"name":"g","parameters":{"b":[true,null,"x\\n"]}}', '"name"', '"f"'),
    *(":", "{", "}", "[", "]", ",", ";", " ", "\n", '"', "\\", "\\u00e9", "1.5e3", "-", "tru", "true", "text", "é🦊"),
    *("f", "<", "</", "[TOOL"),
)
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=14).map("".join)


@given(st.sampled_from(ALL), TEXTS, st.lists(st.integers(0, 10_000), max_size=8))
def test_nothing_depends_on_how_text_is_cut(speech: ParserSpec, text: str, places: list[int]) -> None:
    whole = read(speech, [text])
    assert read(speech, cut(text, places)) == whole
    assert read(speech, list(text)) == whole


@given(st.sampled_from(ALL), TEXTS, st.lists(st.integers(0, 10_000), max_size=4))
def test_what_was_said_so_far_does_not_depend_on_cuts_either(
    speech: ParserSpec, text: str, places: list[int]
) -> None:
    """A client that comes back at any place goes on exactly where it was."""
    one_by_one, in_pieces = Reader(speech), Reader(speech)
    so_far = []
    for character in text:
        one_by_one.feed(character)
        so_far.append(one_by_one.found)
    read_until = 0
    for piece in cut(text, places):
        in_pieces.feed(piece)
        read_until += len(piece)
        if read_until:
            assert in_pieces.found == so_far[read_until - 1]


@given(st.sampled_from(FORMATS), TEXTS)
def test_without_calls_and_reasoning_all_of_the_text_is_content(speech: ParserSpec, text: str) -> None:
    content, reasoning, calls = read(speech, [text])
    if not calls and not reasoning and "<think>" not in text:
        assert content == text


@given(st.sampled_from(WELL), st.integers(0, 400), st.sampled_from(["", "}", '"', "x", ",", "<", "\\"]))
def test_a_damaged_call_loses_no_character(well: tuple[ParserSpec, str, str, object], at: int, instead: str) -> None:
    """Whatever is neither content nor arguments is syntax of the format, names or the space around."""
    speech, text, _, _ = well
    at %= len(text)
    damaged = text[:at] + instead + text[at + 1 :]
    content, _, calls = read(speech, [damaged])
    if not calls:
        assert content == damaged
        return
    left = damaged
    for piece in (content, *(arguments for _, arguments in calls)):
        for character in piece:
            assert character in left or character in '{}"\\', (piece, damaged)
            left = left.replace(character, "", 1)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=4)


@given(OBJECTS, st.sampled_from([None, 1]), st.booleans(), st.text(max_size=8))
def test_any_arguments_arrive_as_they_were_written(
    arguments: dict[str, object], indent: int | None, escaped: bool, before: str
) -> None:
    written = json.dumps(arguments, indent=indent, ensure_ascii=escaped)
    assert read(HERMES, [f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'])[2] == [("f", written)]
    assert read(LLAMA, [f'{{"name": "f", "parameters": {written}}}'])[2] == [("f", written)]
    assert read(MISTRAL, [f"[TOOL_CALLS]f[ARGS]{written}"])[2] == [("f", written)]
    assert read(MISTRAL, [f'[TOOL_CALLS][{{"arguments": {written}, "name": "f"}}]'])[2] == [("f", written)]


@given(JSON_VALUES, st.text(max_size=3))
def test_json_ends_where_it_ends(value: object, rest: str) -> None:
    text = json.dumps([value])
    follower = JsonText()
    assert follower.taken(text + rest, 0) == len(text)
    assert follower.ended
    assert not follower.broken


@given(st.text(alphabet='{}[]",:\\ u019ae.+-tfn\n', max_size=12))
def test_json_is_told_from_what_is_none(text: str) -> None:
    follower = JsonText()
    taken = follower.taken(text + " ", 0)
    try:
        json.loads(text)
        right = True
    except ValueError:
        right = False
    if right:
        assert follower.ended
        assert text[taken:].strip(" \n") == ""
    elif follower.ended:
        assert json.loads(text[:taken]) is not Ellipsis
        assert text[taken:].strip(" \n") != ""


def test_only_the_first_call_is_told_where_one_is_wanted() -> None:
    speech = ParserSpec(calls="hermes", single=True)
    text = (
        '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call><tool_call>{"name":"g","arguments":{}}</tool_call>.'
    )
    assert read(speech, list(text)) == (".", "", [("f", '{"a":1}')])


def test_ids_are_the_request_s_own_and_the_same_whenever_they_are_drawn() -> None:
    def ids(speech: ParserSpec, source: str, sequence: int) -> list[str]:
        output_parser, said = OutputParser(speech, source, sequence), ParsedDelta()
        output_parser.feed('[TOOL_CALLS][{"name":"f"},{"name":"f"}]' if speech is MISTRAL else TWO, said)
        return [piece.id for piece in said.calls]

    first = ids(HERMES, "r1", 0)
    assert first == ids(HERMES, "r1", 0)
    drawn = [*first, *ids(HERMES, "r1", 1), *ids(HERMES, "r2", 0)]
    assert len(set(drawn)) == 6
    assert all(each.startswith("call_") for each in drawn)
    assert all(len(each) == 9 and each.isalnum() for each in ids(MISTRAL, "r1", 0))


TWO = '<tool_call>{"name":"f"}</tool_call><tool_call>{"name":"f"}</tool_call>'
