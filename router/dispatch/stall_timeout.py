"""Decides when a sequence counts as stalled. Pure."""

from collections.abc import Iterable
from typing import Final

from router.dispatch.attempt import Attempt, WorkerStream
from router.dispatch.positions import Positions
from tandem.core.deadlines import Deadlines

STEPS: Final = 10
"""The number of its steps for which a prompt may stand still."""
_UNMEASURED_STEP_S: Final = 3.0
"""Seconds that a step is taken to last on a worker that has reported none."""


_CALL_OFF_S: Final = 1.0
"""Seconds that a prefill which is given up may take to end, unless a step takes longer."""


def stall_timeout_s(step_s: float, bound_s: float, most_s: float) -> float:
    """Seconds that a prompt may go without a token computed where a step takes `step_s` (zero: unknown): `bound_s`,
    or ten steps where these are longer, but no longer than `most_s` on their account."""
    return max(bound_s, min(STEPS * (step_s or _UNMEASURED_STEP_S), most_s))


def call_off_s(leg: WorkerStream, deadlines: Deadlines, *, moves: bool = False) -> float:
    """Seconds to wait until a prefill that is given up ends, which its worker reports when its step is over. A prompt
    that `moves` is in no step; a worker that reports nothing about it within this bound is lost."""
    least_s = deadlines.heartbeat_lost_s + deadlines.heartbeat_every_s if moves else _CALL_OFF_S
    return max(least_s, min(_step_s(leg), deadlines.prefill_progress_s))


def _step_s(leg: WorkerStream) -> float:
    load = leg.peer.view.load
    return load.longest_step_s if load is not None else 0.0


def due(attempt: Attempt, each: Positions, deadlines: Deadlines) -> float:
    """The time by which `each` must have grown, or a worker have reported progress.

    While a prefill worker computes the prompt, only its own reports count, which come with a heartbeat: what decode
    reports concerns other requests. A worker that computes the prompt itself has its own bound on the wait for a
    place before that. The token after the first may also have to wait, for the transfer and for a place in decode's
    batch.
    """
    beyond_first = each.next_position - attempt.first[each.sequence]
    place_s = deadlines.standstill_max_s
    if beyond_first == 0 and attempt.prefill is not None:
        since = max(attempt.patient_since, attempt.prefill.progressed_s)
        told_s = deadlines.heartbeat_every_s
        step_s, bound_s = _step_s(attempt.prefill), deadlines.prefill_progress_s
        return since + stall_timeout_s(step_s, bound_s, place_s) + told_s
    if beyond_first == 0:
        return max(attempt.patient_since, attempt.decode.progressed_s) + place_s
    if beyond_first == 1 and not attempt.decode.computes_prompt:
        return max(each.moved_s, attempt.progressed_s) + place_s
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
    """When to look for stalls again. Progress can bring a deadline nearer (from first token to inter-token), and the
    hot path does not report it; four looks per inter-token deadline notice soon enough. A prefill that is called off
    has a bound of its own, and so has a decode that waits for permission to compute what it could not fetch."""
    if attempt.calls_off is not None:
        return attempt.calls_off_until
    if attempt.missing is not None and attempt.prefill is not None:
        return attempt.missing.ask_at
    return min(earliest(attempt, unfinished, deadlines)[0], now + deadlines.inter_token_s / 4)
