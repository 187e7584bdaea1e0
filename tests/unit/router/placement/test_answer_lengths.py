"""What is remembered of how long answers became: modes, not a mean, in bounded memory and for a bounded time."""

import asyncio
from math import log
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.placement.learning.answer_lengths import AnswerLengths
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.entropy import SeededEntropy, unit
from tests.worlds.router_world import Client, World

MAX: Final = 32_768
LENGTHS = st.floats(1.0, MAX)


def bimodal(seed: int, short: float, long: float, share: float, count: int = 400) -> AnswerLengths:
    """After answers of which `share` think: each mode 10 % wide."""
    answers, entropy = AnswerLengths(), SeededEntropy(seed, "answers")
    for _ in range(count):
        mode = long if unit(entropy) < share else short
        answers.observe(MAX, mode * (0.95 + 0.1 * unit(entropy)))
    return answers


@given(
    seed=st.integers(0, 1000),
    short=st.floats(20.0, 500.0),
    times=st.floats(4.0, 60.0),
    share=st.floats(0.2, 0.8),
    past=st.floats(1.2, 1.9),
)
def test_what_has_outlasted_the_short_ones_has_left_what_the_long_ones_have(
    seed: int, short: float, times: float, share: float, past: float
) -> None:
    long, age = min(MAX / 2, short * times), past * short
    answers = bimodal(seed, short, long, share)
    assert answers.expected_left(MAX, age, 128) == pytest.approx(long - age, rel=0.06, abs=0.06 * long)
    assert answers.expected_left(MAX, 0.0, 128) == pytest.approx(answers.expected(MAX, 128))
    assert answers.expected(MAX, 128) < 1.05 * long


@given(before=st.lists(LENGTHS, max_size=300), length=LENGTHS)
def test_after_so_many_answers_nothing_is_left_of_those_before(before: list[float], length: float) -> None:
    answers = AnswerLengths()
    for tokens in before:
        answers.observe(MAX, tokens)
    for _ in range(250):
        answers.observe(MAX, length)
    assert answers.expected(MAX, 128) == pytest.approx(length, abs=0.001 * MAX)
    assert answers.expected_left(MAX, 1.01 * length, 128) == 0.0


@given(told=st.lists(st.tuples(st.integers(1, MAX), LENGTHS), max_size=80), age=st.floats(0.0, 2.0 * MAX))
def test_nothing_is_expected_beyond_the_bound(told: list[tuple[int, float]], age: float) -> None:
    answers = AnswerLengths()
    for bound, tokens in told:
        answers.observe(bound, min(bound, tokens))
    for bound in (1, 16, 500, MAX):
        assert 0.0 <= answers.expected_left(bound, age, 128) <= max(0.0, bound - age)
        assert 1.0 <= answers.expected(bound, 128) <= bound
    assert len(answers._kinds) <= MAX.bit_length()


@given(lengths=st.lists(LENGTHS, min_size=1, max_size=40), age=st.floats(0.0, MAX))
def test_what_is_left_is_what_those_that_became_longer_had(lengths: list[float], age: float) -> None:
    """Against the answers themselves, but for the one bin in which `age` is."""
    answers = AnswerLengths()
    for tokens in lengths:
        answers.observe(MAX, tokens)
    weights = [(1 - 1 / 20) ** (len(lengths) - 1 - number) for number in range(len(lengths))]
    left = [(tokens - age, weight) for tokens, weight in zip(lengths, weights, strict=True)]
    longer = [(each, weight) for each, weight in left if each > 0]
    found = answers.expected_left(MAX, age, 128)
    if all(abs(each) > age for each, _ in left) and longer:
        whole = sum(weight for _, weight in longer)
        if whole > 0.01 * sum(weights):
            assert found == pytest.approx(min(MAX - age, sum(e * w for e, w in longer) / whole), rel=1e-6)
    if all(each <= 0 for each, _ in left):
        assert found == 0.0


def test_very_many_answers_leave_the_figures_as_they_are() -> None:
    answers = AnswerLengths()
    for number in range(5000):
        answers.observe(MAX, 100.0 if number % 2 else 300.0)
    assert answers.expected(MAX, 128) == pytest.approx(200.0, rel=0.05)
    assert answers.expected_left(MAX, 150.0, 128) == pytest.approx(150.0)


def test_of_answers_that_end_at_any_time_age_tells_nothing() -> None:
    answers, entropy = AnswerLengths(), SeededEntropy(3, "memoryless")
    survivors = []
    for _ in range(2000):
        answers.observe(MAX, -500.0 * log(1.0 - unit(entropy)))
        survivors.append(answers.expected_left(MAX, 400.0, 128))
    assert sum(survivors) / len(survivors) == pytest.approx(500.0, rel=0.15)


def test_answers_that_clients_cancel_tell_nothing() -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop)
        world.worker("u1", "unified")
        await world.start()
        client = Client(world, world.generation(max_tokens=500))
        running = world.dispatcher.start(client.generation, client)
        some = asyncio.Event()
        client.on_output = some.set
        await some.wait()
        running.cancel("enough")
        assert world.tools.costs.answers.of(500) is None
        whole = world.ask(max_tokens=20)
        await whole.ended.wait()
        assert world.tools.costs.answers.expected(20, 128) == 20.0
        await world.stop()

    run(main, limit_s=600.0)


def test_each_sequence_of_a_request_counts_with_its_own_length() -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop)
        world.worker("u1", "unified")
        await world.start()
        world.ends.update({0: 5, 1: 150})
        client = Client(world, world.generation(n=2, max_tokens=200))
        world.dispatcher.start(client.generation, client)
        await client.ended.wait()
        # What has outlasted the short one is the long one.
        assert world.tools.costs.answers.expected_left(200, 20.0, 128) == pytest.approx(130.0)
        await world.stop()

    run(main, limit_s=600.0)


def test_the_very_longest_answers_count_as_much_as_others() -> None:
    """Up to a million tokens: an agent's answers must not hide that most are short. What is longer counts, too."""
    answers, most = AnswerLengths(), 1 << 20
    answers.observe(most, 100.0)
    answers.observe(most, 900_000.0)
    assert answers.expected(most, 128) == pytest.approx((0.95 * 100.0 + 900_000.0) / 1.95)
    answers.observe(1 << 24, 5e6)
    assert answers.expected(1 << 24, 128) == pytest.approx(5e6)
