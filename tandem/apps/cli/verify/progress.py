"""Shows how many prompts have been answered: a bar on a terminal, an occasional line elsewhere."""

import sys
import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_LINE_EVERY_S: Final = 5.0


class Bar:
    """Counts the answers of one side; a context manager. Everything goes to standard error."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._next_line = time.monotonic() + _LINE_EVERY_S
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task(title, total=total)
        self._terminal = console.is_terminal

    def add(self) -> None:
        """One answer more."""
        self._done += 1
        if self._terminal:
            self._bar.update(self._task, completed=self._done)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_EVERY_S
            print(f"verify: {self._title}: {self._done}/{self._total} answered", file=sys.stderr, flush=True)

    def __enter__(self) -> "Bar":
        if self._terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal:
            self._bar.stop()
