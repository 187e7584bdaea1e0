"""Position ownership: whatever two workers repeat and however they interleave, the truth is delivered once."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.positions import Mismatch, Positions
from tandem.core.messages import SequenceOutput, TokenLogprob


def output(position: int, tokens: tuple[int, ...], text: str = "", offset: int = 0, **more: object) -> SequenceOutput:
    return SequenceOutput(1, 0, position, tokens, text, offset, **more)  # type: ignore[arg-type]


def test_the_next_position_is_accepted_as_it_is() -> None:
    positions = Positions(0)
    first = output(1, (5,), "a")
    assert positions.accept(first) is first
    assert positions.next_position == 2
    assert positions.text_chars == 1


def test_an_equal_repeat_is_dropped_and_a_different_one_is_a_conflict() -> None:
    positions = Positions(0)
    positions.accept(output(1, (5, 6), "ab"))
    assert positions.accept(output(1, (5,), "a")) is None
    assert positions.accept(output(2, (6,), "b", 1)) is None
    conflict = positions.accept(output(2, (7,), "b", 1))
    assert isinstance(conflict, Mismatch)
    assert conflict.kind == "conflict"
    assert "position 2 is 7, but 6 was accepted" in conflict.reason
    assert positions.tokens == [5, 6]


def test_a_missing_position_or_missing_text_is_a_gap() -> None:
    positions = Positions(0)
    positions.accept(output(1, (5,), "a"))
    for late in (output(3, (7,), "c", 2), output(2, (6,), "b", 2), output(0, (6,), "b", 1)):
        gap = positions.accept(late)
        assert isinstance(gap, Mismatch)
        assert gap.kind == "gap"
    assert positions.tokens == [5]


def test_a_partly_repeated_output_yields_its_new_part_with_its_logprobs() -> None:
    positions = Positions(0)
    positions.accept(output(1, (5, 6), "ab"))
    logprobs = tuple(TokenLogprob(-float(index)) for index in range(3))
    new = positions.accept(output(2, (6, 7, 8), "bcd", 1, finish="stop", logprobs=logprobs))
    assert new == output(3, (7, 8), "cd", 2, finish="stop", logprobs=logprobs[1:])
    assert positions.finish == "stop"


def test_text_that_ends_before_what_was_accepted_is_a_conflict() -> None:
    positions = Positions(0)
    positions.accept(output(1, (5,), "abc"))
    assert isinstance(positions.accept(output(1, (5, 6), "ab")), Mismatch)


def test_an_end_where_the_sequence_went_on_is_a_conflict_and_everything_after_the_end_is_late() -> None:
    positions = Positions(0)
    positions.accept(output(1, (5,), "a"))
    assert isinstance(positions.accept(output(1, (5,), "a", finish="stop")), Mismatch)
    positions.accept(output(2, (6,), "b", 1, finish="length"))
    assert positions.accept(output(3, (9,), "z", 2)) is None
    assert positions.accept(output(1, (9,), "z")) is None


def test_held_back_text_may_come_with_the_finish_alone() -> None:
    positions = Positions(0)
    positions.accept(output(1, (5,), ""))
    last = output(2, (), "tail", finish="stop")
    assert positions.accept(last) is last
    assert positions.text_chars == 4


def test_the_finish_may_come_without_a_token_and_with_text_that_another_worker_did_not_hold_back() -> None:
    """A sequence whose finish is dropped never ends for its client."""
    positions = Positions(0)
    positions.accept(output(1, (5,), "ab"))
    assert positions.accept(output(2, (), "b tail", 1, finish="stop")) == output(2, (), " tail", 2, finish="stop")
    assert positions.finish == "stop"


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[SequenceOutput], list[list[SequenceOutput]]]:
    """A truth with some text held back, and several streams of it, cut at random, each from a random start."""
    tokens = draw(st.lists(st.integers(0, 50), min_size=1, max_size=12))
    pieces = draw(st.lists(st.sampled_from(["", "x", "yz", "é"]), min_size=len(tokens), max_size=len(tokens)))
    offsets = [sum(len(piece) for piece in pieces[:index]) for index in range(len(tokens) + 1)]
    truth = [
        output(i + 1, (token,), pieces[i], offsets[i], finish="length" if i == len(tokens) - 1 else None)
        for i, token in enumerate(tokens)
    ]
    found = []
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(tokens) - 1))
        stop = draw(st.integers(at, len(tokens)))
        found.append(_cut(draw, truth[at:stop]))
    found.append(_cut(draw, truth))
    return truth, found


def _cut(draw: st.DrawFn, truth: list[SequenceOutput]) -> list[SequenceOutput]:
    parts = []
    while truth:
        size = draw(st.integers(1, 3))
        part, truth = truth[:size], truth[size:]
        tokens = tuple(token for each in part for token in each.tokens)
        text = "".join(each.text for each in part)
        parts.append(msgspec.structs.replace(part[0], tokens=tokens, text=text, finish=part[-1].finish))
    return parts


@given(streams(), st.randoms(use_true_random=False))
def test_any_interleaving_of_live_streams_delivers_the_truth_once(
    drawn: tuple[list[SequenceOutput], list[list[SequenceOutput]]], random: "object"
) -> None:
    truth, parts = drawn
    positions = Positions(0)
    tokens: list[int] = []
    text = ""
    finishes = []
    waiting = [list(stream) for stream in parts]
    while any(waiting):
        ready = [stream for stream in waiting if stream and stream[0].position <= positions.next_position]
        if not ready:
            break
        new = positions.accept(random.choice(ready).pop(0))  # type: ignore[attr-defined]
        assert not isinstance(new, Mismatch), new
        if new is not None:
            assert new.position == len(tokens) + 1
            assert new.offset == len(text)
            tokens.extend(new.tokens)
            text += new.text
            finishes.append(new.finish)
    assert tuple(tokens) == tuple(token for each in truth for token in each.tokens)
    assert text == "".join(each.text for each in truth)
    assert [finish for finish in finishes if finish] == ["length"]
