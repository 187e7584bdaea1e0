"""Works on one vLLM engine: the tokens of plain vLLM, continuations that are taken up anywhere, and what is held."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tandem.core.errors import TandemError
from tandem.core.kv import chain_names, pack_tokens, unpack_tokens
from tandem.core.request import ChildRequest, Grammar, Sampling, Stopping
from tandem.engine.protocol import EngineRequest
from tandem.engine.vllm.requests import make_request
from tandem.engine.vllm.settings import RunnerKind
from tests.vllm.driving import GREEDY, Driver, work
from tests.vllm.lending import BLOCK_TOKENS, Running, engine
from tests.vllm.plain_llm import answers

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
    }
)
KINDS: dict[str, tuple[Sampling, Grammar | None]] = {
    "greedy": (GREEDY, None),
    "seeded": (Sampling(temperature=0.9, top_p=0.95, top_k=40), None),
    "min-p": (Sampling(temperature=1.2, min_p=0.05), None),
    "penalised": (
        Sampling(temperature=0.8, frequency_penalty=0.6, presence_penalty=0.3, repetition_penalty=1.1),
        None,
    ),
    "greedy-penalised": (Sampling(temperature=0.0, frequency_penalty=0.8), None),
    "biased": (Sampling(temperature=0.0, logit_bias=((77, 4.0), (300, -5.0))), None),
    "json": (Sampling(temperature=0.9), Grammar("json", SCHEMA)),
    "regex": (Sampling(temperature=1.0), Grammar("regex", "([0-9]{3}-[a-z]{4};){9}[0-9]{3}")),
}
LENGTHS = (1, 5, 31, 32, 33, 63, 64, 65, 96, 150)
"""Around the edges of blocks and of chunks."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    async with engine(64, 7) as one:
        yield one


@pytest.fixture
def driver(running: Running) -> Driver:
    return Driver(running)


def prompt(length: int, base: int) -> tuple[int, ...]:
    return tuple(3 + (base * 37 + 11 * number * number) % 1500 for number in range(length))


def plain(works: list[EngineRequest]) -> list[list[int]]:
    """What vLLM alone answers to the same requests."""
    return answers([_plain_request(each) for each in works])


def _plain_request(each: EngineRequest) -> dict[str, Any]:
    request = make_request(each, each.branches[0], each.stopping.stop_token_ids, RunnerKind())
    sampling = dict(request.sampling)
    return {"prompt": list(unpack_tokens(request.tokens)), "sampling": sampling, "grammar": request.grammar}


async def test_tokens_are_those_of_plain_vllm(driver: Driver) -> None:
    works = [
        work(
            prompt(length, base), sampling, max_tokens=24, branches=(ChildRequest(0, 1000 + length),), grammar=grammar
        )
        for base, (sampling, grammar) in enumerate(KINDS.values())
        for length in LENGTHS
    ]
    wanted = asyncio.create_task(asyncio.to_thread(plain, works))
    answers = await driver.answers(works)
    assert [list(answer) for answer in answers] == await wanted


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_a_continuation_is_the_same_wherever_it_is_taken_up(driver: Driver, kind: str) -> None:
    sampling, grammar = KINDS[kind]
    whole = work(prompt(45, 7), sampling, max_tokens=60, branches=(ChildRequest(0, 99),), grammar=grammar)
    wanted = (await driver.answers([whole]))[0]
    cuts = [cut for cut in (1, 4, 7, 40) if cut < len(wanted)]
    assert len(cuts) >= 3
    again = [
        work(prompt(45, 7), sampling, max_tokens=60, branches=(ChildRequest(0, 99, wanted[:cut]),), grammar=grammar)
        for cut in cuts
    ]
    assert await driver.answers(again) == [wanted[cut:] for cut in cuts]


async def test_branches_share_the_prompt_and_each_is_taken_up_alone(driver: Driver) -> None:
    sampling = KINDS["seeded"][0]
    branches = tuple(ChildRequest(number, 50 + number) for number in range(3))
    whole = work(prompt(70, 3), sampling, max_tokens=12, branches=branches)
    await driver.answers([whole])
    parts = [driver.tokens(whole.work_id, number) for number in range(3)]
    assert len(dict.fromkeys(parts)) > 1
    forced = tuple(ChildRequest(number, 50 + number, parts[number][: 2 + number]) for number in range(3))
    again = work(prompt(70, 3), sampling, max_tokens=12, branches=forced)
    await driver.answers([again])
    assert [driver.tokens(again.work_id, number) for number in range(3)] == [
        parts[number][2 + number :] for number in range(3)
    ]


