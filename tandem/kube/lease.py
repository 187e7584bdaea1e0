"""Leader election: the decision over one Lease, without I/O.

Clocks of different machines are never compared. A candidate takes a Lease only after it has seen it unchanged for its
whole duration on its own monotonic clock. A leader stops leading `renew_within_s` after it began its last successful
renewal, which is shorter. So two never lead at once as long as clocks run at about the same speed.
"""

from dataclasses import dataclass
from typing import Literal

from tandem.kube.kinds import Json

Move = Literal["take", "renew", "wait"]


@dataclass(frozen=True)
class LeaseSettings:
    """Seconds. What is between `renew_within_s` and `duration_s` is the margin for clocks that drift."""

    name: str
    namespace: str
    duration_s: float = 15.0
    renew_within_s: float = 10.0
    retry_s: float = 2.0
    call_s: float = 5.0

    def __post_init__(self) -> None:
        assert self.retry_s < self.renew_within_s < self.duration_s


@dataclass(frozen=True)
class ObservedLease:
    """A Lease as it was last read, and since when (monotonic) it is known to be like that."""

    version: str
    holder: str
    duration_s: float
    since: float


def observe_lease(lease: Json, last: ObservedLease | None, now: float) -> ObservedLease:
    """The observation of a Lease after reading `lease`: `last` itself while the version is unchanged."""
    version = lease["metadata"]["resourceVersion"]
    if last is not None and last.version == version:
        return last
    spec = lease.get("spec", {})
    return ObservedLease(version, spec.get("holderIdentity") or "", float(spec.get("leaseDurationSeconds") or 0), now)


def next_move(known: ObservedLease, identity: str, now: float) -> Move:
    """Renew what is ours, take what is free or has not been renewed in time, else wait.

    A Lease that bears our name from an earlier life is ours: names are drawn anew for each process.
    """
    if known.holder == identity:
        return "renew"
    expired = now - known.since >= known.duration_s
    return "take" if not known.holder or expired else "wait"
