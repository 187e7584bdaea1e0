"""The clock seam. `tandem.process.system.SystemClock` is the real one; the simulator has a virtual one."""

from typing import Protocol


class Clock(Protocol):
    """The source of a process's time. Waiting is left to asyncio, on a loop whose time agrees with `now`."""

    def now(self) -> float:
        """Monotonic seconds. The origin is private to the process: never send this value to a peer."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch, for stamps people read and for ticket expiry."""
        ...
