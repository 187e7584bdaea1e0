"""A picture of a replay: how latencies are distributed, and tokens over time. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path

from tandem.apps.bench.outcome import Outcome
from tandem.core.errors import TandemError


def plot(path: Path, title: str, outcomes: Sequence[Outcome]) -> None:
    """Write cumulative TTFT and inter-token gaps, and output tokens per second. Raises `bad_setting`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TandemError("bad_setting", "--plot needs matplotlib, which is not installed") from error
    good = [outcome for outcome in outcomes if outcome.ok]
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    figure.suptitle(title)
    ttft, gaps, rate = figure.subplots(1, 3)
    _cumulative(ttft, "TTFT (s)", [outcome.ttft_s for outcome in good])
    _cumulative(gaps, "inter-token gap (s)", [gap for outcome in good for gap in outcome.gaps_s])
    _throughput(rate, good)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise TandemError("bad_setting", f"--plot: {path} cannot be written: {error}") from error


def _cumulative(axes: object, label: str, values: Sequence[float]) -> None:
    shares = [(index + 1) / len(values) for index in range(len(values))]
    axes.plot(sorted(values), shares)  # type: ignore[attr-defined]
    axes.set(xlabel=label, ylabel="share of samples", ylim=(0, 1))  # type: ignore[attr-defined]
    axes.grid(visible=True, alpha=0.3)  # type: ignore[attr-defined]


def _throughput(axes: object, outcomes: Sequence[Outcome]) -> None:
    seconds = tokens_per_second(outcomes)
    axes.plot(range(len(seconds)), seconds)  # type: ignore[attr-defined]
    axes.set(xlabel="time (s)", ylabel="output tokens/s")  # type: ignore[attr-defined]
    axes.grid(visible=True, alpha=0.3)  # type: ignore[attr-defined]


def tokens_per_second(outcomes: Sequence[Outcome]) -> list[float]:
    """Output tokens by second of the replay; an answer's tokens are spread evenly over its deltas."""
    seconds = [0.0] * (1 + int(max((outcome.end_s for outcome in outcomes), default=0.0)))
    for outcome in outcomes:
        assert outcome.first_s is not None
        at = outcome.first_s
        share = outcome.output_tokens / (1 + len(outcome.gaps_s))
        for gap in (0.0, *outcome.gaps_s):
            at += gap
            seconds[min(int(at), len(seconds) - 1)] += share
    return seconds
