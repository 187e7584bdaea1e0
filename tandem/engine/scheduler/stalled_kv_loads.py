"""Makes fetches that bring nothing give their blocks back when other requests wait for them.

A decode worker reserves the blocks of a prompt before prefill has computed it. Where pools are small, workers could
then wait for each other in a circle: this one's blocks are reserved for a prompt that prefill cannot begin, because
the exports there belong to a request that waits for blocks here. Two rules break the circle. A fetch for which
nothing has come yet makes room at once for a request whose blocks wait to be fetched, and for a more urgent one. A
fetch that has been idle for `fetch_idle_s` makes room for any request. A request that gives its blocks back goes
behind the one that wanted them, so every fetch gets its turn, and a turn in which blocks are there to be fetched is
as short as the transfer.

A fetch of blocks that prefill will not compute any more is stopped as soon as that is known: the missing blocks are
computed here, in the same place of the queue.

The rules apply to hand-offs only: a fetch of blocks that already exist on another worker ends by itself, soon.

The first rule is used only a few times per fetch, and each turn that was idle makes the next one twice as long: in
the end every fetch has the time it needs to bring its blocks or to find out that they will not come.
"""

from dataclasses import dataclass
from typing import Final

from tandem.engine.scheduler.admission import Admission, Shortage
from tandem.engine.scheduler.events import EngineEvents
from tandem.engine.scheduler.scheduler_state import SchedulerState
from tandem.engine.scheduler.sequence import ScheduledRequest
from tandem.engine.settings import SchedulerSettings

_ROOM_MADE_MAX: Final = 4
"""How often a request whose fetch has brought nothing may give its blocks back at once, without waiting to become
idle."""


@dataclass
class StalledKvLoads:
    """Decides which reservations end, and when. Looks only while a request could not be admitted."""

    state: SchedulerState
    admission: Admission
    outbox: EngineEvents
    settings: SchedulerSettings

    def give_way(self, now: float) -> tuple[ScheduledRequest, ...]:
        """Give back the blocks of fetches that bring nothing, the longest idle first, until the waiting sequence
        fits. Give nothing back when it would not fit even then. Returns the requests that wait again from now on."""
        shortage = self.admission.shortage
        if shortage is None or self._fits(shortage):
            return ()
        idle = [job for job in self._fetching() if now >= self._idle_at(job) or _yields(job, shortage.sequence.job)]
        if not idle or not self._would_fit(shortage, idle):
            return ()
        idle.sort(key=self._idle_at)
        given: list[ScheduledRequest] = []
        while idle and not self._fits(shortage):
            given.append(idle.pop(0))
            self._put_off(given[-1], shortage, now)
        return tuple(given)

    def prefill_lost(self, job: ScheduledRequest) -> None:
        """Stop the fetch of a request whose prefill is lost, unless all its blocks were complete and are arriving."""
        fetch = job.fetch
        if fetch is None or fetch.stopped or not fetch.hand_off or (job.ready and not fetch.untouched):
            return
        job.explain("stopped fetching: prefill is lost")
        self._stop(job)

    def next_look(self, now: float) -> float:
        """When the next fetch becomes idle while a request waits for admission; infinity for never."""
        if self.admission.shortage is None:
            return float("inf")
        return min((at for job in self._fetching() if (at := self._idle_at(job)) > now), default=float("inf"))

    def _fetching(self) -> list[ScheduledRequest]:
        fetching = (sequence.job for sequence in self.state.batch.loading)
        return [job for job in fetching if job.fetch is not None and job.fetch.hand_off and not job.fetch.stopped]

    def _idle_at(self, job: ScheduledRequest) -> float:
        assert job.fetch is not None
        return job.fetch.moved + self.settings.fetch_idle_s * 2.0**job.idle_turns

    def _fits(self, shortage: Shortage) -> bool:
        """Whether there is room, slots included that come back when their fetch has been stopped."""
        return self._enough(shortage, self.state.kv_cache.coming, 0)

    def _would_fit(self, shortage: Shortage, idle: list[ScheduledRequest]) -> bool:
        uses: dict[int, int] = {}
        for job in idle:
            for slot in job.root.table:
                uses[slot] = uses.get(slot, 0) + 1
        coming = self.state.kv_cache.coming
        coming += sum(self.state.kv_cache.pool.refs(slot) == count for slot, count in uses.items())
        return self._enough(shortage, coming, sum(self.state.batch.width_of(job.root) for job in idle))

    def _enough(self, shortage: Shortage, blocks: int, width: int) -> bool:
        left = self.state.batch.width - width
        narrow = left == 0 or left + shortage.width <= self.settings.max_sequences
        return narrow and self.state.kv_cache.pool.available + blocks >= shortage.blocks

    def _put_off(self, job: ScheduledRequest, shortage: Shortage, now: float) -> None:
        assert job.fetch is not None
        if now >= self._idle_at(job):
            job.idle_turns += 1
        else:
            job.room_made += 1
        idle_s = now - job.fetch.moved
        reason = f"gave its blocks back: nothing had arrived for {idle_s:.1f} s and others waited for them"
        job.explain(reason)
        self.outbox.explain(reason)
        ahead = shortage.sequence.job.order
        job.order = (max(job.order[0], ahead[0]), self.state.waiting.next_arrival())
        self.state.put_off(job, now)
        self._stop(job)

    def _stop(self, job: ScheduledRequest) -> None:
        if job.fetch is not None:
            job.fetch.stopped = True
        if not self.outbox.withdraw(job.work.work_id):
            self.state.fetch_ended(job.work.work_id, job, ())
            self.state.ready_again = True


def _yields(job: ScheduledRequest, other: ScheduledRequest) -> bool:
    """Whether a fetching work makes room at once: nothing has come for it, and `other` can go on with its blocks."""
    assert job.fetch is not None
    idle = not job.ready and job.fetch.untouched and job.room_made < _ROOM_MADE_MAX
    return idle and (other.ready or other.order < job.order)
