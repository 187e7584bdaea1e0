"""What placement knows of a pair of workers: whether blocks have been proved to travel from prefill to decode."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(slots=True)
class PairView:
    """One pair of workers as placement sees it. Its owner keeps it current in place; `place` only reads it.

    `reason` says why the pair is not `usable`; `path` is the transport that carried last, empty before the first
    time.
    """

    usable: bool
    reason: str
    path: str = ""


Pairs = Mapping[tuple[str, str], PairView]
"""The views of pairs, by (prefill worker id, decode worker id). A pair that is missing has not been looked at yet."""

UNSEEN: Final = PairView(False, "not proved yet")
TRUSTED: Final = PairView(True, "")
"""The view of every pair where pairs are not proved: all of them are trusted."""


def look(pairs: Pairs | None, prefill: str, decode: str) -> PairView:
    """The view of one pair; all pairs are trusted where `pairs` is None."""
    return TRUSTED if pairs is None else pairs.get((prefill, decode), UNSEEN)
