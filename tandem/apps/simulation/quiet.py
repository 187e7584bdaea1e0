"""Silences logs during a simulation: the faults that workers warn of there are injected on purpose."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Drop every record of this process, of whatever level, and allow again what was allowed before."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
