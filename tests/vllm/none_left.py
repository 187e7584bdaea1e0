"""For tests that stop processes, or let them spin: these would outlive a test that fails, and some for ever."""

import contextlib
from collections.abc import Iterable, Iterator

import psutil


@contextlib.contextmanager
def none_left(processes: Iterable[psutil.Process]) -> Iterator[None]:
    """Whatever comes of the test, these have ended afterwards."""
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
