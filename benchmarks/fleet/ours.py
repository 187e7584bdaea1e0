"""The router's own placement at work in a simulated fleet: policy, cost model and worker views as they are.

What the fleet and dispatch of a real router do around a policy is done here in their order: views take load figures
when they come, attempts are noted when sent, when their first token comes and when they end, and the cost model hears
of loads, prompts, pulls and answers from what workers report.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from benchmarks.fleet.router import Knowledge
from benchmarks.fleet.worker import Worker
from benchmarks.fleet.workload import Request
from router.placement import (
    CostModel,
    Objective,
    Placement,
    PlacementRequest,
    Unplaced,
    Work,
    WorkerView,
    make_policy,
)
from router.placement.decision import Needs
from router.settings import CostPriors, PlacementSettings, SplitSettings
from tandem.core.entropy import SeededEntropy
from tandem.core.kv import Layout
from tandem.core.messages import Load, TierCost
from tandem.core.slo import Slo
from tandem.core.spans import Attribute, Span

_MODEL: Final = "m"
_ROOT: Final = b"r" * 16
_UNBOUNDED: Final = 1 << 20


@dataclass(frozen=True)
class OursSettings:
    """`token_bytes` is what a token's KV takes, `context_tokens` the longest sequence workers take, `slo` what
    requests are to hold as far as the router is told. A real router refuses where all workers have
    `sequences_per_worker_max` sequences; here nobody does, as peers do not."""

    token_bytes: int
    context_tokens: int = 1 << 20
    placement: PlacementSettings = field(
        default_factory=lambda: PlacementSettings(sequences_per_worker_max=_UNBOUNDED)
    )
    priors: CostPriors = field(default_factory=CostPriors)
    slo: Slo | None = None
    split: SplitSettings = field(default_factory=SplitSettings)
    figures_late_s: float = 0.0
    """How much later than workers tell of their load the router hears of it."""
    load_lag_s: float = 0.15
    """`router.settings.FleetSettings.load_lag_s`: figures show what was submitted so long before they are heard."""

    @property
    def objective(self) -> Objective | None:
        """What placement makes of it."""
        return None if self.slo is None else Objective.of(self.slo)

    def holding(self, slo: Slo) -> "OursSettings":
        """With this objective."""
        return replace(self, slo=slo)

    def equal_terms(self) -> "OursSettings":
        """Without what no peer does: workers fetch nothing from each other, and where there are prefill workers they
        compute every prompt."""
        return replace(self, placement=replace(self.placement, fetch=False, prefer="disaggregated"))


@dataclass(slots=True)
class _Attempt:
    asked: PlacementRequest
    placement: Placement
    decode: Work
    prefill: Work | None
    alone: bool
    prompts: int
    placed_s: float
    begun: bool = False
    """Its first token has come."""


class OursDecider:
    """`benchmarks.fleet.router.Decider`."""

    def __init__(self, knowledge: Knowledge, settings: OursSettings, seed: int) -> None:
        self._knowledge = knowledge
        self._settings = settings
        self._objective = settings.objective
        self._policy = make_policy(settings.placement, SeededEntropy(seed, "placement"))
        self.costs = CostModel(settings.priors)
        """What it has learned; reading it changes nothing."""
        self.views = tuple(_view(worker, knowledge.ids[worker.index], settings) for worker in knowledge.workers)
        """As the router sees its workers; their owner alone changes them."""
        self._loads: list[Load] = [worker.load for worker in knowledge.workers]
        self._attempts: dict[int, _Attempt] = {}
        self._here = self.views
        self._away: set[int] = set()
        self._late: deque[tuple[float, int, Load]] = deque()
        """Figures that have not been heard yet: (when they are, worker, figures)."""

    def place(self, request: Request, now: float) -> tuple[int, int] | None:
        self.take_loads(now)
        names = self._knowledge.names(request)
        self._take_changes(now)
        asked = self._asked(request, names, now)
        placement = self._policy.choose(asked, self._here, self.costs, self._settings.placement, None, now)
        if isinstance(placement, Unplaced):
            return None
        self._policy.placed(asked, placement, now)
        return self._sent(request, asked, placement, now)

    def first_token(self, request: Request, now: float) -> None:
        attempt = self._attempts[request.number]
        if attempt.prefill is None:
            view = self.views[request.decode]
            attempt.decode = view.computed(attempt.decode)
        else:
            view = self.views[request.prefill]
            view.released(attempt.prefill)
        attempt.begun = True
        if request.retried:
            return  # Its figures are those of all attempts together.
        alone = attempt.alone and view.prompts == attempt.prompts and request.fetched == 0
        spans = (_prefill_span(request, now),)
        self.costs.observe_spans(view.worker_id, spans, alone=alone)
        self.costs.observe_first(_MODEL, attempt.placement.first_ms, 1e3 * (now - attempt.placed_s))

    def finished(self, request: Request, now: float) -> None:
        attempt = self._attempts.pop(request.number)
        self.views[request.decode].released(attempt.decode)
        if not attempt.begun and attempt.prefill is not None:
            self.views[request.prefill].released(attempt.prefill)
        self._policy.ended(attempt.asked, attempt.placement, request.emitted, now)
        if request.ended:
            self.costs.observe_answer(request.max_tokens, request.emitted)

    def transferred(self, request: Request, tokens: int, seconds: float) -> None:
        if tokens > 0 and seconds > 0:
            moved = tokens * self._settings.token_bytes
            attributes: dict[str, Attribute] = {"bytes": moved, "gb_per_s": moved / seconds / 1e9}
            worker_id = self.views[request.decode].worker_id
            self.costs.observe_spans(worker_id, (_span("kv.pull", 0.0, seconds, attributes),))

    def placement_of(self, request: Request) -> Placement:
        """Where a request under way was sent, and why."""
        return self._attempts[request.number].placement

    def tune(self, worker_id: str, itl_target_s: float | None, now: float) -> None:
        """Tell a worker what its steps may take."""
        self._knowledge.workers[self._knowledge.numbers[worker_id]].tune(itl_target_s, now)

    def _asked(self, request: Request, names: Sequence[bytes], now: float) -> PlacementRequest:
        """What was generated before a worker was lost is part of the prompt."""
        objective = self._objective
        if objective is not None and request.first_s >= 0:
            objective = objective._replace(ttft_ms=None)
        return PlacementRequest(
            model=_MODEL,
            prompt_tokens=request.input_tokens + request.emitted,
            sequences=1,
            max_tokens=max(1, request.max_tokens - request.emitted),
            held=self._knowledge.index.longest(names),
            names={_ROOT: names},
            request_id=str(request.number),
            needs=self._needs(request.adapter) if request.adapter else None,
            objective=objective,
            age_ms=1e3 * (now - request.arrival_s),
        )

    def _needs(self, adapter: str) -> Needs:
        """Every worker serves every adapter."""
        for view in self.views:
            if adapter not in view.adapters:
                view.adapters = {**view.adapters, adapter: adapter}
        return Needs((), adapter, adapter)

    def take_loads(self, now: float) -> None:
        """Figures that are new since the last decision, as far as they have been heard."""
        late_s, late = self._settings.figures_late_s, self._late
        for number, worker in enumerate(self._knowledge.workers):
            if worker.load is not self._loads[number]:
                self._loads[number] = worker.load
                late.append((now + late_s, number, worker.load))
        while late and late[0][0] <= now:
            _, number, load = late.popleft()
            if number not in self._knowledge.away:
                view = self.views[number]
                view.loaded(load, now, self._settings.load_lag_s)
                self.costs.observe_load(view.worker_id, load, view.attended_tokens, view.kind)

    def _take_changes(self, now: float) -> None:
        """Workers that have come or are lost."""
        away = self._knowledge.away
        if away != self._away:
            for number in away - self._away:
                self._policy.gone(self.views[number].worker_id)
                self.costs.forget(self.views[number].worker_id)
            for number in self._away - away:
                self.views[number].ready_at = now
            self._away = set(away)
            self._here = tuple(view for number, view in enumerate(self.views) if number not in away)

    def _sent(self, request: Request, asked: PlacementRequest, placement: Placement, now: float) -> tuple[int, int]:
        numbers = self._knowledge.numbers
        decode = numbers[placement.decode]
        prefill = -1 if placement.prefill is None else numbers[placement.prefill]
        computing = self.views[decode if prefill < 0 else prefill]
        alone = computing.queued_prompt_tokens == 0 and computing.prompt_tokens_in_flight == 0
        on_decode, on_prefill = placement.work(asked.sequences)
        self.views[decode].submitted(now, on_decode)
        if on_prefill is not None:
            self.views[prefill].submitted(now, on_prefill)
        if request.adapter:
            for number in {decode, prefill} - {-1}:
                self.views[number].used(request.adapter)
        self._attempts[request.number] = _Attempt(
            asked, placement, on_decode, on_prefill, alone, computing.prompts, now
        )
        request.sources = tuple((numbers[source.holder], source.blocks) for source in placement.sources)
        return decode, prefill


def ours(settings: OursSettings, seed: int) -> Callable[[Knowledge], OursDecider]:
    """For one run."""
    return lambda knowledge: OursDecider(knowledge, settings, seed)


def _view(worker: Worker, worker_id: str, settings: OursSettings) -> WorkerView:
    size = worker.settings.block_tokens
    layout = Layout("simulated", "plain", "u8", 1, 1, size, 1, settings.token_bytes // 2)
    tiers = tuple(
        TierCost(tier.name, tier.tokens // size, tier.tokens_per_s * settings.token_bytes, tier.latency_s)
        for tier in worker.settings.tiers
    )
    return WorkerView(
        worker_id=worker_id,
        epoch=1,
        role=worker.role,
        model=_MODEL,
        revision="",
        pairing=0,
        root=_ROOT,
        layout=layout,
        blocks=worker.blocks,
        context_tokens=settings.context_tokens,
        load=worker.load,
        tiers=tiers,
        features=() if worker.settings.itl_target_s is None else ("itl_target",),
        hardware=worker.settings.hardware,
        export_blocks=int(worker.settings.export_share * worker.blocks),
        sequences_max=_UNBOUNDED,
    )


def _prefill_span(request: Request, now: float) -> Span:
    attributes: dict[str, Attribute] = {
        "tokens_computed": request.computed,
        "tokens_reused": request.reused + request.fetched,
        "chunks": request.chunks,
    }
    return _span("prefill", request.begun_s, now, attributes)


def _span(name: str, start_s: float, end_s: float, attributes: dict[str, Attribute]) -> Span:
    return Span("", "", "", name, "worker", start_s, end_s, attributes)
