"""The bound on what is loaded in a step in which other requests generate: copies may take only a share of the time
between tokens. Pure."""

from typing import Final

_WEIGHT: Final = 0.25
"""The weight of the last measurement in the mean."""


class LoadPace:
    """`share` of the time `itl_s` between two tokens may go to loads. Before a measurement copies are taken to
    move `bytes_per_s`."""

    def __init__(self, itl_s: float, share: float = 0.25, bytes_per_s: float = 4e9) -> None:
        self._allowed_s = itl_s * share
        self._bytes_per_s = bytes_per_s

    @property
    def bytes_per_s(self) -> float:
        """The recently measured rate of loads, in bytes per second."""
        return self._bytes_per_s

    def blocks(self, block_bytes: int, *, decoding: bool) -> int | None:
        """The number of blocks that may be loaded in a step, at least one; None when nothing decodes and there is no
        limit."""
        if not decoding:
            return None
        return max(1, int(self._allowed_s * self._bytes_per_s / max(1, block_bytes)))

    def measured(self, copied_bytes: int, seconds: float) -> None:
        """A load has ended."""
        if copied_bytes > 0 and seconds > 0:
            self._bytes_per_s += _WEIGHT * (copied_bytes / seconds - self._bytes_per_s)
