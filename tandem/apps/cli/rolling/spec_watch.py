"""Notices that the file of a running platform has been edited."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tandem.core.errors import TandemError
from tandem.spec.service import ModelService

_LOOK_EVERY_S: Final = 0.5

_Stamp = tuple[int, int, int]


class SpecWatch:
    """Watches a file for edits. `read` gives the current content of the file, checked; it raises `bad_setting`. A
    partial edit is no edit: a file counts once it has not changed between two looks."""

    def __init__(self, path: Path, read: Callable[[], ModelService], said: ModelService) -> None:
        self._path = path
        self._read = read
        self._said = said
        self._seen = self._stamp()

    async def next(self) -> ModelService | TandemError:
        """Wait until the content of the file changes; gives the new service, or the error when the file cannot be
        used."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            stamp = self._stamp()
            if stamp is None or stamp == self._seen:
                continue
            await asyncio.sleep(_LOOK_EVERY_S)
            if self._stamp() != stamp:
                continue
            self._seen = stamp
            try:
                says = self._read()
            except TandemError as error:
                if self._stamp() != stamp:
                    continue  # it was being written
                return error
            if says != self._said:
                self._said = says
                return says

    def _stamp(self) -> _Stamp | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
