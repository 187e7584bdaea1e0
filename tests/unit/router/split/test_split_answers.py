"""Answers by the length of the prompt: kinds do not mix, few say nothing, what is new is learned."""

from hypothesis import given
from hypothesis import strategies as st

from router.split.answers import AnswersByPrompt


def drawn(answers: AnswersByPrompt, prompt_tokens: int, max_tokens: int, otherwise: float, times: int) -> list[float]:
    return [answers.drawn(prompt_tokens, max_tokens, otherwise) for _ in range(times)]


def test_kinds_do_not_mix() -> None:
    answers = AnswersByPrompt()
    for _ in range(30):
        answers.observe(6_000, 4_096, 80)
        answers.observe(200, 4_096, 800)
    for _ in range(20):
        assert answers.drawn(5_000, 4_096, 300.0) == 80
        assert answers.drawn(130, 4_096, 300.0) == 800
    assert answers.drawn(5_000, 100, 300.0) == 300.0, "another bound"
    assert answers.drawn(1_500, 4_096, 300.0) == 300.0, "no such prompt has been answered"


def test_a_few_are_not_believed_and_then_each_comes_in_turn() -> None:
    answers = AnswersByPrompt()
    for tokens in (10, 20, 30, 40):
        answers.observe(100, 64, tokens)
    assert answers.drawn(100, 64, 7.0) == 7.0
    answers.observe(100, 64, 50)
    assert sorted(drawn(answers, 100, 64, 7.0, 5)) == [10, 20, 30, 40, 50]


def test_what_is_new_is_learned_within_some_dozens() -> None:
    answers = AnswersByPrompt()
    for _ in range(100):
        answers.observe(100, 64, 10)
    for _ in range(64):
        answers.observe(100, 64, 60)
    assert set(drawn(answers, 100, 64, 1.0, 64)) == {60}


@given(st.lists(st.floats(0, 5_000), min_size=5, max_size=60))
def test_as_many_as_there_were_are_those_that_there_were(lengths: list[float]) -> None:
    answers = AnswersByPrompt()
    for tokens in lengths:
        answers.observe(1_000, 8_192, tokens)
    assert sorted(drawn(answers, 1_000, 8_192, 1e9, len(lengths))) == sorted(max(1.0, each) for each in lengths)
