"""The figures of a replay, as values that become JSON or a table."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from tandem.apps.bench.distribution import Distribution, distribution
from tandem.apps.bench.outcome import Outcome
from tandem.apps.bench.replay import ClosedLoop
from tandem.apps.bench.slo import attainment
from tandem.core.slo import Slo


class Report(msgspec.Struct, frozen=True):
    """The results of a replay. Rates are over `duration_s`, from the first due request to the last token. `late` is
    how far the client itself was behind its schedule: when that is not small against the TTFT, the client was the
    limit.

    `goodput_share` and `attainment` (the share within each bound of `slo`, by its name) are over `offered`: all
    requests except those that their client cancelled, so refused, failed and unfinished ones are misses. `ended`
    counts all requests by how they ended. `interrupted` says that the replay was cut short: `requests` are then those
    due until that time. `clients` and `think_s` are None in the open loop.
    """

    workload: str
    target: str
    model: str
    requests: int
    succeeded: int
    errors: dict[str, int]
    duration_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None
    late_s: Distribution | None
    slo: dict[str, float]
    goodput_requests: int
    goodput_share: float
    goodput_per_s: float
    offered: int
    ended: dict[str, int]
    attainment: dict[str, float]
    interrupted: bool
    clients: int | None
    think_s: float | None


def summarize(
    workload: str,
    target: str,
    model: str,
    outcomes: Sequence[Outcome],
    slo: Slo,
    closed: ClosedLoop | None = None,
    interrupted: bool = False,
) -> Report:
    """The report of all outcomes; latencies are those of requests that succeeded. `outcomes` may be empty."""
    good = [outcome for outcome in outcomes if outcome.ok]
    attained = attainment(slo, outcomes)
    begin = min((outcome.scheduled_s for outcome in outcomes), default=0.0)
    duration_s = max((outcome.end_s for outcome in outcomes), default=0.0) - begin
    prompt = sum(outcome.prompt_tokens for outcome in good)
    output = sum(outcome.output_tokens for outcome in outcomes)
    per_s = 1 / duration_s if duration_s > 0 else 0.0
    return Report(
        workload=workload,
        target=target,
        model=model,
        requests=len(outcomes),
        succeeded=len(good),
        errors=dict(Counter(outcome.error for outcome in outcomes if outcome.error).most_common()),
        duration_s=duration_s,
        prompt_tokens=prompt,
        cached_tokens=sum(outcome.cached_tokens for outcome in good),
        output_tokens=output,
        requests_per_s=len(good) * per_s,
        prompt_tokens_per_s=prompt * per_s,
        output_tokens_per_s=output * per_s,
        ttft_s=distribution([outcome.ttft_s for outcome in good]),
        tpot_s=distribution([outcome.tpot_s for outcome in good if outcome.tpot_s is not None]),
        itl_s=distribution([gap for outcome in good for gap in outcome.gaps_s]),
        e2e_s=distribution([outcome.e2e_s for outcome in good]),
        late_s=distribution([outcome.sent_s - outcome.scheduled_s for outcome in outcomes]),
        slo=slo.bounds,
        goodput_requests=attained.met,
        goodput_share=attained.share,
        goodput_per_s=attained.met * per_s,
        offered=attained.offered,
        ended=dict(Counter(outcome.end.value for outcome in outcomes).most_common()),
        attainment=attained.shares,
        interrupted=interrupted,
        clients=closed.clients if closed else None,
        think_s=closed.think_s if closed else None,
    )
