"""The cost of the misses of objectives that a choice makes more likely: the request's own, and others'. Pure.

A miss costs as much time as the objective allows: a request that misses might as well have taken all of that. The
probability of a miss grows smoothly with the expected time, as expected times are off. So a choice that comes near a
bound pays before it exceeds it, one far below pays nothing, and where the bound is lost anyway the expected
completion decides, which is always paid in full. How smoothly follows from how far off first tokens have been lately
(`FirstTokens`).

A prompt that would wait long compared to the time that it takes pays more for its time than others do: streams beside
it and prompts behind it are many, so their time would send long prompts to wherever they wait longest. How much more
depends on how long all prompts wait, compared to what they take alone: where all are slow none is favoured.

The price lacks the parts named in `PlacementSettings.without`, to show what each is worth.
"""

from math import erfc, inf, log, sqrt
from typing import Final

import msgspec

from router.placement.decision import PlacementRequest
from router.placement.learning.first_tokens import SHARPNESS
from router.placement.view import WorkerView
from router.settings import PlacementSettings

_SURE: Final = 64.0
"""An expected time so many times below its bound is over it less than once in 30,000 times."""

SHORT_MS: Final = 1e3
"""Milliseconds below which prompts are not told apart by how much longer they wait."""
_USUAL: Final = 3.0
"""One in twenty waits longer than so many times the mean, where waits are spread as exponentially."""
_PATIENCE: Final = 3.0
"""A prompt that waits so many times longer than is usual does not pay more for yet longer waits."""
_TOKENS_OFF: Final = 0.1
"""Standard deviation of the logarithm of actual over expected time per token."""
_OFF_ROOT_2: Final = _TOKENS_OFF * sqrt(2.0)
_TOKENS_SURE: Final = 2.0
"""A time per token so many times below its bound is over it less than once in 10 ** 8 times."""


class Stakes(msgspec.Struct, frozen=True, gc=False):
    """The stakes of one decision. Bounds are in milliseconds, infinite where there are none; the bound of the first
    token is counted from the request's arrival, `age_ms` ago. The others are milliseconds that a miss costs: of the
    request's own first token and stream, of streams that run beside the prompt, and of prompts behind it; 0 where
    there is no bound."""

    age_ms: float
    first_ms: float
    token_ms: float
    own_first_ms: float
    own_stream_ms: float
    streams_ms: float
    behind_ms: float
    sharpness: float = SHARPNESS
    """Sharpness of the likelihood that a first token is late."""
    usual: float = inf
    """How many times longer than alone a prompt may wait before it pays more for its time."""


def stakes(
    request: PlacementRequest,
    answer_tokens: float,
    settings: PlacementSettings,
    sharpness: float = SHARPNESS,
    slowdown: float = 0.0,
) -> Stakes | None:
    """The stakes of a request whose answer is expected to have `answer_tokens` tokens; None where it has no
    objective. `slowdown` is how many times longer than alone prompts wait, on average."""
    held_to = request.objective
    if held_to is None or held_to.ttft_ms is held_to.tpot_ms is None:
        return None
    first_ms = inf if held_to.ttft_ms is None else held_to.ttft_ms
    token_ms = inf if held_to.tpot_ms is None else held_to.tpot_ms
    # Others are taken to have the same objective, and no weight of their own.
    others_ms = (held_to.ttft_ms or 0.0) + answer_tokens * (held_to.tpot_ms or 0.0)
    own_ms, without = request.weight * others_ms, settings.without
    return Stakes(
        request.age_ms,
        first_ms,
        token_ms,
        0.0 if first_ms == inf or "first token" in without else own_ms,
        0.0 if token_ms == inf or "stream" in without else own_ms,
        0.0 if token_ms == inf or "streams beside" in without else others_ms,
        0.0 if first_ms == inf or "prompts behind" in without else others_ms,
        sharpness,
        inf if first_ms == inf or "first token" in without else max(1.0, _USUAL * slowdown),
    )


def miss(expected_ms: float, bound_ms: float, sharpness: float = SHARPNESS) -> float:
    """The probability that what is expected to take so long takes longer than its bound: a half at the bound, smooth
    around it (log-logistic)."""
    if expected_ms * _SURE <= bound_ms:
        return 0.0
    # Bounds, and what is expected, are not negative: no complex number comes of it.
    odds: float = (bound_ms / expected_ms) ** sharpness
    return 1.0 / (1.0 + odds)


