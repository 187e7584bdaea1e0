"""When a sequence counts as stalled. Pure."""

from collections.abc import Iterable

from router.dispatch.attempt import Attempt
from router.dispatch.positions import Positions
from tandem.core.deadlines import Deadlines


def first_token_s(attempt: Attempt, deadlines: Deadlines) -> float:
    """Bound on waiting for a first token: a worker's queue plus prefill progress, or twice what placement expected
    when that is longer."""
    expected_s = attempt.placement.costs[0][1].completion_ms / 1e3
    return max(deadlines.queue_s + deadlines.prefill_progress_s, 2 * expected_s)


def due(attempt: Attempt, each: Positions, deadlines: Deadlines) -> float:
    """When `each` must have moved, or a worker have said that it gets on. The token after the first may also have to
    wait, for the transfer and for a place in decode's batch."""
    beyond_first = each.next_position - attempt.first[each.sequence]
    if beyond_first == 0:
        return max(attempt.patient_since, attempt.progressed_s) + first_token_s(attempt, deadlines)
    if beyond_first == 1 and not attempt.decode.computes_prompt:
        return max(each.moved_s, attempt.progressed_s) + first_token_s(attempt, deadlines)
    return max(each.moved_s, attempt.decode.progressed_s) + deadlines.inter_token_s


def earliest(attempt: Attempt, unfinished: Iterable[Positions], deadlines: Deadlines) -> tuple[float, Positions]:
    """The sequence that is due first, and when."""
    found: tuple[float, Positions] | None = None
    for each in unfinished:
        at = due(attempt, each, deadlines)
        if found is None or at < found[0]:
            found = at, each
    assert found is not None, "an attempt has a sequence that goes on"
    return found


def next_look(attempt: Attempt, unfinished: Iterable[Positions], deadlines: Deadlines, now: float) -> float:
    """When to look for stalls again. Progress can bring a deadline nearer (from first token to inter-token), and
    nobody is told of it on the hot path; looking four times per inter-token deadline notices soon enough."""
    return min(earliest(attempt, unfinished, deadlines)[0], now + deadlines.inter_token_s / 4)
