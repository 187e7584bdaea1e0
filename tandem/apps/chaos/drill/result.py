"""The results of rounds, and whether they are a pass. Pure values, and the JSON of `--json`."""

from collections.abc import Sequence

import msgspec


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round. Empty `problems` are a pass; times are seconds."""

    kind: str
    stage: str
    victim: str
    requests: int
    misuses: int
    """Single misuses by abusers during the round."""
    lost: int
    duplicated: int
    wrong: int
    without_end: int
    broken: int
    """Requests whose connection ended before their answer did."""
    resumed: int
    """Of the broken requests, those whose stream was resumed and read to its end."""
    longest_pause_s: float
    """The longest silence a client that was answered saw, of those not over when the blow fell; before the first
    token it counts from the blow."""
    recovery_s: float | None
    """Seconds from the blow (or from the moment a frozen process resumes) until the platform was whole; None when it
    did not become whole."""
    blocks_leaked: int
    release_s: float
    """Seconds from the end of the last request until no worker held a block."""
    missed: int
    """Requests that could not be caught in the stage before one was."""
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.problems


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds of one cell. Counts are sums, times the longest."""

    kind: str
    stage: str
    engine: str
    rounds: int
    failed: int
    requests: int
    misuses: int
    lost: int
    duplicated: int
    wrong: int
    without_end: int
    broken: int
    resumed: int
    blocks_leaked: int
    longest_pause_s: float
    recovery_s: float | None


def summarize(rounds: Sequence[Round], engine: str) -> Summary:
    """The figures of one cell. A round that did not recover leaves no recovery time."""
    assert rounds, "a cell has rounds"
    recoveries = [each.recovery_s for each in rounds]
    return Summary(
        kind=rounds[0].kind,
        stage=rounds[0].stage,
        engine=engine,
        rounds=len(rounds),
        failed=sum(not each.passed for each in rounds),
        requests=sum(each.requests for each in rounds),
        misuses=sum(each.misuses for each in rounds),
        lost=sum(each.lost for each in rounds),
        duplicated=sum(each.duplicated for each in rounds),
        wrong=sum(each.wrong for each in rounds),
        without_end=sum(each.without_end for each in rounds),
        broken=sum(each.broken for each in rounds),
        resumed=sum(each.resumed for each in rounds),
        blocks_leaked=sum(each.blocks_leaked for each in rounds),
        longest_pause_s=max(each.longest_pause_s for each in rounds),
        recovery_s=None if None in recoveries else max(each or 0.0 for each in recoveries),
    )


class Report(msgspec.Struct, frozen=True):
    """Everything a run of drills came to."""

    url: str
    cells: tuple[Summary, ...]
    rounds: tuple[Round, ...]

    @property
    def passed(self) -> bool:
        return all(not cell.failed for cell in self.cells)
