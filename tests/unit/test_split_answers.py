"""Answers by the length of the prompt: kinds do not mix, few say nothing, what is new is learned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.split.answers import AnswersByPrompt


def test_kinds_do_not_mix() -> None:
    answers = AnswersByPrompt()
    for _ in range(30):
        answers.observe(6_000, 4_096, 80)
        answers.observe(200, 4_096, 800)
    assert answers.expected(5_000, 4_096, 300.0) == pytest.approx(80)
    assert answers.expected(130, 4_096, 300.0) == pytest.approx(800)
    assert answers.expected(5_000, 100, 300.0) == 300.0, "another bound"
    assert answers.expected(1_500, 4_096, 300.0) == 300.0, "no such prompt has been answered"


def test_a_few_are_not_believed_and_the_first_weigh_alike() -> None:
    answers = AnswersByPrompt()
    for tokens in (10, 20, 30, 40):
        answers.observe(100, 64, tokens)
    assert answers.expected(100, 64, 7.0) == 7.0
    answers.observe(100, 64, 50)
    assert answers.expected(100, 64, 7.0) == pytest.approx(30)


def test_what_is_new_is_learned_within_some_dozens() -> None:
    answers = AnswersByPrompt()
    for _ in range(100):
        answers.observe(100, 64, 10)
    for _ in range(40):
        answers.observe(100, 64, 60)
    assert answers.expected(100, 64, 1.0) == pytest.approx(60, rel=0.05)


@given(st.lists(st.floats(0, 5_000), min_size=5, max_size=60))
def test_it_lies_between_the_shortest_and_the_longest(lengths: list[float]) -> None:
    answers = AnswersByPrompt()
    for tokens in lengths:
        answers.observe(1_000, 8_192, tokens)
    expected = answers.expected(1_000, 8_192, 1e9)
    assert max(1.0, min(lengths)) * 0.999 <= expected <= max(1.0, max(lengths)) * 1.001
