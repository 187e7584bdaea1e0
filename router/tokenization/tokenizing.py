"""The interface for where tokenizing runs: on the event loop for short text, elsewhere for long text, so that the
event loop stays responsive."""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Tokenizing(Protocol):
    """The seam. `router.tokenization.threads` is the real one."""

    async def run(self, work: Callable[[], T], characters: int, within_s: float) -> T:
        """Do `work`, which renders and tokenizes that many characters.

        Raises `queue_full`, `deadline_exceeded` when it is not done in time, and what `work` raises.
        """
        ...
