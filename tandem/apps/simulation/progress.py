"""Shows how far a long run is: one changing line on a terminal, a line now and then elsewhere. Writes to standard
error."""

import sys
import time
from typing import Final

_LINE_EVERY_S: Final = 15.0
_CHANGE_EVERY_S: Final = 0.2


class ProgressLine:
    """Shows sentences, as many as the reader can take."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._every_s = _CHANGE_EVERY_S if self._terminal else _LINE_EVERY_S
        self._next = time.monotonic() + self._every_s
        self._width = 0

    @property
    def due(self) -> bool:
        """Whether a sentence would be shown now; making one up may cost more than asking."""
        return time.monotonic() >= self._next

    def show(self, sentence: str) -> None:
        self._next = time.monotonic() + self._every_s
        if self._terminal:
            print(f"\r{sentence:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(sentence)
        else:
            print(sentence, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line on a terminal, so that other output can follow."""
        if self._terminal and self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)
