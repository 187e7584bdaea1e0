"""Effects of SIGINT and SIGTERM on a running benchmark."""

import asyncio
import signal
from types import TracebackType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While entered, cancels the task that entered it at the first SIGINT or SIGTERM; the next signal ends the
    process."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """The signal that came, None while none has."""

    @property
    def status(self) -> int:
        """The exit status that shells give a process that a signal ended: 130 for SIGINT, 143 for SIGTERM."""
        assert self.signal is not None
        return 128 + self.signal

    def __enter__(self) -> "Interruption":
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def came(number: signal.Signals) -> None:
            self.signal = number
            self._let_go()
            task.cancel()

        for number in _SIGNALS:
            loop.add_signal_handler(number, came, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()

    def _let_go(self) -> None:
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