async def test_a_scored_prompt_has_the_log_probabilities_its_tokens_were_drawn_with(driver: Driver) -> None:
    """The prompt is longer than a chunk, and cached: what is in the cache is computed again."""
    asked = Sampling(temperature=0.0, logprobs=2)
    drawing = work(prompt(90, 13), asked, max_tokens=20)
    (answer,) = await driver.answers([drawing])
    drawn = [one.logprob for one in driver.emitted if one.work_id == drawing.work_id]
    scoring = work(
        (*prompt(90, 13), *answer),
        Sampling(temperature=0.0, logprobs=0, prompt_logprobs=2),
        max_tokens=2,
        private=True,
    )
    await driver.answers([scoring])
    first, second = [one.logprob for one in driver.emitted if one.work_id == scoring.work_id]
    assert first is not None
    assert second is not None
    assert (len(first.prompt), second.prompt) == (90 + len(answer) - 1, ())
    for one, token in zip(first.prompt[-len(answer) :], drawn, strict=True):
        assert token is not None
        assert (one.rank, [each.token for each in one.top]) == (1, [each.token for each in token.top])
        assert one.logprob == pytest.approx(token.logprob, abs=2e-3)
    assert driver.ended[scoring.work_id].tokens_reused == 0


async def test_grammars_hold(driver: Driver) -> None:
    found = await driver.answers(
        [
            work(
                prompt(9, 1), Sampling(temperature=1.0), max_tokens=80, grammar=Grammar("choice", '["red", "blue"]')
            ),
            work(prompt(9, 2), Sampling(temperature=1.0), max_tokens=90, grammar=Grammar("json", SCHEMA)),
        ]
    )
    texts = [driver.text(tokens) for tokens in found]
    assert texts[0] in ("red", "blue")
    assert set(json.loads(texts[1])) >= {"name", "age"}


async def test_end_tokens_and_minimum_lengths_count_as_everywhere(driver: Driver) -> None:
    whole = work(prompt(20, 5), GREEDY, max_tokens=12)
    tokens = (await driver.answers([whole]))[0]
    stop = next(token for at, token in enumerate(tokens) if at >= 3 and token not in tokens[:at])
    at = tokens.index(stop) + 1
    ended = work(prompt(20, 5), GREEDY, max_tokens=12, stopping=Stopping(12, 0, (), (stop,), True))
    later = work(prompt(20, 5), GREEDY, max_tokens=12, stopping=Stopping(12, at, (), (stop,), True))
    forced = ChildRequest(0, 1, tokens[:2])
    resumed = work(prompt(20, 5), GREEDY, branches=(forced,), stopping=Stopping(12, 0, (), (stop,), True))
    found = await driver.answers([ended, later, resumed])
    assert found[0] == tokens[:at]
    assert (driver.last(ended.work_id).finish, driver.last(ended.work_id).stop_reason) == ("stop", stop)
    assert len(found[1]) > at
    assert found[1][: at - 1] == tokens[: at - 1]
    assert found[1][at - 1] != stop
    assert found[2] == tokens[2:at]


async def test_a_cancel_frees_what_it_held(driver: Driver) -> None:
    works = [work(prompt(200, base), GREEDY, max_tokens=400) for base in range(3)]
    for each in works:
        driver.submit(each)
    await driver.until(lambda: len(driver.emitted) > 5)
    for each in works:
        driver.engine.cancel(each.work_id)
    await driver.until(lambda: all(each.work_id in driver.ended for each in works))
    await driver.answers([work(prompt(40, 9), GREEDY, max_tokens=4)])
    # The latest load may be from before the answer.
    await driver.until(lambda: driver.load is not None and driver.load.blocks_free == driver.engine.info.blocks)
    assert driver.load is not None
    assert driver.load.running == 0
    assert not driver.failed


async def test_what_cannot_be_is_refused_in_one_sentence(driver: Driver) -> None:
    bad = {
        "context_length_exceeded": work(prompt(100, 1), GREEDY, max_tokens=2000),
        "invalid_request": work(prompt(9, 1), GREEDY, grammar=Grammar("regex", "([")),
    }
    for code, each in bad.items():
        with pytest.raises(TandemError) as refused:
            driver.submit(each)
        assert refused.value.code == code
    with pytest.raises(TandemError, match="no kind of grammar"):
        driver.submit(work(prompt(9, 1), GREEDY, grammar=Grammar("bnf", "x")))
    with pytest.raises(TandemError, match="adapter 'nobody'"):
        driver.submit(work(prompt(9, 1), GREEDY, adapter="nobody"))
    assert not driver.ended


async def test_tenants_do_not_share_and_private_works_leave_no_name(driver: Driver) -> None:
    tokens = prompt(96, 21)
    one, other = bytes([1] * 16), bytes([2] * 16)
    first, second, third = (work(tokens, GREEDY, max_tokens=2, root=root) for root in (one, other, one))
    for each in (first, second, third):
        await driver.answers([each])
    reused = [driver.ended[each.work_id].tokens_reused for each in (first, second, third)]
    assert reused == [0, 0, 95]
    await driver.until(lambda: all(_names(tokens, root)[2] in driver.names for root in (one, other)))
    hidden, shown = prompt(64, 23), prompt(33, 24)
    await driver.answers([work(hidden, GREEDY, max_tokens=2, private=True)])
    await driver.answers([work(shown, GREEDY, max_tokens=2)])
    await driver.until(lambda: _names(shown)[0] in driver.names)
    assert not any(name in driver.names for name in _names(hidden))


def _names(tokens: tuple[int, ...], root: bytes = bytes(range(16))) -> tuple[bytes, ...]:
    return chain_names(root, pack_tokens(tokens), BLOCK_TOKENS)
