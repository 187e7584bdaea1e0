"""Generated traffic: the seed decides its contents, the rate only when they come, and policies nothing."""

from itertools import pairwise
from statistics import fmean, median

import pytest

from benchmarks.fleet.fleet import roles, simulate
from benchmarks.fleet.goodput import Window, judge
from benchmarks.fleet.ours import ours
from benchmarks.fleet.peers.catalogue import peer
from benchmarks.fleet.scenarios.draws import Surge
from benchmarks.fleet.scenarios.generated import (
    BLOCK_TOKENS,
    MAX_TOKENS,
    PROMPT_TOKENS_MAX,
    TRAFFIC,
    fleet,
    generated,
    ours_settings,
    traffic,
)
from benchmarks.fleet.workload import Request
from tandem.core.slo import Slo

NAMES = [each.name for each in TRAFFIC]
Contents = tuple[tuple[int, ...], int, int, int]


def made(name: str, seed: int = 1, rate: float = 10.0, duration_s: float = 120.0) -> list[Request]:
    return list(generated(traffic(name), seed, rate, duration_s).workload.requests)


def contents(requests: list[Request]) -> list[Contents]:
    return [(each.blocks, each.input_tokens, each.output_tokens, each.max_tokens) for each in requests]


def arrivals(requests: list[Request]) -> list[float]:
    return [each.arrival_s for each in requests]


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_give_equal_traffic_and_others_others(name: str) -> None:
    one, same, other = (made(name, seed, duration_s=30.0) for seed in (1, 1, 2))
    assert (contents(one), arrivals(one)) == (contents(same), arrivals(same))
    assert {each[1:3] for each in contents(one)[:50]} != {each[1:3] for each in contents(other)[:50]}
    assert arrivals(one)[:50] != arrivals(other)[:50]
    # A seed draws what a kind of load is like, not only which of its requests come.
    medians = {median(each.input_tokens for each in made(name, seed, duration_s=30.0)) for seed in range(5)}
    assert max(medians) > 1.1 * min(medians)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "shifting"])
def test_the_rate_moves_arrivals_and_no_content(name: str) -> None:
    slow, fast = made(name), made(name, rate=20.0)
    assert len(fast) > 1.6 * len(slow)
    assert contents(fast)[: len(slow)] == contents(slow)


@pytest.mark.parametrize("name", NAMES)
def test_requests_are_whole_and_come_in_order_at_the_rate_that_was_asked_for(name: str) -> None:
    requests = made(name, rate=20.0)
    assert [each.number for each in requests] == list(range(len(requests)))
    assert len(requests) == pytest.approx(2_400, rel=0.1)
    times = arrivals(requests)
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < 120
    for each in requests:
        assert 1 <= each.input_tokens <= PROMPT_TOKENS_MAX
        assert 1 <= each.output_tokens <= each.max_tokens == MAX_TOKENS
        assert len(each.blocks) == -(-each.input_tokens // BLOCK_TOKENS)
        assert len(set(each.blocks)) == len(each.blocks)
    # The last block is the request's own, so that no prompt is another's.
    assert len({each.blocks[-1] for each in requests}) == len(requests)


def test_each_kind_of_traffic_is_what_its_name_says() -> None:
    def tokens(name: str) -> tuple[float, float]:
        requests = [each for seed in range(3) for each in made(name, seed, duration_s=40.0)]
        return fmean(each.input_tokens for each in requests), fmean(each.output_tokens for each in requests)

    prompts, answers = tokens("prompt_heavy")
    assert prompts > 20 * answers
    prompts, answers = tokens("answer_heavy")
    assert answers > prompts
    lengths = sorted(each.input_tokens for each in made("bimodal"))
    between = sum(2_000 < tokens < 5_000 for tokens in lengths)
    assert between < 0.15 * len(lengths)
    assert sum(tokens >= 5_000 for tokens in lengths) > between


def test_prompts_share_beginnings_by_which_they_can_be_found() -> None:
    requests = made("prompt_heavy", rate=20.0)
    blocks = [block for each in requests for block in each.blocks]
    assert len(set(blocks)) < 0.95 * len(blocks)
    heads = {each.blocks[0] for each in requests}
    assert 10 <= len(heads) <= 200


def test_bursts_are_bursts_and_shifting_traffic_changes_what_it_asks_for() -> None:
    made_ = generated(traffic("bursts"), 1, 20.0, 300.0)
    times = arrivals(list(made_.workload.requests))
    per_5_s = [sum(5 * place <= at_s < 5 * place + 5 for at_s in times) for place in range(60)]
    assert max(per_5_s) > 1.8 * fmean(per_5_s)
    assert len(made_.changes_s) >= 10

    shifting = generated(traffic("shifting"), 1, 20.0, 300.0)
    bounds = (0.0, *shifting.changes_s, 300.0)
    means = []
    for begin_s, end_s in pairwise(bounds):
        phase = [each for each in shifting.workload.requests if begin_s <= each.arrival_s < end_s]
        means.append(fmean(each.input_tokens for each in phase))
    assert len(means) >= 5
    turns = [max(a, b) / min(a, b) for a, b in pairwise(means)]
    assert min(turns) > 3, "every phase asks for something else than the one before"
    assert generated(traffic("bimodal"), 1, 20.0, 300.0).changes_s == ()


@pytest.mark.parametrize("name", NAMES)
def test_two_policies_see_the_same_requests_at_the_same_times(name: str) -> None:
    seen = []
    settings = fleet(roles(prefill=2, decode=2))
    for decider in (ours(ours_settings(), 1), peer("random", 1), peer("least loaded", 1)):
        work = generated(traffic(name), 1, 2.0, 20.0).workload
        simulate(settings, decider, work)
        requests = list(work.requests)
        judged = judge(requests, Slo(ttft_s=1e6), Window.of(requests))
        assert judged.met == judged.offered == len(requests) > 10
        seen.append((contents(requests), arrivals(requests)))
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("name", NAMES)
def test_in_a_surge_there_is_more_and_nothing_else_moves(name: str) -> None:
    plain = generated(traffic(name), 1, 20.0, 120.0)
    surged = generated(traffic(name), 1, 20.0, 120.0, Surge(40.0, 80.0, 3.0))
    assert surged.changes_s == plain.changes_s
    before, after = (
        [at_s for at_s in arrivals(list(each.workload.requests)) if at_s < 40] for each in (plain, surged)
    )
    assert before == after
    counts = [sum(40 <= each.arrival_s < 80 for each in made.workload.requests) for made in (plain, surged)]
    assert counts[1] == pytest.approx(3 * counts[0], rel=0.2)
    rest = [sum(each.arrival_s >= 80 for each in made.workload.requests) for made in (plain, surged)]
    assert rest[1] == pytest.approx(rest[0], rel=0.2)


def test_workers_with_an_itl_target_have_the_schedulers_bounds() -> None:
    fixed, bounded = fleet(roles(unified=1)).worker, fleet(roles(unified=1), itl_target_s=0.03).worker
    assert (fixed.itl_target_s, fixed.max_batched_tokens) == (None, 8192)
    assert (bounded.itl_target_s, bounded.max_batched_tokens, bounded.engine_block_tokens) == (0.03, 2048, 16)
