"""Service-level objectives: how a request can end, what it was measured at, and what meets its bounds.

Goodput is counted over the requests that were *offered*: one that was refused, ran into its deadline, failed or had
not ended when the measurement did misses every bound. Only a request that its own client cancelled is left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class End(StrEnum):
    """How an offered request ended, as its client saw it."""

    DONE = "done"
    REFUSED = "refused"
    DEADLINE = "deadline"
    FAILED = "failed"
    UNFINISHED = "unfinished"
    CANCELLED = "cancelled"
    """The request was cancelled by its own client: it says nothing about the service and is not counted."""


@dataclass(frozen=True)
class Latency:
    """The measured latencies of a request that was answered in full, in seconds.

    `tpot_s` is the mean time per output token after the first and `itl_p99_s` the 99th percentile of the request's
    own gaps between tokens; both are None where an answer has one token.
    """

    ttft_s: float
    e2e_s: float
    tpot_s: float | None = None
    itl_p99_s: float | None = None


@dataclass(frozen=True)
class Slo:
    """Upper bounds in seconds, inclusive; None means no bound. `itl_s` bounds a request's own 99th percentile."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None

    def completed(self, otherwise: "Slo") -> "Slo":
        """These bounds, with the TTFT and TPOT bounds of `otherwise` where this objective sets none."""
        ttft_s = otherwise.ttft_s if self.ttft_s is None else self.ttft_s
        tpot_s = otherwise.tpot_s if self.tpot_s is None else self.tpot_s
        return Slo(ttft_s, tpot_s, self.itl_s, self.e2e_s)

    @property
    def step_s(self) -> float | None:
        """Seconds that a step with running sequences may take so that their tokens come in time: the ITL target of a
        worker. None where nothing bounds ITL or TPOT."""
        bounds = [bound for bound in (self.itl_s, self.tpot_s) if bound is not None]
        return min(bounds) if bounds else None

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds that are set, by the name of what they bound: `ttft`, `tpot`, `itl`, `e2e`."""
        named = {"ttft": self.ttft_s, "tpot": self.tpot_s, "itl": self.itl_s, "e2e": self.e2e_s}
        return {name: bound for name, bound in named.items() if bound is not None}

    def missed(self, latency: Latency) -> frozenset[str]:
        """The names of the bounds that a request lies over. What it has no figure for is not missed."""
        measured = {
            "ttft": latency.ttft_s,
            "tpot": latency.tpot_s,
            "itl": latency.itl_p99_s,
            "e2e": latency.e2e_s,
        }
        return frozenset(name for name, bound in self.bounds.items() if (measured[name] or 0.0) > bound)

    def met_by(self, latency: Latency) -> bool:
        """Whether a request that was answered in full is goodput."""
        return not self.missed(latency)


UNBOUND: Final = Slo()
TTFT_S: Final = 2.0
TPOT_S: Final = 0.1
DEFAULT: Final = Slo(TTFT_S, TPOT_S)
"""The objective that holds where none is set."""


@dataclass(frozen=True)
class Attainment:
    """The numbers of `offered` requests that met every bound (`met`) and each bound alone (`within`, by the bound's
    name)."""

    offered: int
    met: int
    within: dict[str, int]

    @property
    def share(self) -> float:
        """The share of offered requests that are goodput; 0 where none was offered."""
        return self.met / self.offered if self.offered else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """The share of offered requests within each bound; 0 where none was offered."""
        return {name: count / self.offered if self.offered else 0.0 for name, count in self.within.items()}


def attained(slo: Slo, requests: Iterable[tuple[End, Latency | None]]) -> Attainment:
    """The attainment of `slo` by `requests`, each given as how it ended and its latency when it is done.

    A request that its client cancelled is not counted; one that is not done misses every bound.
    """
    offered = met = 0
    within = dict.fromkeys(slo.bounds, 0)
    for end, latency in requests:
        if end is End.CANCELLED:
            continue
        offered += 1
        if end is not End.DONE or latency is None:
            continue
        missed = slo.missed(latency)
        met += not missed
        for name in within.keys() - missed:
            within[name] += 1
    return Attainment(offered, met, within)
