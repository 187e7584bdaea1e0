"""Resumable attempts: what a worker keeps of them beyond their router's link and their own end, and for how long.

While its router is there, a running attempt needs nothing. When the router is lost, the attempt goes on under a
lease. The outputs of an attempt that has ended stay under a lease too, as the client may not have received all of
them. Decisions only: no I/O, no clock, and nothing is freed here.
"""

from dataclasses import dataclass

from tandem.core.messages import AttemptFailed, AttemptReport
from tandem.worker.attempts import Attempt


@dataclass(eq=False)
class ResumableAttempt:
    """One resumable attempt. `until` (clock seconds) is the end of its lease, None while it needs none."""

    attempt: Attempt
    until: float | None = None
    failure: AttemptFailed | None = None
    report: AttemptReport | None = None
    """The attempt's figures, once it has ended."""

    @property
    def size(self) -> int:
        """About how many bytes it takes besides its KV blocks."""
        submit, log = self.attempt.submit, self.attempt.log
        files = sum(map(len, submit.images))
        return len(submit.prompt) + len(submit.resume) + files + (log.size if log is not None else 0)

    @property
    def waits(self) -> bool:
        """Whether it is only here to be claimed."""
        return self.until is not None or self.report is not None

    @property
    def complete(self) -> bool:
        """Whether every sequence of the attempt is here to its end."""
        log = self.attempt.log
        return log is not None and all(log.finished(branch.sequence) for branch in self.attempt.submit.branches)


class ResumableAttempts:
    """All resumable attempts of a worker, running and ended, by session and handle and by key."""

    def __init__(self, lease_s: float, lost_s: float, bytes_max: int) -> None:
        """Ended attempts are kept for `lease_s`, and those of a lost router for `lost_s`."""
        self._lease_s = lease_s
        self._lost_s = lost_s
        self._bytes_max = bytes_max
        self._held: dict[tuple[int, int], ResumableAttempt] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, place: tuple[int, int]) -> bool:
        return place in self._held

    def at(self, session_id: int, handle: int) -> ResumableAttempt | None:
        """The attempt that a router knows under this handle."""
        return self._held.get((session_id, handle))

    def add(self, attempt: Attempt) -> None:
        """A resumable attempt begins."""
        self._held[_place(attempt)] = ResumableAttempt(attempt)

    def drop(self, attempt: Attempt) -> None:
        """Forget the attempt: no router may claim it any more."""
        self._held.pop(_place(attempt), None)

    def lost(self, session_id: int, now: float) -> None:
        """A router is gone: what was its own waits for another one."""
        for (session, _), held in self._held.items():
            if session == session_id:
                held.until = now + self._lost_s

    def ended(self, attempt: Attempt, report: AttemptReport, now: float) -> None:
        """An attempt is over. Of a prefill whose router is there, decode's death may make it the last trace: it
        stays until the router ends it."""
        held = self._held.get(_place(attempt))
        if held is not None and held.attempt is attempt:
            held.report = report
            if held.until is None and (attempt.submit.mode != "prefill" or held.complete):
                held.until = now + self._lease_s

    def cancelled(self, session_id: int, handle: int, now: float) -> None:
        """The router wants no more of an ended attempt. A whole answer stays for a client that missed its end, and
        what prefill knows for the case that decode dies with the router."""
        held = self._held.get((session_id, handle))
        if held is None or held.complete:
            return
        if held.attempt.submit.mode != "prefill" or held.failure is not None:
            del self._held[session_id, handle]
        elif held.until is None:
            held.until = now + self._lease_s

    def find(self, keys: tuple[bytes, ...], now: float) -> ResumableAttempt | None:
        """The latest attempt under one of the keys, unless its lease has ended."""
        known = [held for held in self._held.values() if held.attempt.submit.resume_key in keys]
        found = [held for held in known if _until(held) > now]
        return max(found, key=lambda held: held.attempt.work_id, default=None)

    def moved(self, held: ResumableAttempt, place: tuple[int, int], now: float) -> None:
        """The attempt has gone from `place` to another router, under which it is known from now on."""
        del self._held[place]
        self._held[_place(held.attempt)] = held
        held.until = None if held.report is None else now + self._lease_s

    def expired(self, now: float) -> tuple[ResumableAttempt, ...]:
        """The attempts whose lease has ended; and when they take too many bytes, the oldest of those that only wait
        to be claimed. They are forgotten here."""
        waiting = sorted((held for held in self._held.values() if held.waits), key=_until)
        size = sum(held.size for held in waiting)
        over = []
        for held in waiting:
            if _until(held) > now and size <= self._bytes_max:
                break
            size -= held.size
            over.append(held)
            self.drop(held.attempt)
        return tuple(over)

    def overdue_s(self, now: float) -> float:
        """Seconds by which the attempt held longest is beyond its lease; 0 when none is."""
        return max((now - held.until for held in self._held.values() if held.until is not None), default=0.0)

    def exports(self) -> tuple[str, ...]:
        """Export leases of attempts whose router is gone: decode may be waiting for its turn to fetch."""
        exports = (held.attempt.submit.export for held in self._held.values() if held.until is not None)
        return tuple(export.lease_id for export in exports if export is not None)

    def all_leased(self) -> tuple[ResumableAttempt, ...]:
        """Forget, and give, everything that is under a lease."""
        leased = tuple(held for held in self._held.values() if held.until is not None)
        for held in leased:
            self.drop(held.attempt)
        return leased


def _place(attempt: Attempt) -> tuple[int, int]:
    return attempt.session_id, attempt.submit.handle


def _until(held: ResumableAttempt) -> float:
    return float("inf") if held.until is None else held.until
