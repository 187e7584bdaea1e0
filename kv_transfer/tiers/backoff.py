"""Backoff after failures: when an operation that failed is tried again."""


class Backoff:
    """Blocks further tries for `first_s` after a failure, and for twice as long after each failure that follows, up
    to `most_s`."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._wait_s = 0.0
        self._until = float("-inf")

    def failed(self, now: float) -> float:
        """Record a failure at `now`. Gives the seconds to wait before the next try."""
        if now >= self._until:
            self._wait_s = min(self._most_s, 2 * self._wait_s or self._first_s)
            self._until = now + self._wait_s
        return self._until - now

    def worked(self) -> None:
        """The next failure is a first one."""
        self._wait_s = 0.0
        self._until = float("-inf")

    def waiting(self, now: float) -> bool:
        """Whether it is left alone at `now`."""
        return now < self._until
