"""Makes garbage collection rare in a process that only simulates: a simulation leaves little in cycles, and
collection takes time."""

import gc
from typing import Final

_YOUNG_MAX: Final = 10_000
"""Objects after which it looks."""


def collect_rarely() -> None:
    """Make garbage collection rare in this process from now on. Imported objects stay, so the collector no longer
    scans them."""
    gc.freeze()
    gc.set_threshold(_YOUNG_MAX, 20, 20)
