"""What requests ask of a fleet, and what the fleet has to do already, for a model of it. Pure."""

from collections.abc import Sequence
from math import exp, inf
from typing import Final, NamedTuple

from router.split.values import ObservedRequest, SplitOption, WorkerStatus, WorkTimes
from tandem.core.slo import Slo

SETTLED_S: Final = 60.0
KV_FULL: Final = 0.97
"""Share of a worker's KV memory beyond which no request is admitted."""
_MARGIN: Final = 1.02
"""Schedulers aim a little below the target, by what they learn of how steps vary."""
_FLOOR_TOKENS: Final = 32
"""Prompt tokens that a step computes however long its rows take."""


class Demand(NamedTuple):
    """A request as the model needs it: when it comes, and seconds of work."""

    at_s: float
    prompt_s: float
    """Seconds of work on the prompt, without the other time that its steps take."""
    pieces: float
    """Steps' worth of prompt tokens."""
    prompt_tokens: int
    answer_tokens: float
    sequences: int
    moving_s: float
    """Seconds that the blocks of the prompt take on a link,"""
    handing_s: float
    """and those of its last chunk, which go when the first token is there."""
    miss_s: float
    """Seconds that a missed objective counts for in the price of a placement."""


class Present(NamedTuple):
    """The work that the fleet has to do already."""

    workers: int
    rows: float
    attended: float
    prompt_s: float
    """Seconds of work on the prompts that wait."""
    kv_tokens: float
    """Tokens of KV that one worker holds."""
    sequences_max: int
    """Sequences that run on one worker at a time, at most."""
    memory_tokens: float = inf
    """Tokens of prefixes that one worker holds, in its pool and its tiers."""
    export_tokens: float = inf
    """Tokens that one worker may hold of prompts that it has computed for others and that have not been fetched."""


def demands(
    requests: Sequence[ObservedRequest], times: WorkTimes, slo: Slo, begin_s: float | None = None
) -> tuple[Demand, ...]:
    """The demands of requests in order of arrival. Times count from `begin_s`, or from the first request when that is
    None."""
    if not requests:
        return ()
    begin_s = requests[0].arrival_s if begin_s is None else begin_s
    found = []
    for seen in requests:
        uncached = max(1, seen.uncached_tokens)
        start = max(0, seen.prompt_tokens - uncached)
        last_tokens = min(uncached, times.max_batched_tokens)
        found.append(
            Demand(
                at_s=seen.arrival_s - begin_s,
                prompt_s=times.prompt_token_s * uncached
                + times.prompt_position_s * uncached * (start + uncached / 2),
                pieces=uncached / times.max_batched_tokens,
                prompt_tokens=seen.prompt_tokens,
                answer_tokens=max(1.0, seen.answer_tokens / seen.sequences),
                sequences=seen.sequences,
                moving_s=times.transfer_token_s * seen.prompt_tokens,
                handing_s=times.transfer_latency_s + times.transfer_token_s * last_tokens,
                miss_s=(slo.ttft_s or 0.0) + seen.answer_tokens * (slo.tpot_s or 0.0),
            )
        )
    return tuple(found)


def present(
    standings: Sequence[WorkerStatus], requests: Sequence[ObservedRequest], times: WorkTimes, share: float = 1.0
) -> Present:
    """The work of workers as they stand now; `requests` give the mean length of a waiting prompt. When these are only
    a `share` of all requests, their prefixes have the same share of the memory."""
    queued = sum(standing.queued_prompt_tokens for standing in standings)
    uncached = sum(max(1, seen.uncached_tokens) for seen in requests)
    each = uncached / len(requests) if requests else float(times.max_batched_tokens)
    return Present(
        workers=len(standings),
        rows=float(sum(standing.running for standing in standings)),
        attended=float(sum(standing.attended_tokens for standing in standings)),
        prompt_s=queued * (times.prompt_token_s + times.prompt_position_s * each / 2),
        kv_tokens=min((float(each.blocks * each.block_tokens) for each in standings), default=inf),
        sequences_max=min((each.sequences_max for each in standings), default=1),
        export_tokens=min(
            (float(each.export_blocks * each.block_tokens) for each in standings if each.export_blocks), default=inf
        ),
        memory_tokens=share
        * min((float((each.blocks + each.tier_blocks) * each.block_tokens) for each in standings), default=inf),
    )


def memory_tokens(prefills: int, now: Present) -> float:
    """Tokens of prefixes that a fleet holds when `prefills` workers take prompts for others. The blocks that a prompt
    leaves on the worker that computed it also lie on the worker that answers, so the larger side's memory counts."""
    return now.memory_tokens * max(prefills, now.workers - prefills)


def at_load(work: Sequence[Demand], load: float) -> tuple[Demand, ...]:
    """The same requests, counted from the first and arriving `load` times as fast."""
    begin_s = work[0].at_s
    return tuple([demand._replace(at_s=(demand.at_s - begin_s) / load) for demand in work])


def steady(way: SplitOption, work: Sequence[Demand], now: Present, times: WorkTimes) -> Present:
    """A fleet as it stands after `SETTLED_S` of such requests, from sums alone: rows that come as fast as they end
    (rows x steps a second = answer tokens a second, and a step takes longer with every row), and prompts that were
    left over."""
    count = len(work)
    if count < 2 or work[-1].at_s <= 0.0:
        return now._replace(rows=0.0, attended=0.0, prompt_s=0.0)
    per_s = (count - 1) / (count * work[-1].at_s)
    prompt_s = per_s * sum([demand.prompt_s for demand in work])
    weights = [demand.sequences * demand.answer_tokens for demand in work]
    positions = sum([w * (d.prompt_tokens + d.answer_tokens / 2) for w, d in zip(weights, work, strict=True)])
    each = positions / sum(weights)
    decodes = max(1, now.workers - way.prefills)
    tokens_per_s = per_s * sum(weights) / decodes
    left = 1.0 - max(0.0, prompt_s - way.prefills) / decodes - tokens_per_s * row_s(times, each)
    most = min(float(now.sequences_max), KV_FULL * now.kv_tokens / each)
    rows = min(most, tokens_per_s * times.step_s / left) if left > 0.0 else most
    rate, _ = beside_rate(way, times, rows, times.step_s + rows * row_s(times, each))
    over_s = SETTLED_S * max(0.0, prompt_s - way.prefills - decodes * rate)
    return now._replace(
        rows=float(round(rows * decodes)),
        attended=rows * decodes * each,
        prompt_s=over_s,
    )


def row_s(times: WorkTimes, positions: float) -> float:
    """Seconds that a row of so many positions adds to a step."""
    return times.sequence_s + times.position_s * positions


def beside_rate(way: SplitOption, times: WorkTimes, rows: float, running_s: float) -> tuple[float, float]:
    """(seconds of prompt work per second of a worker with so many rows, how long its steps take then)."""
    longest_s = times.max_batched_tokens * times.prompt_token_s
    if way.itl_s is None:
        chunk_s = longest_s
    else:
        floor_s = _FLOOR_TOKENS * times.prompt_token_s
        chunk_s = min(longest_s, max(floor_s, way.itl_s / _MARGIN - running_s))
    alone = exp(-rows)
    rate = (1 - alone) * chunk_s / (running_s + chunk_s) + alone * longest_s / (times.step_s + longest_s)
    return rate, running_s + chunk_s
