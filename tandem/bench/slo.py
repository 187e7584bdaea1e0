"""Service-level objectives: what a request must stay under to count as goodput."""

from dataclasses import asdict, dataclass, fields

from tandem.bench.distribution import percentile
from tandem.bench.outcome import Outcome
from tandem.core.errors import TandemError


@dataclass(frozen=True)
class Slo:
    """Bounds in seconds; None means no bound. `itl` bounds a request's own 99th percentile, `tpot` its mean."""

    ttft: float | None = None
    itl: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds that are set, by key."""
        return {key: bound for key, bound in asdict(self).items() if bound is not None}

    def met_by(self, outcome: Outcome) -> bool:
        """Whether the request ended well and within every bound."""
        if not outcome.ok:
            return False
        measured = (
            (self.ttft, outcome.ttft_s),
            (self.itl, percentile(outcome.gaps_s, 99) if outcome.gaps_s else 0.0),
            (self.tpot, outcome.tpot_s or 0.0),
            (self.e2e, outcome.e2e_s),
        )
        return all(bound is None or value <= bound for bound, value in measured)


def parse_slo(text: str) -> Slo:
    """`ttft=2,itl=0.1`: keys ttft, itl, tpot, e2e, values in seconds. Raises `bad_setting`."""
    known = [field.name for field in fields(Slo)]
    bounds: dict[str, float] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        try:
            bound = float(value)
        except ValueError:
            bound = 0.0
        if key not in known or bound <= 0:
            raise TandemError("bad_setting", f"--slo: {part!r} is not KEY=SECONDS with KEY one of {', '.join(known)}")
        bounds[key] = bound
    return Slo(**bounds)
