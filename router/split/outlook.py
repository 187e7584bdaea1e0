"""A fast model of a fleet: what a way is expected to come to when the latest requests come again. Pure.

Workers of a kind are taken to be alike, as placement spreads rows and prompts over them. Prompts are served one by
one by the worker that is free first; beside rows a worker computes them at the rate that is left of its steps, so
their finish is counted in work done, not in time. Rows of a kind of worker advance at a common rate, and end in the
order of the steps that they still need. All of it moves on in slices of time, within which rates are constant.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil, inf
from typing import Final

from router.split.prefill_pool import PrefillPool
from router.split.values import Outlook, SplitOption, WorkTimes
from router.split.work import KV_FULL, Demand, Present, beside_rate
from tandem.core.slo import Slo

SLICE_S: Final = 0.25
_REQUESTS_PER_TURN: Final = 80
"""Requests replayed before the caller gets a turn: about a millisecond."""
_SLICES_PER_TURN: Final = 60
_LASTING: Final = 2.0
"""A replay ends when requests take this many times the length of the traffic."""
_SURE: Final = 16.0
_ITL_SHARE: Final = 0.01
"""Share of a request's gaps that may lie above the bound on ITL."""


class Replay:
    """One way, from the present on."""

    def __init__(
        self,
        way: SplitOption,
        requests: Sequence[Demand],
        now: Present,
        times: WorkTimes,
        slo: Slo,
        counted_s: float = 0.0,
    ) -> None:
        self.way = way
        self._requests = requests
        self._times = times
        self._slo = slo
        self._decodes = max(1, now.workers - way.prefills)
        self._links = [0.0] * self._decodes
        self._sequences_max = float(self._decodes * now.sequences_max)
        self._now = now
        self._kv_tokens = KV_FULL * self._decodes * now.kv_tokens
        self._own = PrefillPool(way.prefills) if way.prefills else None
        """The pool of the workers that take prompts for others; None where there are none."""
        self._beside = PrefillPool(self._decodes)
        """The pool of the workers that decode."""
        self._rows = now.rows
        self._attended = now.attended
        self._steps = 0.0
        """Steps that a row has had since the start of the replay."""
        self._late_s = 0.0
        """Seconds that a row has had gaps above the bound on ITL."""
        self._leaving: list[tuple[float, int, float, float, float]] = []
        """(steps at its end, its number, when its first token came, late seconds then, positions at its end)"""
        self._coming: list[tuple[float, int, float]] = []
        """(when it begins to decode, its number, when its first token came)"""
        self._blocked: deque[tuple[int, float]] = deque()
        self.counted_s = counted_s
        self.met = 0
        self.ended = 0
        self.tokens = 0.0
        self._begin(now)

    def outlook(self) -> Outlook:
        """The outcome of what has been replayed."""
        length_s = max(self._requests[-1].at_s, SLICE_S) if self._requests else 1.0
        count = sum(1 for demand in self._requests if demand.at_s >= self.counted_s)
        return Outlook(self.way, self.met / count if count else 1.0, self.tokens / length_s)

    def run(self) -> Iterator[None]:
        """Replay all; yields after about a millisecond of work."""
        requests, place, at_s, turn = self._requests, 0, 0.0, 0
        count = len(requests)
        last_s = requests[-1].at_s if requests else 0.0
        end_s = max(_LASTING * last_s, last_s + 10.0)
        slices = 0
        while at_s < end_s and self.ended < count:
            next_s = at_s + SLICE_S
            first = place
            while place < count and requests[place].at_s < next_s:
                place += 1
            self._slice(at_s, first, place, last_s)
            at_s = next_s
            turn += place - first
            slices += 1
            if turn >= _REQUESTS_PER_TURN or slices >= _SLICES_PER_TURN:
                turn = slices = 0
                yield

    # ---- one slice ----

    def _slice(self, at_s: float, first: int, last: int, last_s: float) -> None:
        times, own, beside, decodes = self._times, self._own, self._beside, self._decodes
        next_s = at_s + SLICE_S
        rows, attended = self._rows / decodes, self._attended / decodes
        running_s = times.step_s + times.sequence_s * rows + times.position_s * attended
        rate, chunked_s = beside_rate(self.way, times, rows, running_s)
        done = beside.done
        ttft_s = self._slo.ttft_s or inf
        for number in range(first, last):
            demand = self._requests[number]
            offset_s = demand.at_s - at_s
            seconds = demand.prompt_s
            if own is None:
                beside.take(number, seconds, done + rate * offset_s)
                continue
            wait_s = own.wait(own.done + offset_s)
            service_s = seconds + times.step_s * (demand.pieces if wait_s > 0.0 else ceil(demand.pieces))
            first_s = wait_s + service_s
            handed = first_s + demand.handing_s + demand.miss_s * _miss(first_s, ttft_s)
            local_s = (beside.wait(done + rate * offset_s) + seconds) / rate
            if local_s + rows * seconds + demand.miss_s * _miss(local_s, ttft_s) < handed:
                beside.take(number, seconds, done + rate * offset_s)
                continue
            own.take(number, held_s(demand, service_s, self._now), own.done + offset_s)
        busy = self._serve(beside, rate, at_s, None)
        if own is not None:
            self._serve(own, 1.0, at_s, times)
        self._decode(at_s, next_s, busy, running_s, chunked_s, last_s)

    def _serve(self, pool: PrefillPool, rate: float, at_s: float, own: WorkTimes | None) -> float:
        """Prompts get on for a slice; gives the share of workers that computed some."""
        before, now = pool.done, pool.done + rate * SLICE_S
        pool.done = now
        pending = pool.pending
        while pending and pending[0][0] <= now:
            end, number = heappop(pending)
            first_s = at_s + (end - before) / rate
            if number < 0:
                continue
            begin_s = first_s if own is None else self._moved_s(self._requests[number], first_s)
            heappush(self._coming, (begin_s, number, first_s))
        left = sum([end - now for end in pool.ends if end > now])
        served = pool.work - left
        pool.work = left
        return min(1.0, served / (len(pool.ends) * rate * SLICE_S)) if rate > 0 else 0.0

    def _moved_s(self, demand: Demand, first_s: float) -> float:
        """When the blocks of a prompt have reached the worker that decodes it: each worker has one link in."""
        links = self._links
        end_s = max(max(links[0], first_s - demand.moving_s) + demand.moving_s, first_s + demand.handing_s)
        heapreplace(links, end_s)
        return end_s

    def _decode(
        self, at_s: float, next_s: float, busy: float, running_s: float, chunked_s: float, last_s: float
    ) -> None:
        """Rows get on for a slice; some end, some begin."""
        pace = busy / chunked_s + (1 - busy) / running_s
        before, now = self._steps, self._steps + pace * SLICE_S
        self._steps = now
        itl_s = self._slo.itl_s
        late = 0.0
        if itl_s is not None:
            late = (busy if chunked_s > itl_s else 0.0) + (1 - busy if running_s > itl_s else 0.0)
        late_before, self._late_s = self._late_s, self._late_s + late * SLICE_S
        if at_s < last_s:
            self.tokens += self._rows * pace * SLICE_S
        self._attended += self._rows * pace * SLICE_S
        leaving = self._leaving
        while leaving and leaving[0][0] <= now:
            end, number, first_s, late_s, positions = heappop(leaving)
            if number < 0:
                self._rows -= 1.0
                self._attended -= positions
                continue
            demand = self._requests[number]
            self._rows -= demand.sequences
            self._attended -= positions * demand.sequences
            end_s = at_s + (end - before) / pace
            self._judge(demand, first_s, end_s, late_before - late_s)
        coming, blocked = self._coming, self._blocked
        while coming and coming[0][0] <= next_s:
            begin_s, number, first_s = heappop(coming)
            if blocked or not self._fits(number):
                blocked.append((number, first_s))
                continue
            self._start(number, first_s, before + pace * max(0.0, begin_s - at_s))
        while blocked:
            number, first_s = blocked[0]
            if self._rows > 0 and not self._fits(number):
                break
            blocked.popleft()
            if self._own is None:
                first_s = next_s
            self._start(number, first_s, now)

    def _fits(self, number: int) -> bool:
        demand = self._requests[number]
        return (
            self._rows + demand.sequences <= self._sequences_max
            and self._attended + demand.prompt_tokens <= self._kv_tokens
        )

    def _start(self, number: int, first_s: float, steps: float) -> None:
        demand = self._requests[number]
        self._rows += demand.sequences
        self._attended += demand.prompt_tokens * demand.sequences
        positions = demand.prompt_tokens + demand.answer_tokens
        heappush(self._leaving, (steps + demand.answer_tokens - 1, number, first_s, self._late_s, positions))

    def _judge(self, demand: Demand, first_s: float, end_s: float, late_s: float) -> None:
        """Count a request that has its answer, and whether the answer held every bound of the SLO."""
        self.ended += 1
        if demand.at_s < self.counted_s:
            return
        slo, gaps = self._slo, demand.answer_tokens - 1
        if slo.ttft_s is not None and first_s - demand.at_s > slo.ttft_s:
            return
        if slo.tpot_s is not None and gaps > 0 and (end_s - first_s) / gaps > slo.tpot_s:
            return
        if slo.itl_s is not None and late_s > _ITL_SHARE * (end_s - first_s):
            return
        if slo.e2e_s is not None and end_s - demand.at_s > slo.e2e_s:
            return
        self.met += 1

    # ---- the begin ----

    def _begin(self, now: Present) -> None:
        """Rows that run are somewhere in their answers; prompts that wait are spread evenly."""
        count = len(self._requests)
        answer = sum(demand.answer_tokens for demand in self._requests) / count if count else 1.0
        rows = int(now.rows)
        positions = now.attended / rows if rows else 0.0
        self._leaving = [((each + 0.5) / rows * answer, -1, 0.0, 0.0, positions) for each in range(rows)]
        self._rows = float(rows)
        pool = self._own or self._beside
        if now.prompt_s > 0:
            each = now.prompt_s / len(pool.ends)
            pool.ends = [each] * len(pool.ends)
            heapify(pool.ends)
            pool.work = now.prompt_s


def held_s(demand: Demand, service_s: float, now: Present) -> float:
    """Seconds that a prompt occupies a worker that computes it for another one. This is longer than computing takes
    where exports leave room for few prompts of its size, as each keeps its blocks until they have been fetched. A
    prompt that is larger than the exports' share may take the pool
    (`tandem.engine.scheduler.step_rules.may_export`)."""
    room = now.export_tokens if demand.prompt_tokens <= now.export_tokens else now.kv_tokens
    if 2.0 * demand.prompt_tokens > room:
        return service_s + demand.handing_s
    return max(service_s, (service_s + demand.handing_s) * demand.prompt_tokens / room)


def _miss(expected_s: float, bound_s: float) -> float:
    """The likelihood of a miss that placement counts with (`router.placement.scorers.stakes.miss`)."""
    if expected_s * _SURE <= bound_s:
        return 0.0
    below = bound_s / expected_s
    squared = below * below
    return 1.0 / (1.0 + squared * squared * below)
