"""The goodput bench's tables, its JSON and its picture."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.goodput_auto import Auto
from benchmarks.goodput_capacity import Capacity, Key
from benchmarks.goodput_cells import Cell
from benchmarks.goodput_judge import Found, best_peer, line_of
from benchmarks.rounds import Check, rounded, table
from benchmarks.statistics import Interval
from tandem.core.errors import TandemError


def split_name(prefills: int, workers: int) -> str:
    """12P4D, or unified."""
    return f"{prefills}P{workers - prefills}D" if prefills else "unified"


def splits(found: Sequence[Found]) -> str:
    """A line per cell: attainment of every split (means over its seeds), which is best, its requests in the objective
    per second, by how much it is over unified, and its latencies."""
    shares = sorted({_share(split, each.cell) for each in found for split in each.splits})
    head = (
        *("share of offered requests in SLO", "req/s", *(f"{share:.0%}P" for share in shares)),
        *("best", "seeds", "in SLO/s", "over unified", "TTFT p90 s", "TPOT p90 ms", "ITL p99 ms", "tokens/s"),
    )
    rows = []
    for each in found:
        by_share = {_share(split, each.cell): fmean(by.values()) for split, by in each.splits.items()}
        rows.append(
            (
                each.cell.name,
                f"{each.rate:.1f}",
                *(f"{by_share[share]:.3f}" if share in by_share else "-" for share in shares),
                split_name(each.best, each.cell.workers),
                f"{len(each.splits[each.best])}",
                f"{fmean(each.per_s[each.best].values()):.2f}",
                _interval(each.over_unified),
                f"{each.figures['ttft_p90_s']:.2f}",
                f"{1e3 * each.figures['tpot_p90_s']:.1f}",
                f"{1e3 * each.figures['itl_p99_s']:.1f}",
                f"{each.figures['tokens_per_s']:,.0f}",
            )
        )
    return table(head, rows)


def _share(split: int, cell: Cell) -> float:
    """To a whole quarter of a worker in eight, so that sizes share columns."""
    return round(split / cell.workers * 16) / 16


def contests(found: Sequence[Found]) -> str:
    """Ours at its best split beside every peer and beside itself without a part, where they ran: the share and the
    requests per second in the objective. The ratio is of the share, in a closed loop of the requests per second."""
    rows = [
        (
            each.cell.name,
            f"{each.attainment:.3f}",
            f"{fmean(each.per_s[each.best].values()):.2f}",
            one.contender,
            split_name(one.prefills, each.cell.workers),
            f"{fmean(one.theirs.values()):.3f}",
            f"{fmean(one.per_s.values()):.2f}",
            f"{len(one.theirs)}",
            _interval(one.ratio),
        )
        for each in found
        for one in (*each.peers, *each.ablated)
    ]
    head = ("beside others", "ours", "in SLO/s", "contender", "split", "it has", "in SLO/s", "seeds", "ours over it")
    return table(head, rows)


def autos(found: Sequence[Auto]) -> str:
    """A split that follows the load in every cell where it ran: its share in the objective, what it has over the best
    fixed split, workers that change kind a minute, how many take prompts at the end by seed, and what it has some
    time after a shift of traffic over the best split for it."""
    rows = [
        (
            each.cell.name,
            f"{fmean(each.attained.values()):.3f}",
            f"{len(each.attained)}",
            _interval(each.over_best),
            f"{fmean(each.moves.values()):.2f}",
            " ".join(str(held[-1][1]) if held else "-" for _, held in sorted(each.held.items())),
            _interval(each.after_shifts),
        )
        for each in found
    ]
    head = (
        "split that follows the load",
        "share",
        "seeds",
        "over best split",
        "moves/min",
        "P at the end",
        "after a shift",
    )
    return table(head, rows)


def recoveries(found: Sequence[Found]) -> str:
    """By cell, of the best split: after an overload, by seed, seconds until 95 % of those that arrive are in the
    objective again; after each change of traffic, seconds until 95 % of what the best split for it has."""
    rows = [
        (
            each.cell.name,
            split_name(each.best, each.cell.workers),
            ", ".join(
                "never" if one is None else f"{one:.0f}" for one in (*each.recovery_s.values(), *each.shifts_s)
            ),
        )
        for each in found
        if each.recovery_s or each.shifts_s
    ]
    return table(("recovery after an overload or a change", "split", "s"), rows)


def _interval(found: Interval | None) -> str:
    return "-" if found is None else f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def write_json(
    path: Path,
    setup: Mapping[str, object],
    capacities: Mapping[Key, Capacity],
    found: Sequence[Found],
    checks: Sequence[Check],
) -> None:
    """Everything, a line per cell. Raises `bad_setting` when it cannot be written."""
    units = [
        {"traffic": key[0], "workers": key[1], "tpot_ms": key[2], "scale": each.scale, "prefills": each.prefills}
        for key, each in sorted(capacities.items())
    ]
    lines = [f'{{"setup": {json.dumps(dict(setup))},', f'"capacity": {json.dumps(units)},', '"checks": [']
    lines += _listed(
        [{"check": each.name, "value": each.value, "bound": each.bound, "met": each.met} for each in checks]
    )
    lines += ['], "cells": [', *_listed([rounded(line_of(each)) for each in found]), "]}"]
    try:
        path.write_text("\n".join(lines) + "\n")
    except OSError as error:
        raise TandemError("bad_setting", f"{path} cannot be written: {error}") from error


def _listed(items: Sequence[object]) -> list[str]:
    lines = [json.dumps(item) for item in items]
    return [f"{line}," for line in lines[:-1]] + lines[-1:]


def plot(path: Path, found: Sequence[Found]) -> None:
    """A picture per traffic and size: attainment by load, of the best split, of all unified workers, of the best peer
    and of a split that follows the load; solid for the wide bound on TPOT, dashed for the tight one. Raises
    `bad_setting` without matplotlib or when the file cannot be written."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TandemError("bad_setting", "the plot needs matplotlib, which is not installed") from error
    # Ids and dates of an SVG would differ from run to run.
    matplotlib.rcParams["svg.hashsalt"] = "tandem"
    kinds = list(dict.fromkeys(each.cell.traffic for each in found))
    sizes = sorted({each.cell.workers for each in found})
    bounds = sorted({each.cell.tpot_ms for each in found}, reverse=True)
    figure = Figure(figsize=(3 * len(kinds), 2.8 * len(sizes)), layout="constrained")
    for place, (workers, kind) in enumerate((workers, kind) for workers in sizes for kind in kinds):
        axes = figure.add_subplot(len(sizes), len(kinds), place + 1)
        for bound, dashes in zip(bounds, ("-", "--", ":", "-."), strict=False):
            cells = [each for each in found if each.cell == Cell(kind, workers, each.cell.load, bound)]
            cells.sort(key=lambda each: each.cell.load)
            for label, color, points in _curves(cells):
                shown = f"{label}, TPOT {bound} ms" if place == 0 else "_"
                axes.plot(
                    [x for x, _ in points], [y for _, y in points], dashes, color=color, marker=".", label=shown
                )
        axes.set(title=f"{kind}, {workers}", ylim=(0, 1.03), xlabel="load", ylabel="share in SLO")
        axes.grid(visible=True, alpha=0.3)
        if place == 0:
            axes.legend(fontsize=5)
    try:
        figure.savefig(path, metadata={"Date": None})
    except (OSError, ValueError) as error:
        raise TandemError("bad_setting", f"{path} cannot be written: {error}") from error


def _curves(cells: Sequence[Found]) -> list[tuple[str, str, list[tuple[float, float]]]]:
    """(what, colour, points by load)."""
    best = [(each.cell.load, each.attainment) for each in cells]
    unified = [(each.cell.load, fmean(each.splits[0].values())) for each in cells if 0 in each.splits]
    peers = [(each.cell.load, fmean(peer.theirs.values())) for each in cells if (peer := best_peer(each)) is not None]
    auto = [(each.cell.load, fmean(each.auto.attained.values())) for each in cells if each.auto is not None]
    return [
        ("best split", "black", best),
        ("unified", "tab:blue", unified),
        ("best peer", "tab:orange", peers),
        ("auto", "tab:green", auto),
    ]
