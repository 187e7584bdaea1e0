"""The routing bench's tables, its JSON and its picture."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from statistics import fmean

from benchmarks.fleet.contenders import OURS, OURSELVES
from benchmarks.rounds import Check, rounded, table
from benchmarks.routing_judge import AgainstBest, Medians, goodput_over_rates, rates_compared
from benchmarks.statistics import Interval
from tandem.core.errors import TandemError

Found = Mapping[str, Mapping[str, Medians]]
"""By scenario, by policy."""


def overview(scenario: str, found: Mapping[str, Medians]) -> str:
    """A line per policy, the most tokens per second first."""
    head = (
        scenario,
        "tokens/s",
        "TTFT mean",
        "p50",
        "p90",
        "p99 s",
        "hits",
        "work max/mean",
        "preempted",
        "E2E s",
        "in SLO",
    )
    ordered = sorted(found.items(), key=lambda item: -item[1].tokens_per_s)
    return table(
        head,
        (
            (
                name,
                f"{each.tokens_per_s:,.0f}",
                f"{each.ttft_mean_s:.2f}",
                f"{each.ttft_p50_s:.2f}",
                f"{each.ttft_p90_s:.2f}",
                f"{each.ttft_p99_s:.2f}",
                f"{each.hit_ratio:.3f}",
                f"{each.imbalance:.2f}",
                f"{each.preemptions:.0f}",
                f"{each.end_to_end_mean_s:.1f}",
                f"{each.attainment:.3f}",
            )
            for name, each in ordered
        ),
    )


def by_rate(scenario: str, found: Mapping[str, Medians]) -> str:
    """Steady tokens per second and TTFT p90 at every rate, ours beside the best peer's."""
    peers = {name: each for name, each in found.items() if name not in OURSELVES}
    rows = []
    for place, mine in enumerate(found[OURS].stages):
        tokens = max((each.stages[place].steady_tokens_per_s, name) for name, each in peers.items())
        waits = min((each.stages[place].ttft_p90_s, name) for name, each in peers.items())
        rows.append(
            (
                f"{mine.rate:g}",
                f"{mine.steady_tokens_per_s:,.0f}",
                f"{tokens[0]:,.0f}",
                tokens[1],
                f"{mine.ttft_p90_s:.3f}",
                f"{waits[0]:.3f}",
                waits[1],
            )
        )
    head = (f"{scenario} by rate", "steady tokens/s", "best peer", "which", "TTFT p90 s", "best peer", "which")
    return table(head, rows)


def goodput(scenario: str, mine: Medians, against: Sequence[AgainstBest]) -> str:
    """At every rate: requests in the objective a second, the share of those offered beside the best peer's with the
    paired ratio and its 95 % interval, and the latencies that the objective bounds, medians over seeds."""
    rows = [
        (
            f"{each.rate:g}",
            f"{stage.goodput_per_s:.2f}",
            f"{fmean(each.ours.values()):.3f}",
            f"{fmean(each.theirs.values()):.3f}",
            each.peer,
            _interval(each.ratio),
            f"{stage.ttft_p50_s:.3f}/{stage.ttft_p99_s:.3f}",
            f"{1e3 * stage.tpot_p50_s:.1f}/{1e3 * stage.tpot_p99_s:.1f}",
            f"{1e3 * stage.itl_p50_s:.1f}/{1e3 * stage.itl_p99_s:.1f}",
        )
        for stage, each in zip(mine.stages, against, strict=True)
    ]
    head = (
        f"{scenario} in SLO",
        "req/s",
        "share",
        "best peer",
        "which",
        "ratio",
        "TTFT p50/p99 s",
        "TPOT p50/p99 ms",
        "ITL p50/p99 ms",
    )
    over = goodput_over_rates(against)
    of_what = f"{len(rates_compared(against))} of {len(against)} rates, {over.seeds if over else 0} seeds"
    return f"{table(head, rows)}\ngeometric mean of the ratios over {of_what}: {_interval(over)}"


def _interval(found: Interval | None) -> str:
    return "-" if found is None else f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def goodput_lines(scenario: str, against: Sequence[AgainstBest]) -> list[dict[str, object]]:
    """For the JSON, a line per rate; a bound that is unknown, of a single seed, is null."""
    return [
        {
            "scenario": scenario,
            "rate": each.rate,
            "attainment": fmean(each.ours.values()),
            "peer": each.peer,
            "peer_attainment": fmean(each.theirs.values()),
            "ratio": None if each.ratio is None else each.ratio.mean,
            "low": None if each.ratio is None or not isfinite(each.ratio.low) else each.ratio.low,
            "high": None if each.ratio is None or not isfinite(each.ratio.high) else each.ratio.high,
            "seeds": len(each.theirs),
        }
        for each in against
    ]


