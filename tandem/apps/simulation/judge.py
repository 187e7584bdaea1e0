"""Whether a request's end is one that its world justifies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from router.settings import RouterSettings
from tandem.apps.simulation.checks import Outcome
from tandem.apps.simulation.demand import Demand, needed_s
from tandem.apps.simulation.slow_client import EVENT_BYTES, LIMITS
from tandem.apps.simulation.traffic import SimRequest

_SLACK_S: Final = 0.01
_TOO_MANY_RETRIES: Final = "too many requests are being retried"


@dataclass
class Record:
    """The history of a world that its requests are judged by: when no worker that decodes could be used (or the
    router was stopped), when every prefill worker was down or frozen, and when the work of workers that decode was
    affected."""

    outages: list[tuple[float, float]]
    """(from, to) in virtual seconds."""
    prefill_outages: list[tuple[float, float]]
    """Spans as in `outages`, but by the actual state and not by what the router knows: blocks reserved for prompts
    wait that long."""
    strikes: list[float]
    """Times at which something affected the work of a worker that decodes."""
    stall_s: float
    """Seconds that a request may make no progress and still be answered, besides the wait for its turn."""
    demands: Sequence[Demand] = ()
    """The minimum demand of every request."""

    def outage_s(self, since: float, until: float) -> float:
        return _overlap_s(self.outages, since, until)

    def prefill_outage_s(self, since: float, until: float) -> float:
        return _overlap_s(self.prefill_outages, since, until)

    def struck(self, since: float, until: float) -> int:
        return sum(since <= at <= until for at in self.strikes)


def _overlap_s(spans: Sequence[tuple[float, float]], since: float, until: float) -> float:
    return sum(max(0.0, min(until, end) - max(since, start)) for start, end in spans)


def objection(request: SimRequest, outcome: Outcome, settings: RouterSettings, record: Record) -> str | None:
    """Why this end is wrong, or None."""
    if outcome.end == "done":
        return _stall(request, outcome, settings, record)
    if outcome.end == "disconnected":
        return None
    if outcome.end == "cancelled":
        return None if request.cancel_after_s is not None else "nobody cancelled it"
    if outcome.end != "failed" or outcome.ended_s is None:
        return f"it is {outcome.end}"
    since, until = outcome.asked_s, outcome.asked_s + outcome.ended_s
    if request.steals:
        # A router that dies meanwhile has not given anything away either.
        return None if outcome.error in ("not_found", "draining") else f"it was refused with {outcome.error}"
    match outcome.error:
        case _ if _TOO_MANY_RETRIES in outcome.reason:
            justified = _crowded(settings)
        case "deadline_exceeded":
            justified = request.timeout_s is not None and outcome.ended_s >= request.timeout_s - _SLACK_S
        case "not_found":
            # A router's queue dies with it, and a worker's death with its router leaves nothing to go on with.
            justified = request.resumable and (not outcome.tokens or record.struck(since, until) > 0)
        case "queue_full":
            justified = _crowded(settings)
        case "no_workers" | "worker_lost":
            down_s = record.outage_s(since, until)
            justified = down_s > 0 or record.struck(since, until) >= settings.retry.fruitless_attempts_max
        case "slow_client":
            most = request.n * (request.stopping.max_tokens + 1) * EVENT_BYTES
            slow = request.stalls_s >= LIMITS.stall_s - _SLACK_S or most >= LIMITS.buffer_bytes
            justified = request.stalls_after > 0 and slow
        case _:
            justified = False
    return (
        None if justified else f"nothing justifies {outcome.error} ({outcome.reason}) after {outcome.ended_s:.2f} s"
    )


def _stall(request: SimRequest, outcome: Outcome, settings: RouterSettings, record: Record) -> str | None:
    """A right answer that came much later than any fault takes to be noticed was held up by something else: neither
    by its own client, nor by an outage of everything that decodes, of everything that computes prompts, or of the
    router; and it is more than everybody's work takes."""
    waited_s = max(outcome.ttft_s or 0.0, outcome.longest_pause_s)
    until = outcome.asked_s + (outcome.ended_s or 0.0)
    out_s = record.outage_s(outcome.asked_s, until) + record.prefill_outage_s(outcome.asked_s, until)
    own_s = request.stalls_s + outcome.away_s
    turn_s = needed_s(record.demands, outcome.asked_s, until)
    if waited_s <= record.stall_s + out_s + own_s + turn_s or _crowded(settings):
        return None
    return f"it stood still for {waited_s:.2f} s"


def _crowded(settings: RouterSettings) -> bool:
    """Whether this world's router has bounds that its traffic can reach."""
    return settings.admission.requests_max < 1000


def first_objection(
    requests: Mapping[str, SimRequest],
    outcomes: Sequence[Outcome],
    settings: RouterSettings,
    record: Callable[[Outcome], Record],
) -> tuple[str, str] | None:
    """(request id, objection) of the first wrong end. `record` is what there is to judge each by."""
    for outcome in outcomes:
        reason = objection(requests[outcome.request_id], outcome, settings, record(outcome))
        if reason is not None:
            return outcome.request_id, reason
    return None
