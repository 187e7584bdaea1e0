"""The workers of role `auto` of a service for people: the split in force, why, and what others would give. Pure."""

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from router.fleet.split_listing import FleetOutlook, SplitOptionListing

_NAMED_MAX: Final = 12
NONE: Final = "no service has workers of role auto: their roles are fixed"


def render_split(outlook: FleetOutlook) -> Group:
    """Render the split of one service."""
    parts: list[RenderableType] = [Text(headline(outlook), style="bold"), _facts(outlook)]
    if outlook.outlooks:
        parts += [Text(""), _ways(outlook)]
    return Group(*parts)


def headline(outlook: FleetOutlook) -> str:
    """The split in one line."""
    many, taking = len(outlook.workers), len(outlook.prefills)
    if many <= 1:
        return f"{outlook.service}: {'its one worker serves whole requests' if many else 'no worker is linked'}"
    if not taking:
        return f"{outlook.service}: all {many} workers serve whole requests"
    verb = "takes" if taking == 1 else "take"
    return f"{outlook.service}: {taking} of {many} workers {verb} prompts for the others"


def facts(outlook: FleetOutlook) -> Iterator[tuple[str, str]]:
    """Label and value of every line."""
    if outlook.prefills:
        yield "take prompts", _names(outlook.prefills)
    rest = tuple(name for name in outlook.workers if name not in outlook.prefills)
    if rest:
        yield "decode" if outlook.prefills else "workers", _names(rest)
    if outlook.objective:
        yield (
            "to hold",
            ", ".join(f"{name.removesuffix('_s').upper()} ≤ {s:g} s" for name, s in outlook.objective.items()),
        )
    yield "steps", _bound(outlook.itl_ms, "without a bound")
    yield "why", outlook.why
    changed = "no worker has moved" if not outlook.moves else f"{outlook.moves} moves of workers so far"
    yield "for", f"{duration(outlook.since_s)}, {changed}"
    here = ", the router that was asked" if outlook.decides_here else ""
    yield "decides", f"{outlook.decides}{here}" if outlook.decides else "no router: the last split stays"
    error = outlook.forecast_error
    yield "forecasts", "not compared yet" if error is None else f"{error * 100:.1f} points off on average"


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _facts(outlook: FleetOutlook) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for label, value in facts(outlook):
        table.add_row(Text(label), Text(value))
    return table


def _ways(outlook: FleetOutlook) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("what others would give", no_wrap=True)
    for column in ("steps", "hold the SLO", "about the knee", "tokens/s"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    current = in_force(outlook)
    for way in outlook.outlooks:
        now = way is current
        cells = (
            f"{way.prefills} of {len(outlook.workers)} take prompts" if way.prefills else "all serve whole requests",
            _bound(way.itl_ms, "as the SLO says"),
            f"{way.attainment:.1%}",
            f"{way.carried:.1%}",
            f"{way.tokens_per_s:,.0f}",
            "in force" if now else "",
        )
        table.add_row(*(Text(cell) for cell in cells), style="green" if now else "")
    return table


def in_force(outlook: FleetOutlook) -> SplitOptionListing | None:
    """The way that is taken now: one without a bound of its own has the objective's."""
    same = [way for way in outlook.outlooks if way.prefills == len(outlook.prefills)]
    exact = (way for way in same if way.itl_ms == outlook.itl_ms)
    return next(exact, next((way for way in same if way.itl_ms is None), None))


def _bound(itl_ms: float | None, otherwise: str) -> str:
    return otherwise if itl_ms is None else f"≤ {itl_ms:g} ms"


def _names(names: tuple[str, ...]) -> str:
    others = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"{', '.join(names[:_NAMED_MAX])}{others}"