def write_json(
    path: Path,
    setup: Mapping[str, object],
    found: Found,
    checks: Sequence[Check],
    in_slo: Sequence[Mapping[str, object]] = (),
) -> None:
    """Figures with four digits, a line per check and per policy. Raises `bad_setting` when it cannot be written."""
    lines = [f'{{"setup": {_compact(setup)},', '"checks": [']
    lines += _listed(
        {"check": check.name, "value": check.value, "bound": check.bound, "met": check.met} for check in checks
    )
    lines.append('], "goodput": [')
    lines += _listed(in_slo)
    lines.append('], "runs": [')
    lines += _listed(
        {"scenario": scenario, "policy": policy, **_without_stages(each), "stages": _columns(each)}
        for scenario, policies in found.items()
        for policy, each in policies.items()
    )
    try:
        path.write_text("\n".join([*lines, "]}"]) + "\n")
    except OSError as error:
        raise TandemError("bad_setting", f"{path} cannot be written: {error}") from error


def _listed(items: Iterable[object]) -> list[str]:
    """One line each, with the commas between them."""
    lines = [_compact(item) for item in items]
    return [f"{line}," for line in lines[:-1]] + lines[-1:]


def _compact(value: object) -> str:
    return json.dumps(rounded(value))


def _without_stages(each: Medians) -> dict[str, object]:
    return {key: value for key, value in asdict(each).items() if key != "stages"}


def _columns(each: Medians) -> dict[str, list[float]]:
    """Stages as one list per figure."""
    stages = [asdict(stage) for stage in each.stages]
    return {key: [stage[key] for stage in stages] for key in stages[0]}


def plot(path: Path, found: Found, ladder: str, shown: Sequence[str]) -> None:
    """The ladder by rate, and TTFT of the conversation trace by policy. Raises `bad_setting` without matplotlib or
    when the file cannot be written."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TandemError("bad_setting", "the plot needs matplotlib, which is not installed") from error
    # Ids and dates of an SVG would differ from run to run.
    matplotlib.rcParams["svg.hashsalt"] = "tandem"
    figure = Figure(figsize=(14, 4.2), layout="constrained")
    tokens, waits, conversations = figure.subplots(1, 3)
    for name in shown:
        if name in found[ladder]:
            stages = found[ladder][name].stages
            style = {"linewidth": 2.5, "color": "black"} if name == OURS else {"linewidth": 1.2}
            rates = [stage.rate for stage in stages]
            tokens.plot(rates, [stage.tokens_per_s for stage in stages], label=name, **style)
            waits.plot(rates, [max(stage.ttft_p90_s, 1e-3) for stage in stages], label=name, **style)
    tokens.set(xlabel=f"{ladder}: requests/s", ylabel="output tokens/s", ylim=(0, None))
    waits.set(xlabel=f"{ladder}: requests/s", ylabel="TTFT p90 (s)", yscale="log")
    waits.legend(fontsize=7)
    _bars(conversations, {name: each for name, each in found.items() if name.startswith(("16", "8P"))}, shown)
    for axes in (tokens, waits):
        axes.grid(visible=True, alpha=0.3)
    try:
        figure.savefig(path, metadata={"Date": None})
    except (OSError, ValueError) as error:
        raise TandemError("bad_setting", f"{path} cannot be written: {error}") from error


def _bars(axes: object, conversations: Found, shown: Sequence[str]) -> None:
    """TTFT p90, a group per fleet, a bar per policy."""
    width = 0.8 / max(1, len(shown))
    for order, name in enumerate(shown):
        places = [place + width * order for place in range(len(conversations))]
        heights = [each[name].ttft_p90_s if name in each else 0.0 for each in conversations.values()]
        color = {"color": "black"} if name == OURS else {}
        axes.bar(places, heights, width, label=name, **color)  # type: ignore[attr-defined]
    axes.set_xticks([place + 0.4 for place in range(len(conversations))], list(conversations), fontsize=7)  # type: ignore[attr-defined]
    axes.set(ylabel="conversation trace: TTFT p90 (s)", yscale="log")  # type: ignore[attr-defined]
