"""A client's answer against the right one: what is lost, said twice, wrong or never ended is counted as that."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.apps.chaos.judge import Discrepancies, ExpectedAnswer, compare, expected, judge
from tandem.apps.chaos.request import ChaosRequest
from tandem.apps.chaos.response import BROKEN, DONE, FAILED, REFUSED, RUNNING, WITHOUT_END, ReceivedAnswer
from tandem.apps.client.answer import TokenUsage, read_piece

WORDS = "one two three four five six seven eight"
words = st.lists(st.sampled_from(("la", "lo", "li", "lu", "fa", "fe")), min_size=1, max_size=30)


def heard(text: str, end: str = DONE, tokens: int = 8, finish: str | None = "length", n: int = 1) -> ReceivedAnswer:
    one = ReceivedAnswer(ChaosRequest("ask", False, "prompt", 8, n, 1, 0.0), "drill-1", 10.0)
    one.texts, one.usage = dict.fromkeys(range(n), text), TokenUsage(completion_tokens=tokens)
    one.finishes = {} if finish is None else dict.fromkeys(range(n), finish)
    one.ended(end, 11.0)
    return one


RIGHT = ExpectedAnswer({0: WORDS}, {0: "length"}, 8)


def counts(faults: Discrepancies) -> tuple[int, int, int, int]:
    return faults.lost, faults.duplicated, faults.wrong, faults.without_end


def test_the_right_answer_has_no_faults() -> None:
    assert judge(heard(WORDS), RIGHT, may_break=False) == Discrepancies()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two three four five six seven", (1, 0, 0)),
        ("one two four five six seven eight", (1, 0, 0)),
        ("one two three three four five six seven eight", (0, 1, 0)),
        ("one two three one two three four five six seven eight", (0, 3, 0)),
        ("one two three nine five six seven eight", (0, 0, 1)),
        ("one two three four five six seven eight nine", (0, 0, 1)),
        ("", (8, 0, 0)),
    ],
)
def test_what_is_missing_repeated_or_different_is_counted(text: str, expected: tuple[int, int, int]) -> None:
    faults = judge(heard(text), RIGHT, may_break=False)
    assert counts(faults) == (*expected, 0)
    assert "drill-1" in faults.why


@given(words, st.data())
def test_no_different_text_passes(right: list[str], data: st.DataObject) -> None:
    other = data.draw(words)
    faults = compare(" ".join(right), " ".join(other), ends=True)
    assert (faults == Discrepancies()) == (right == other)


@given(words, st.data())
def test_a_word_said_twice_is_a_duplicate_and_a_missing_one_lost(right: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(right) - 1))
    twice = compare(" " + " ".join(right), "".join(f" {word}" for word in [*right[: at + 1], *right[at:]]), ends=True)
    assert (twice.lost, twice.duplicated, twice.wrong) == (0, 1, 0)
    missing = compare(" " + " ".join(right), "".join(f" {word}" for word in right[:at] + right[at + 1 :]), ends=True)
    assert (missing.lost, missing.duplicated, missing.wrong) == (1, 0, 0)


@pytest.mark.parametrize("end", [BROKEN, REFUSED])
def test_a_broken_connection_is_an_end_only_where_it_may_be_one(end: str) -> None:
    begun = heard("one two thr", end, tokens=0, finish=None)
    assert judge(begun, RIGHT, may_break=True) == Discrepancies()
    assert judge(begun, RIGHT, may_break=False).lost > 0


def test_what_came_before_a_break_has_to_be_right() -> None:
    faults = judge(heard("one three", BROKEN, finish=None), RIGHT, may_break=True)
    assert faults.wrong + faults.lost + faults.duplicated > 0


def test_an_error_is_a_loss_even_when_all_text_had_come() -> None:
    assert judge(heard(WORDS, FAILED), RIGHT, may_break=False).lost == 1
    assert judge(heard(WORDS, FAILED), RIGHT, may_break=True).lost == 1


def test_a_request_without_an_end_is_counted_as_that() -> None:
    assert counts(judge(heard("one", WITHOUT_END), RIGHT, may_break=True)) == (0, 0, 0, 1)


def test_counts_and_finish_reasons_are_compared_too() -> None:
    assert counts(judge(heard(WORDS, tokens=9), RIGHT, may_break=False)) == (0, 1, 0, 0)
    assert counts(judge(heard(WORDS, tokens=7), RIGHT, may_break=False)) == (1, 0, 0, 0)
    assert counts(judge(heard(WORDS, finish="stop"), RIGHT, may_break=False)) == (0, 0, 1, 0)


def test_every_choice_is_compared() -> None:
    both = heard(WORDS, n=2, tokens=16)
    both.texts[1] = "one two"
    right = ExpectedAnswer({0: WORDS, 1: WORDS}, {0: "length", 1: "length"}, 16)
    assert judge(both, right, may_break=False).lost == 6


def test_an_answer_is_what_later_ones_have_to_be() -> None:
    assert expected(heard(WORDS)) == RIGHT
    assert judge(heard(WORDS), expected(heard(WORDS)), may_break=False) == Discrepancies()


def test_faults_add_up() -> None:
    assert sum(
        [Discrepancies(1, 2, 3, 4, "a"), Discrepancies(1, 0, 0, 0, ""), Discrepancies(why="b")], Discrepancies()
    ) == Discrepancies(2, 2, 3, 4, "a; b")


# ---- hearing ----


def test_a_stream_becomes_text_by_choice_with_its_end() -> None:
    one = ReceivedAnswer(ChaosRequest("ask", False, "prompt", 8, 2, 1, 0.0), "drill-1", 10.0)
    for at, event in enumerate(
        (
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"index": 0, "delta": {"content": "a"}}]},
            {"choices": [{"index": 1, "text": "b"}]},
            {"choices": [{"index": 0, "delta": {"content": "c"}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"completion_tokens": 3}},
        )
    ):
        one.take(read_piece(msgspec.json.encode(event), 11.0 + at))
    assert (one.texts, one.finishes, one.tokens, one.end) == ({0: "ac", 1: "b"}, {0: "stop"}, 3, RUNNING)
    assert one.times_s == [12.0, 13.0, 14.0]


def test_the_longest_pause_is_the_longest_silence_not_over_at_the_blow() -> None:
    one = ReceivedAnswer(ChaosRequest("ask", False, "prompt", 8, 1, 1, 0.0), "drill-1", 10.0)
    one.times_s = [15.0, 15.5, 16.5, 16.6]
    one.ended(DONE, 16.7)
    assert one.longest_pause_s(0.0) == 5.0
    assert one.longest_pause_s(13.5) == 1.5, "of the wait for the first token what followed the blow"
    assert one.longest_pause_s(15.2) == 1.0
    assert one.longest_pause_s(20.0) == 0.0