def miss_token(expected_ms: float, bound_ms: float) -> float:
    """The probability that a stream which is expected to take so long for a token misses its bound: a half at the
    bound (log-normal). Time per token is a mean over an answer, so it is never off by much, as a single first token
    is: streams are many, and the tail of a distribution of these would count for hundreds that nothing threatens."""
    if expected_ms * _TOKENS_SURE <= bound_ms:
        return 0.0
    return 0.5 * erfc(log(bound_ms / expected_ms) / _OFF_ROOT_2)


def prompt_stake(
    stakes: Stakes, arrivals_per_ms: float, queue_ms: float, first_ms: float, prefill_ms: float
) -> float:
    """Milliseconds at stake by a prompt whose first token is expected after `first_ms`: the request's own miss, and
    those of prompts that arrive until it is computed, each of which waits `prefill_ms` more. The first of them waits
    behind all of it and the last behind nothing, so on average as much is at stake as for half of them. What the
    prompt pays for waiting longer than is usual is included."""
    bound_ms, sharpness = stakes.first_ms, stakes.sharpness
    young = miss(first_ms, bound_ms, sharpness)
    own = miss(stakes.age_ms + first_ms, bound_ms, sharpness) if stakes.age_ms > 0.0 else young
    behind_ms = 0.5 * stakes.behind_ms * arrivals_per_ms * (queue_ms + prefill_ms)
    if behind_ms > 0.0:
        behind_ms *= miss(first_ms + prefill_ms, bound_ms, sharpness) - young
    return stakes.own_first_ms * own + behind_ms + unfair_ms(stakes, queue_ms, first_ms)


def unfair_ms(stakes: Stakes, queue_ms: float, first_ms: float) -> float:
    """Milliseconds that a prompt pays beside its time for a first token after `first_ms`: 0 while it waits no longer
    than is usual for what it takes behind the queue, then smoothly more the longer it waits, at most `_PATIENCE` ** 2
    - 1 times its time. Its age counts."""
    alone_ms = first_ms - queue_ms
    fair_ms = stakes.usual * (alone_ms if alone_ms > SHORT_MS else SHORT_MS)
    waited_ms = stakes.age_ms + first_ms
    if waited_ms <= fair_ms:
        return 0.0
    times = min(_PATIENCE, waited_ms / fair_ms)
    return first_ms * (times * times - 1.0)


def stream_stake(stakes: Stakes, worker: WorkerView, streaming_ms: float, grown_ms: float) -> float:
    """Milliseconds at stake by generating on a worker whose steps take `streaming_ms` now and then `grown_ms` more:
    the request's own miss, and those of the streams that it joins, each of which takes `grown_ms` more for every
    token.

    The second part is largest where steps are about to reach the bound, and small where they are far over it. So
    where all workers together cannot hold the objective of every request, it is held on some of them instead of being
    missed by a little on all: the other requests gather where it is lost anyway.
    """
    bound_ms = stakes.token_ms
    if bound_ms == inf:
        return 0.0
    later = miss_token(streaming_ms + grown_ms, bound_ms)
    if worker.decoding <= 0 or later <= 0.0:
        return stakes.own_stream_ms * later
    sooner = miss_token(streaming_ms, bound_ms)
    return stakes.own_stream_ms * later + stakes.streams_ms * worker.decoding * (later - sooner)


def beside_stake(
    stakes: Stakes, worker: WorkerView, streaming_ms: float, answer_tokens: float, prefill_ms: float
) -> float:
    """Milliseconds at stake by computing a prompt beside streams that take `streaming_ms` for a token, each of which
    takes `prefill_ms` more for all its tokens together. Nothing is at stake where the worker keeps its steps within
    the objective whatever prompts there are."""
    if worker.steps_held or worker.decoding <= 0 or stakes.streams_ms <= 0.0:
        return 0.0
    later = miss_token(streaming_ms + prefill_ms / answer_tokens, stakes.token_ms)
    if later <= 0.0:
        return 0.0
    return stakes.streams_ms * worker.decoding * (later - miss_token(streaming_ms, stakes.token_ms))
