"""The seam between the cache and the places that weights come from."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from tandem.weights.listing import File


@dataclass(frozen=True)
class Stream:
    """Bytes of a file from `offset` on. `tag` changes with its contents, empty where that is not known."""

    offset: int
    tag: str
    chunks: Iterator[bytes]


class Origin(Protocol):
    """One model at one place. Calls block, with bounds of their own, and may come from several threads.

    All raise `TandemError`: `bad_model` for what will not get better, `link_lost` for what may.
    """

    def files(self) -> tuple[File, ...]:
        """Everything there is."""
        ...

    def open(self, name: str, offset: int, tag: str) -> AbstractContextManager[Stream]:
        """Read a file from `offset`, if it is still the one that had `tag`; from 0 otherwise."""
        ...

    def close(self) -> None: ...
