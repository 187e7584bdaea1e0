"""Whether and when a process that ended is started again. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """Waits double from `first_s` to `max_s` with each exit in a row; a life of `settled_s` begins a new row.

    A process that has never been ready is not restarted: what keeps it from starting is a setting, not a crash.
    """

    first_s: float = 0.5
    max_s: float = 30.0
    settled_s: float = 60.0

    def wait_s(self, exits_in_a_row: int) -> float:
        """Seconds to wait after this many exits in a row, counted from 1."""
        assert exits_in_a_row >= 1, exits_in_a_row
        return min(self.max_s, self.first_s * float(1 << min(exits_in_a_row - 1, 30)))

    def row(self, exits_before: int, lived_s: float) -> int:
        """The number of exits in a row, with the one that just happened after a life of `lived_s`."""
        return 1 if lived_s >= self.settled_s else exits_before + 1


def exit_reason(status: int) -> str:
    """An exit status in words."""
    return f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
