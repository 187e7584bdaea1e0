"""When a sequence ends: a pure rule over one new output position."""

from tandem.engine.sequence import Job


def finish_of(job: Job, token: int, position: int) -> tuple[str | None, int | None]:
    """(finish, stop reason) that `token` at output `position` (from 1) brings; (None, None) when it goes on.

    End tokens below or at `min_tokens` do not end a sequence: drawing them there is forbidden anyway.
    """
    stopping = job.work.stopping
    if position > stopping.min_tokens:
        if token in job.stop_tokens:
            return "stop", token
        if token in job.eos:
            return "stop", None
    if position >= stopping.max_tokens:
        return "length", None
    return None, None
