"""The display of `tandem up` for people: a live table on a terminal, a line per event elsewhere."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tandem.apps.cli.member import Member

_COLOURS: Final = {"ready": "green", "restarting": "red", "loading": "yellow", "stopping": "yellow"}


class StatusDisplay(Protocol):
    """Shows members and prints sentences about them. A context manager."""

    def changed(self, member: Member, sentence: str) -> None: ...

    def say(self, text: str) -> None: ...

    def __enter__(self) -> "StatusDisplay": ...

    def __exit__(self, *raised: object) -> None: ...


class LineDisplay:
    """A line for each sentence and each quarter of loading."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._quarters: dict[str, int] = {}

    def changed(self, member: Member, sentence: str) -> None:
        if sentence:
            self._write(sentence)
        quarter = int((member.loaded or 0.0) * 4)
        if quarter > self._quarters.get(member.name, 0):
            self._write(f"{member.name} is loading, {quarter * 25} %")
        self._quarters[member.name] = quarter

    def say(self, text: str) -> None:
        self._write(text)

    def __enter__(self) -> "LineDisplay":
        return self

    def __exit__(self, *raised: object) -> None:
        return None


class TableDisplay:
    """A table that stays at the bottom of the terminal; sentences scroll by above it."""

    def __init__(self, console: Console, members: Sequence[Member], figures: Callable[[], str]) -> None:
        self._members = members
        self._figures = figures
        self._live = Live(console=console, get_renderable=self._picture, refresh_per_second=4)

    def changed(self, member: Member, sentence: str) -> None:
        if sentence:
            self.say(sentence)

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _picture(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("process", "role", "state", "pid", "address", "restarts", ""):
            table.add_column(column)
        for member in self._members:
            state = Text(state_of(member), style=_COLOURS.get(member.state, ""))
            pid = "" if member.pid is None else str(member.pid)
            table.add_row(member.name, member.role, state, pid, member.address, str(member.restarts), member.note)
        return Group(table, Text(self._figures(), style="dim"))

    def __enter__(self) -> "TableDisplay":
        self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._live.stop()


def state_of(member: Member) -> str:
    """The state in one word, with the share that is loaded."""
    return member.state if member.loaded is None else f"{member.state} {member.loaded:.0%}"
