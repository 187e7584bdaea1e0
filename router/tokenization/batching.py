"""Short texts are tokenized together: those that arrive at about the same time, one right after the other.

A tokenizer walks through a megabyte or two of its own tables. Between two requests everything else a router does
pushes them out of the processor's cache, and the next text takes up to twice as long; right behind another it does
not.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

_TURN_CHARACTERS: Final = 16_384
"""Characters of text worked on before the event loop gets a turn: some milliseconds."""
_LOOKS_MAX: Final = 16
"""Turns of the event loop that may bring more work before the batcher starts on what it has."""


class TokenizeBatcher:
    """Runs work once a turn of the event loop has brought no more of it. Under low load that is soon; under high load
    the event loop gets further by batching similar work."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], Any], int, asyncio.Future[Any]]] = deque()
        self._seen = 0
        self._looks = 0

    async def run(self, work: Callable[[], T], characters: int) -> T:
        """Do `work` with the next batch; gives its result or raises its error."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        if not self._waiting:
            self._seen = self._looks = 0
            loop.call_soon(self._look, loop)
        self._waiting.append((work, characters, done))
        return await done

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for more as long as more comes."""
        if len(self._waiting) > self._seen and self._looks < _LOOKS_MAX:
            self._seen = len(self._waiting)
            self._looks += 1
            loop.call_soon(self._look, loop)
        else:
            self._turn(loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        left = _TURN_CHARACTERS
        while self._waiting and left > 0:
            work, characters, done = self._waiting.popleft()
            if done.done():
                continue  # whoever asked has gone
            left -= characters
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001  (it belongs to whoever waits for it)
                done.set_exception(error)
        if self._waiting:
            loop.call_soon(self._turn, loop)
