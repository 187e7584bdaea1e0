"""Workers of one kind that compute prompts, in a model of a fleet."""

from heapq import heappush, heapreplace


class PrefillPool:
    """Workers that compute prompts, with when each is done with what it has, in seconds of work."""

    __slots__ = ("done", "ends", "pending", "work")

    def __init__(self, workers: int) -> None:
        self.done = 0.0
        """Seconds of work that a busy worker has done since the begin."""
        self.ends = [0.0] * workers
        self.pending: list[tuple[float, int]] = []
        self.work = 0.0
        """Seconds of work that have come and are not done, of all workers together."""

    def wait(self, done: float) -> float:
        """Seconds of work before the first worker is free."""
        return max(0.0, self.ends[0] - done)

    def take(self, number: int, seconds: float, done: float) -> None:
        """The worker that is free first takes a prompt."""
        end = max(done, self.ends[0]) + seconds
        heapreplace(self.ends, end)
        heappush(self.pending, (end, number))
        self.work += seconds
