"""Keeps the splits of all services with workers of role `auto`: who of them takes prompts for others.

The planners decide (`router.split.plan`), `service_split` runs each, and this hands them what the router sees. A
router without such workers does nothing here.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from router.fleet.fleet import Fleet
from router.fleet.peer import Peer
from router.fleet.service_split import ServiceSplit
from router.fleet.split_listing import FleetOutlook
from router.generation import Generation
from router.placement import CostModel, Placement, PlacementRequest
from router.settings import RouterSettings, SplitSettings
from router.split.plan import Planner
from router.split.reuse import marks_of
from router.split.values import ObservedRequest
from router.split.worker_status import ROLE
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import KINDS
from tandem.core.messages import SplitPublished
from tandem.core.metrics import Meter
from tandem.core.slo import Latency

_NO_FAULT: Final = frozenset(("cancelled", "draining", "slow_client", "taken_over"))
"""Outcomes that are caused by the client or by a router that stops."""
_FAULT_FROM: Final = 429
"""HTTP statuses below are the client's fault."""


class SplitManager:
    """One router's. Told by the dispatcher, on the event loop."""

    def __init__(
        self,
        fleet: Fleet,
        costs: CostModel,
        settings: RouterSettings,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        entropy: Entropy,
        meter: Meter,
        planner: Callable[[SplitSettings], Planner] = Planner,
    ) -> None:
        """`planner` makes what decides for one service."""
        self._planner = planner
        self._fleet = fleet
        self._costs = costs
        self._settings = settings
        self._loop = loop
        self._clock = clock
        self._entropy = entropy
        self._meter = meter
        self._holder = ""
        self._services: dict[str, ServiceSplit] = {}
        self._draining = False
        self._closed = False

    # ---- workers ----

    def joined(self, peer: Peer) -> None:
        """A worker can be used."""
        if peer.view.role == ROLE and not self._closed:
            self._of(peer.view.model).workers_changed(peer)

    def changed(self, peer: Peer) -> None:
        """A worker is lost, or takes nothing new."""
        service = self._services.get(peer.view.model)
        if service is not None and peer.view.role == ROLE and not self._closed:
            service.workers_changed()

    def published(self, peer: Peer, told: SplitPublished) -> None:
        """A worker keeps this record."""
        if peer.view.role == ROLE and not self._closed:
            self._of(peer.view.model).published(told)

    def drain(self) -> None:
        """Decide nothing any more, as new requests go elsewhere; follow who does."""
        self._draining = True
        for service in self._services.values():
            service.drain()

    def close(self) -> None:
        """Let go of what this router decides."""
        self._closed = True
        for service in self._services.values():
            service.drain()

    # ---- requests ----

    def seen(self, generation: Generation, asked: PlacementRequest, placement: Placement) -> None:
        """A request was placed for the first time."""
        service = self._services.get(generation.model)
        if service is not None:
            uncached = placement.prefill_tokens
            prompt_tokens, most = uncached + placement.cached_tokens, generation.stopping.max_tokens
            expected, sequences = placement.answer_tokens, generation.n
            peer = self._fleet.peer(placement.decode)
            view = None if peer is None else peer.view
            marks = () if view is None else marks_of(asked.names.get(view.root, ()), view.layout.block_tokens)
            arrival_s = generation.received
            service.planner.seen(
                ObservedRequest(
                    arrival_s, prompt_tokens, uncached, expected, sequences, most, marks, prefills=service.prefills
                )
            )

    def ended(
        self,
        generation: Generation,
        outcome: str,
        times: tuple[float, float] | None = None,
        tokens: int = 0,
        *,
        placed: bool = True,
    ) -> None:
        """Pass the end of a request to the planner: `outcome` is an error code or `done`, `times` are seconds to its
        first token and per token after it, `tokens` are the tokens of its answers, and `placed` says whether `seen`
        was called for it. The planner does not get outcomes that say nothing about the workers."""
        service = self._services.get(generation.model)
        if service is None or outcome in _NO_FAULT:
            return
        arrival_s = generation.received
        if outcome == "done":
            if tokens:
                most = generation.stopping.max_tokens
                service.planner.answered(generation.prompt_tokens, most, tokens / generation.n)
            if times is not None:
                met = self._fleet.services.slo(generation.model).met_by(Latency(times[0], 0.0, times[1]))
                service.planner.outcome(arrival_s, met)
        elif outcome in KINDS and KINDS[outcome].http >= _FAULT_FROM:
            service.planner.outcome(arrival_s, False, placed)

    # ---- showing ----

    def outlooks(self, models: Collection[str] = ()) -> tuple[FleetOutlook, ...]:
        """The splits of these models, or of all models if none is named, in order of their names. Models without
        `auto` workers are left out."""
        chosen = [model for model in sorted(self._services) if not models or model in models]
        outlooks = (self._services[model].outlook() for model in chosen)
        return tuple(outlook for outlook in outlooks if outlook.workers)

    def _of(self, model: str) -> ServiceSplit:
        service = self._services.get(model)
        if service is None:
            # Drawn on use: a router without such workers draws nothing.
            self._holder = self._holder or f"router-{self._entropy.token(6).hex()}"
            service = self._services[model] = ServiceSplit(
                model,
                self._holder,
                self._planner(self._settings.split),
                self._fleet,
                self._costs,
                self._settings,
                self._loop,
                self._clock,
                self._meter,
            )
            if self._draining:
                service.drain()
        return service
