"""Which of several routers decides the split of a service. Pure: time comes in.

Every worker lends the right to one router at a time (`tandem.worker.split_board`) and tells all routers of the record
it keeps. The holder decides for as long as workers confirm it. Where the record has lapsed the others claim it with
the next term; until one has it the last split stays. Who finds its own time over, after a pause perhaps, first
listens: what happened meanwhile may still be on its way.
"""

from dataclasses import dataclass

from tandem.core.messages import SplitRecord


@dataclass(frozen=True)
class LeaseSettings:
    """For how long a record holds without being published again, and how long nobody is heard before it is claimed."""

    lease_s: float = 15.0
    listen_s: float = 1.0


class Lease:
    """One router's, of one service. `holder` names this run of the router."""

    def __init__(self, holder: str, settings: LeaseSettings) -> None:
        self.holder = holder
        self.holds = False
        """Whether this router decides."""
        self.record: SplitRecord | None = None
        """The newest one heard of."""
        self._settings = settings
        self._newest = (0, "")
        self._until = float("-inf")
        self._lapsed_at: float | None = None

    @property
    def term(self) -> int:
        """Of the newest record."""
        return self._newest[0]

    def heard(self, record: SplitRecord, left_s: float, now: float) -> bool:
        """A worker keeps this record for so long. True where this router decided so far and does no more."""
        known = record.term, record.holder
        if known < self._newest:
            return False
        yields = self.holds and record.holder != self.holder
        # An older lease of the same holder that a worker tells of late lengthens nothing.
        self._until = max(self._until, now + left_s) if known == self._newest else now + left_s
        self._newest, self.record = known, record
        if record.holder != self.holder:
            self.holds = False
        return yields

    def look(self, now: float) -> bool:
        """Whether this router decides from now on. Claims what has lapsed; the caller publishes."""
        if now < self._until:
            self._lapsed_at = None
            return self.holds
        self.holds = False
        if self._lapsed_at is None:
            self._lapsed_at = now
        if now - self._lapsed_at < self._settings.listen_s:
            return False
        self._newest, self._lapsed_at = (self.term + 1, self.holder), None
        self._until, self.holds = now + self._settings.lease_s, True
        return True
