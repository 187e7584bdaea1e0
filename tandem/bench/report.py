"""The figures of a finished replay, as values that become JSON or a table."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from tandem.bench.distribution import Distribution, distribution
from tandem.bench.outcome import Outcome
from tandem.bench.slo import Slo


class Report(msgspec.Struct, frozen=True):
    """Rates are over `duration_s`, from the first due request to the last token. `late` is how far the client
    itself was behind its schedule: when that is not small against the TTFT, the client was the limit."""

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


def summarize(workload: str, target: str, model: str, outcomes: Sequence[Outcome], slo: Slo) -> Report:
    """The report of all outcomes; latencies are those of requests that succeeded. `outcomes` may be empty."""
    good = [outcome for outcome in outcomes if outcome.ok]
    met = sum(slo.met_by(outcome) for outcome in good)
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
        goodput_requests=met,
        goodput_share=met / len(outcomes) if outcomes else 0.0,
        goodput_per_s=met * per_s,
    )
