"""The budget for request bodies that the router has in hand, whichever interface they arrive by."""

from typing import Self

from tandem.core.errors import TandemError


class BodyBudget:
    """Counts and bounds the bytes of request bodies that the router has in hand, over all clients."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.held = 0
        """Bytes of request bodies in hand now."""

    def share(self) -> "BodyShare":
        """One request's part of it."""
        return BodyShare(self)

    def take(self, size: int) -> None:
        """Raises `queue_full` when that many more would be too many."""
        if self.held + size > self._bytes_max:
            reason = f"bodies of {self.held} bytes are being read already; {self._bytes_max} are the bound"
            raise TandemError("queue_full", reason, retry_after_s=1.0)
        self.held += size


class BodyShare:
    """One request's share of the body budget, given back when the context is left."""

    __slots__ = ("_budget", "taken")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.taken = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.held -= self.taken

    def take(self, size: int) -> None:
        """Raises `queue_full`."""
        self._budget.take(size)
        self.taken += size
