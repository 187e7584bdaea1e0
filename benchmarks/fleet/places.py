"""Who has a place on a worker: the jobs that wait for their room, those that have it, and who gives it back."""

from math import inf

from benchmarks.fleet.block_tables import allocate_blocks, preempt_request
from benchmarks.fleet.exports import Exports
from benchmarks.fleet.idle_reservations import FreeCapacity, Shortage, idle_at, next_look_s, preempted_handoffs
from benchmarks.fleet.pool import Pool
from benchmarks.fleet.queueing import Waiting
from benchmarks.fleet.worker_request import WorkerRequest
from benchmarks.fleet.worker_settings import WorkerSettings
from tandem.engine.scheduler.step_rules import order_of, spare_blocks


class WorkerAdmission:
    """Admission by the rules of Tandem's scheduler."""

    def __init__(self, settings: WorkerSettings, pool: Pool) -> None:
        self._settings = settings
        self._pool = pool
        self._size = settings.engine_block_tokens
        self._arrivals = 0
        self.waiting = Waiting()
        self.running: dict[WorkerRequest, None] = {}
        """Everything that has its room, in order of admission."""
        self.parked: dict[WorkerRequest, None] = {}
        """Those of them that wait for blocks to come."""
        self.exports = Exports(settings.export_share, settings.kv_tokens, self._size)
        self.shortage: Shortage | None = None
        """Why nobody could be admitted when that was tried last, if it was for want of room."""

    def queue(self, job: WorkerRequest) -> None:
        """A job comes, behind all of its priority."""
        self._arrivals += 1
        job.order = order_of(job.request.priority, self._arrivals)
        self.waiting.push(job)

    def make_ready(self, job: WorkerRequest) -> bool:
        """What the job waits for, but its place, is there. Gives whether it has no place."""
        waits = self.waiting.remove(job)
        job.ready = True
        if waits:
            self.waiting.push(job)
        return waits

    def admit(self, budget_left: bool, computing: int, growing: int) -> tuple[WorkerRequest, int] | None:
        """Give the most urgent that may enter its room; also says how many blocks of its prompt were there. None
        when nobody may enter, or the room does not suffice. `computing` jobs have prompt tokens to compute; the step
        needs `growing` tokens for those that decode."""
        self.shortage = None
        if not self.waiting:
            return None
        settings, pool = self._settings, self._pool
        ahead = 0 if budget_left else computing + sum(not job.handed_over for job in self.parked)
        job = self.waiting.head(budget_left, ahead, settings.fetch_ahead, self._may_export)
        if job is None:
            return None
        if len(self.running) >= settings.max_sequences:
            self.shortage = Shortage(job, 0)
            return None
        spare = spare_blocks(settings.watermark, pool.capacity // self._size, len(self.running) > 0)
        here, wanted = allocate_blocks(pool, job, growing + self._size * spare, self._size)
        if wanted:
            self.shortage = Shortage(job, wanted)
            return None
        self.waiting.remove(job)
        self.running[job] = None
        job.admitted = True
        if job.prefill_only:
            self.exports.add(job.request)
        return job, here

    def _may_export(self, job: WorkerRequest) -> bool:
        return self.exports.may_add(job.request)

    def park(self, job: WorkerRequest, now: float) -> None:
        """It waits for blocks, in its room."""
        job.parked, job.untouched, job.moved_s = True, True, now
        self.parked[job] = None

    def unpark(self, job: WorkerRequest) -> None:
        """They have come, or never will."""
        job.parked = False
        del self.parked[job]

    def leave(self, job: WorkerRequest) -> None:
        """It has its room no longer, which the caller gives back; unless it keeps its blocks."""
        del self.running[job]
        if job.parked:
            self.unpark(job)
        if job.prefill_only and not job.keeps:
            self.exports.remove(job.request)

    def victim(self) -> WorkerRequest:
        """Who is preempted: the least urgent, for whom nothing is coming. There must be one."""
        return max((job for job in self.running if not job.parked), key=lambda job: job.order)

    def yield_room(self, now: float) -> list[WorkerRequest]:
        """The parked hand-overs that have given their room back for who waits; they wait again, behind that one."""
        shortage, idle_s = self.shortage, self._settings.fetch_idle_s
        if shortage is None or not self.parked:
            return []
        room = FreeCapacity(self._pool.free, self._settings.max_sequences - len(self.running))
        given = preempted_handoffs(self.parked, shortage, room, idle_s, now, self._frees)
        for job in given:
            if now >= idle_at(job, idle_s):
                job.idle_turns += 1
            else:
                job.room_made += 1
            self.leave(job)
            preempt_request(self._pool, job)
            job.admitted = False
            self._arrivals += 1
            job.order = (max(job.order[0], shortage.job.order[0]), self._arrivals)
            self.waiting.push(job)
        return given

    def next_look_s(self, now: float) -> float:
        """When room will be yielded that is not now, if somebody waits for it then; infinity for never."""
        return inf if self.shortage is None else next_look_s(self.parked, self._settings.fetch_idle_s, now)

    def _frees(self, job: WorkerRequest) -> int:
        return job.private + self._pool.own_tokens(job.pinned)

    def check(self) -> None:
        """Assert that its books fit."""
        assert set(self.parked) == {job for job in self.running if job.parked}, "a parked job is not one"
        assert not any(job.over for job in (*self.running, *self.waiting.jobs)), "a job outlives its end"
