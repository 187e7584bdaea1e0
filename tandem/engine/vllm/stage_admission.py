"""Decide which waiting request of a stage gets slots now. Pure."""

from collections.abc import Iterable

from tandem.engine.scheduler.blocks import BlockPool
from tandem.engine.scheduler.leases import LeaseTable
from tandem.engine.vllm.stage_settings import StageSettings
from tandem.engine.vllm.staged_request import StagedRequest


class StageAdmission:
    """Admits requests in order of priority and arrival.

    Exports have their share of the slots and hand-offs the rest. A request that waits for its own share does not hold
    up one of the other kind, so two workers that pull from each other never wait for one another. Alone, any request
    may exceed its share.
    """

    def __init__(self, pool: BlockPool, leases: LeaseTable, settings: StageSettings) -> None:
        self._pool = pool
        self._leases = leases
        self._exports_max = int(settings.export_share * pool.blocks)
        self._fetches_max = pool.blocks - self._exports_max
        self._spare = int(settings.watermark * pool.blocks)

    @property
    def spare(self) -> int:
        """Slots that may be filled with what is merely worth keeping."""
        return max(0, self._pool.available - self._spare)

    def next(self, waiting: Iterable[StagedRequest], running: Iterable[StagedRequest]) -> StagedRequest | None:
        """The most urgent work that fits now."""
        exports, fetches = self._shares(running)
        short = dict[bool, None]()
        for work in sorted(waiting, key=lambda each: each.order):
            exporting = work.leased
            if exporting in short:
                continue
            if self._fits(work, exports if exporting else fetches):
                return work
            if self._must_wait(work):
                short[exporting] = None
        return None

    def _shares(self, running: Iterable[StagedRequest]) -> tuple[int, int]:
        """Slots that exports hold or will, and slots that hand-offs have reserved."""
        due = fetches = 0
        for work in running:
            if work.leased and not work.closed:
                due += len(work.slots) - len(work.complete)
            elif work.hand_off:
                fetches += len(work.slots)
        return self._leases.owed + due, fetches

    def _must_wait(self, work: StagedRequest) -> bool:
        return work.leased or work.handed_over

    def _fits(self, work: StagedRequest, taken: int) -> bool:
        if not self._must_wait(work):
            return True
        share = self._exports_max if work.leased else self._fetches_max
        if taken and taken + work.blocks > share:
            return False
        here = [] if work.work.private else self._pool.match(work.names)
        idle = sum(self._pool.refs(slot) == 0 for slot in here)
        return work.blocks - len(here) <= self._pool.available - idle
