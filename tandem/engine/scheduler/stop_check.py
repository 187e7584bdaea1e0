"""The rule for when a sequence ends: a pure function of one new output position."""

from typing import Final

from tandem.engine.scheduler.sequence import ScheduledRequest

_GOES_ON: Final = (None, None)


def finish_of(job: ScheduledRequest, token: int, position: int) -> tuple[str | None, int | None]:
    """The pair (finish, stop reason) that results from `token` at output `position` (from 1); (None, None) when the
    sequence goes on.

    End tokens at or below `min_tokens` do not end a sequence: sampling them there is forbidden anyway.
    """
    if position > job.min_tokens and token in job.ends:
        return "stop", (token if token in job.stop_tokens else None)
    if position >= job.max_tokens:
        return "length", None
    return _GOES_ON
