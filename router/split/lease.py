"""Which of several routers decides the split of a service. Pure: time comes in.

Every worker lends the right to one router at a time (`tandem.worker.split_registry`) and publishes the record it
keeps to all routers. The holder decides for as long as workers confirm the record. Once the record has lapsed, the
other routers claim it with the next term; until one of them has it, the last split stays. A router that finds its own
time over, perhaps after a pause, listens first: news of what happened meanwhile may still be on its way.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Final
from zlib import crc32

from tandem.core.messages import SplitPublished, SplitRecord

REASON_MAX: Final = 4096
"""Characters of a record's reason."""
FORECASTS_MAX: Final = 16
_TERM_MAX: Final = 2**53
_LEFT_MAX_S: Final = 61.0
"""Workers lend for 60 s at most."""
_ITL_MAX_S: Final = 1e6
_AGE_MAX_S: Final = 1e12
_NAMED_MAX: Final = 4096
_NAME_MAX: Final = 1024


@dataclass(frozen=True)
class LeaseSettings:
    """Seconds that a record holds if it is not published again, and the least seconds that a router listens before it
    claims the record: up to four times as long, depending on the router's name."""

    lease_s: float = 15.0
    listen_s: float = 1.0


def plausible(told: SplitPublished, term: int) -> bool:
    """Whether a worker can keep such a record, as far as a router of this term knows. Any other record is ignored: it
    would bind every router to what a single broken worker says."""
    record, target_s, error = told.record, told.record.itl_target_s, told.record.forecast_error
    # Comparisons with what is no number are false.
    return (
        0.0 <= told.left_s <= _LEFT_MAX_S
        and 0 <= record.term <= max(_TERM_MAX, term)
        and (target_s is None or 0.0 < target_s < _ITL_MAX_S)
        and 0.0 <= record.age_s < _AGE_MAX_S
        and (error is None or isfinite(error))
        and len(record.reason) <= REASON_MAX
        and len(record.holder) <= _NAME_MAX
        and len(record.prefills) <= _NAMED_MAX
        and all(len(each) <= _NAME_MAX for each in record.prefills)
        and len(record.forecasts) <= FORECASTS_MAX
        and all(
            isfinite(each.attainment) and isfinite(each.tokens_per_s) and isfinite(each.carried)
            for each in record.forecasts
        )
    )


class Lease:
    """One router's, of one service. `holder` names this run of the router."""

    def __init__(self, holder: str, settings: LeaseSettings) -> None:
        self.holder = holder
        self.holds = False
        """Whether this router decides."""
        self.record: SplitRecord | None = None
        """The newest one that a worker keeps."""
        self.term = 0
        """The term of this router's own claim; otherwise the highest term received."""
        self._settings = settings
        # Not all at once: of two claims at one time neither may come through.
        self._listen_s = settings.listen_s * (1.0 + 3.0 * crc32(holder.encode()) / 2**32)
        self._confirmed = False
        """A worker keeps what this router has claimed."""
        self._until = float("-inf")
        self._lapsed_at: float | None = None

    def heard(self, record: SplitRecord, left_s: float, now: float) -> bool:
        """A worker keeps this record for so long. True where this router decided so far and does no more."""
        if self.holds and (record.term, record.holder) == (self.term, self.holder):
            self._confirmed, self.record = True, record
            self._until = max(self._until, now + left_s)
            return False
        if self._older(record, left_s, now):
            return False
        yields = self.holds
        if record.holder == self.holder and yields:
            return False  # Of a term before this one.
        same = self.record is not None and self._key(self.record) == self._key(record)
        self._until = max(self._until, now + left_s) if same else now + left_s
        self.term, self.record, self.holds = max(self.term, record.term), record, False
        return yields

    def look(self, now: float) -> bool:
        """Whether this router decides from now on. Claims what has lapsed; the caller publishes."""
        if now < self._until:
            self._lapsed_at = None
            return self.holds
        self.holds = False
        if self._lapsed_at is None:
            self._lapsed_at = now
        if now - self._lapsed_at < self._listen_s:
            return False
        self.term, self._confirmed, self._lapsed_at = self.term + 1, False, None
        self._until, self.holds = now + self._settings.lease_s, True
        return True

    def _older(self, record: SplitRecord, left_s: float, now: float) -> bool:
        """Whether a newer record than this one still holds. A claim that no worker has confirmed holds against no
        live record: the worker that reports the record has refused the claim."""
        if self.holds and self._confirmed:
            return self._key(record) < (self.term, self.holder)
        if self.holds:
            return left_s <= 0.0
        known = self.record
        if known is None or self._key(record) >= self._key(known):
            return False
        return now < self._until or left_s <= 0.0

    @staticmethod
    def _key(record: SplitRecord) -> tuple[int, str]:
        return record.term, record.holder
