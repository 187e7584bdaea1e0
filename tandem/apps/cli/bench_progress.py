"""Shows the progress of a replay: a bar on a terminal, an occasional line elsewhere."""

import sys
import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from tandem.apps.bench.outcome import Outcome

_LINE_EVERY_S: Final = 5.0


class Progress:
    """Counts outcomes; a context manager. Everything goes to standard error."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._errors = 0
        self._next_line = time.monotonic() + _LINE_EVERY_S
        console = Console(stderr=True)
        columns = (TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, TextColumn("{task.fields[errors]} errors"), console=console, transient=True)
        self._task = self._bar.add_task("replay", total=total, errors=0)
        self._terminal = console.is_terminal

    def add(self, outcome: Outcome) -> None:
        """One request has ended."""
        self._done += 1
        self._errors += outcome.error is not None
        if self._terminal:
            self._bar.update(self._task, completed=self._done, errors=self._errors)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_EVERY_S
            print(f"bench: {self._done}/{self._total} done, {self._errors} errors", file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        if self._terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal:
            self._bar.stop()
