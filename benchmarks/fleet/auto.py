"""Our router with workers of role `auto`: a planner says who takes prompts for others, placement does the rest.

What a real router does around the planner is done here in its order: it hears of every first placement and of
every end, looks at the fleet every few seconds of virtual time, and what it decides holds from the next placement on.
Requests under way stay where they are. It knows what the router knows: views, which are late, and learned costs.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from benchmarks.fleet.goodput import met
from benchmarks.fleet.ours import OursDecider, OursSettings
from benchmarks.fleet.router import Knowledge
from benchmarks.fleet.workload import Request
from router.placement.view import SEQUENCES_MAX
from router.settings import SplitSettings
from router.split.plan import Planner
from router.split.reuse import marks_of
from router.split.times import work_times
from router.split.values import ObservedRequest, Outlook, Split, WorkerStatus, WorkTimes
from router.split.worker_status import ROLE, worker_statuses
from tandem.core.slo import DEFAULT, Slo


class Planning(Protocol):
    """What of `router.split.plan.Planner` a run needs."""

    split: Split
    moves: int
    outlooks: tuple[Outlook, ...]

    @property
    def forecast_error(self) -> float | None: ...

    def due(self, now: float) -> bool: ...

    def seen(self, request: ObservedRequest) -> None: ...

    def outcome(self, arrival_s: float, met: bool, placed: bool = True) -> None: ...

    def answered(self, prompt_tokens: int, max_tokens: int, tokens: float) -> None: ...

    def look(
        self, now: float, standings: Sequence[WorkerStatus], times: WorkTimes, slo: Slo, share: float = 1.0
    ) -> Iterator[None]: ...


class SplitPeriod(NamedTuple):
    """The split that holds from `at_s` on: how many workers take prompts for others, what their steps may take, how
    many have changed kind so far, and why."""

    at_s: float
    prefills: int
    itl_s: float | None
    moves: int
    reason: str


class AutoDecider(OursDecider):
    """`benchmarks.fleet.router.Decider`. Workers of other roles stay what they are."""

    def __init__(self, knowledge: Knowledge, settings: OursSettings, seed: int, planner: Planning) -> None:
        """Where `settings` say no objective, the service's default is held."""
        super().__init__(knowledge, settings, seed)
        self._slo = settings.slo or DEFAULT
        self._placing = settings.placement
        self._every_s = settings.split.look_s
        self._look_s = 0.0
        self.planner = planner
        self.history: list[SplitPeriod] = []
        """Every split that there was, in order."""
        self._split: Split | None = None
        self._autos = [view for view in self.views if view.role == ROLE]

    def place(self, request: Request, now: float) -> tuple[int, int] | None:
        if now >= self._look_s or self.planner.due(now):
            self._look_s = (now // self._every_s + 1) * self._every_s
            self._look(now)
        placed = super().place(request, now)
        if placed is not None:
            placement = self.placement_of(request)
            uncached, expected = placement.prefill_tokens, max(1.0, placement.answer_tokens)
            marks = marks_of(self._knowledge.names(request), request.block_tokens)
            tokens, most = request.input_tokens, request.max_tokens
            prefills = 0 if self._split is None else len(self._split.prefills)
            self.planner.seen(
                ObservedRequest(now, tokens, uncached, expected, max_tokens=most, marks=marks, prefills=prefills)
            )
        return placed

    def finished(self, request: Request, now: float) -> None:
        super().finished(request, now)
        if request.ended or request.patience_s > request.deadline_s:
            if request.ended:
                self.planner.answered(request.input_tokens, request.max_tokens, float(request.emitted))
            self.planner.outcome(request.arrival_s, met(request, self._slo))

    def _look(self, now: float) -> None:
        """A planner's slices of work take no virtual time."""
        self.take_loads(now)
        if not self._autos:
            return
        times = work_times(self.costs, self._autos, self._placing)
        for _ in self.planner.look(
            now, worker_statuses(self._autos, None, {}, frozenset(), SEQUENCES_MAX), times, self._slo
        ):
            pass
        self._take(self.planner.split, now)

    def _take(self, split: Split, now: float) -> None:
        before, self._split = self._split, split
        if before is not None and (before.prefills, before.itl_s) == (split.prefills, split.itl_s):
            return
        for view in self._autos:
            view.take_prompts(view.worker_id in split.prefills)
        for view in self._autos:
            self.tune(view.worker_id, split.steps_s(view.worker_id), now)
        self.history.append(SplitPeriod(now, len(split.prefills), split.itl_s, self.planner.moves, split.reason))


def auto(
    settings: OursSettings, seed: int, planner_of: Callable[[SplitSettings], Planning] = Planner
) -> Callable[[Knowledge], AutoDecider]:
    """For one run, with a planner of its own."""
    return lambda knowledge: AutoDecider(knowledge, settings, seed, planner_of(settings.split))
