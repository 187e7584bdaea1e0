"""The objectives of a command line, and the objectives that a replay's requests met."""

from collections.abc import Sequence

from tandem.apps.bench.distribution import percentile
from tandem.apps.bench.outcome import Outcome
from tandem.core.errors import TandemError
from tandem.core.slo import Attainment, Latency, Slo, attained

_KEYS = ("ttft", "tpot", "itl", "e2e")


def latency(outcome: Outcome) -> Latency | None:
    """The latencies measured for a request; None unless it was answered in full."""
    if not outcome.ok:
        return None
    itl_p99_s = percentile(outcome.gaps_s, 99) if outcome.gaps_s else None
    return Latency(outcome.ttft_s, outcome.e2e_s, outcome.tpot_s, itl_p99_s)


def attainment(slo: Slo, outcomes: Sequence[Outcome]) -> Attainment:
    """The attainment of `slo` by the requests of a replay."""
    return attained(slo, ((outcome.end, latency(outcome)) for outcome in outcomes))


def parse_slo(text: str) -> Slo:
    """`ttft=2,itl=0.1`: keys ttft, tpot, itl, e2e, values in seconds. Raises `bad_setting`."""
    bounds: dict[str, float] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        try:
            bound = float(value)
        except ValueError:
            bound = 0.0
        if key not in _KEYS or not bound > 0:
            raise TandemError("bad_setting", f"--slo: {part!r} is not KEY=SECONDS with KEY one of {', '.join(_KEYS)}")
        bounds[f"{key}_s"] = bound
    return Slo(**bounds)
