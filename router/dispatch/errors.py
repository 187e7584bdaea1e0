"""The typed errors in which a request can end, in words. Pure."""

from router.placement import Unplaced
from tandem.core.errors import TandemError


def never_fits(obstacle: Unplaced) -> TandemError:
    """The error of a request that no worker could ever hold."""
    return TandemError("context_length_exceeded", "; ".join(obstacle.reasons))


def too_late(allowed_s: float, tokens: int) -> TandemError:
    """The request's own deadline has passed."""
    message = f"the request did not finish within {allowed_s:g} s; {tokens} tokens had been generated"
    return TandemError("deadline_exceeded", message)


def no_worker_came(waited_s: float, obstacle: Unplaced | None, retry_after_s: float) -> TandemError:
    """The error of a request that has waited for a worker as long as it may."""
    known = obstacle or Unplaced("queue_full", ("others were first",))
    message = f"no worker could take the request within {waited_s:.1f} s: {'; '.join(known.reasons)}"
    return TandemError(known.code, message, retry_after_s=retry_after_s)


def not_in_time(reason: str, retry_after_s: float) -> TandemError:
    """The error of a request whose prompt no worker is expected to have computed before its client's deadline."""
    message = f"prompts are computed more slowly than they come: {reason}"
    return TandemError("queue_full", message, retry_after_s=min(30.0, max(1.0, retry_after_s)))


def gave_up(code: str, attempts: int, last: str) -> TandemError:
    """Too many attempts failed; `code` is what the last one failed with."""
    return TandemError(code, f"gave up after {attempts} attempts; the last one: {last}")


def too_many_retries(code: str, last: str) -> TandemError:
    """The budget of retries shared by all requests is used up."""
    return TandemError(code, f"{last}; not tried again, as too many requests are being retried")
