"""Asks the placement policy: names the prompt, looks up the holders of its blocks, and reports what becomes of the
placement."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from kv_transfer.index.protocol import Held
from router.dispatch.adapters import content_hash, needs_of, prompt_root
from router.dispatch.deps import DispatchDeps
from router.dispatch.naming import Naming
from router.dispatch.policies import Policies
from router.dispatch.request_state import RequestState
from router.dispatch.reuse_watch import ReuseWatch
from router.dispatch.splitting import routes_of
from router.fleet.fleet import Fleet
from router.generation import Generation
from router.placement import Placement, PlacementRequest, Unplaced
from router.placement.revisions import Route, unplaced
from router.placement.view import WorkerView


class PlacementResult(NamedTuple):
    """A decision with what it was taken for."""

    asked: PlacementRequest
    placement: Placement


class Placing:
    """Owns the policies of one router."""

    def __init__(self, fleet: Fleet, tools: DispatchDeps) -> None:
        self._fleet = fleet
        self._tools = tools
        self._naming = Naming(tools.settings.names_bytes_max)
        self._policies = Policies(fleet.services, tools)
        self._reuse = ReuseWatch(fleet, tools.loop, tools.clock, tools.settings.reuse_history_bytes_max)
        self._begun: dict[int, tuple[PlacementResult, int]] = {}
        """The latest attempt of each request, by the request's key, with the output tokens that had been accepted
        before it."""

    def find(
        self, request: RequestState, avoid: tuple[tuple[str, int], ...] = (), *, moves: bool = False
    ) -> PlacementResult | Unplaced:
        """Workers for the request, none of them in `avoid` (id, epoch) if there are others. Where its prompt `moves`,
        no worker counts as about to hold the blocks that the request's last placement has promised."""
        generation, fleet = request.generation, self._fleet
        if not fleet.views(generation.model):
            return Unplaced("no_workers", (fleet.services.nobody(generation.model),))
        names, held = self._holders(generation)
        facts, here = fleet.services.of(generation.model), fleet.revisions(generation.model)
        asked = request.placement_request({} if moves or request.prompt_moved else names, held, avoid, facts)
        workers = self._workers(generation.model, names)
        if ways := routes_of(generation, request.revision, facts, here, workers):
            return self._by_revision(ways, generation, asked, workers)
        if (needs := needs_of(generation, workers)) is not None:
            asked = msgspec.structs.replace(asked, needs=needs)
        return self._choose(asked, workers)

    def _by_revision(
        self, ways: Sequence[Route], generation: Generation, asked: PlacementRequest, workers: Sequence[WorkerView]
    ) -> PlacementResult | Unplaced:
        """Workers of the first revision that can take the request."""
        refused = []
        for revision, why in ways:
            needs = needs_of(generation, [worker for worker in workers if worker.revision == revision])
            of_revision = msgspec.structs.replace(asked, revision=revision, needs=needs)
            found = self._choose(of_revision, workers)
            if not isinstance(found, Unplaced):
                told = (*found.placement.reasons, why)
                return PlacementResult(of_revision, msgspec.structs.replace(found.placement, reasons=told))
            refused.append(found)
        return unplaced(refused)

    def _choose(self, asked: PlacementRequest, workers: Sequence[WorkerView]) -> PlacementResult | Unplaced:
        settings, costs, now = self._tools.settings.placement, self._tools.costs, self._tools.clock.now()
        found = self._policies.of(asked.model).choose(asked, workers, costs, settings, self._fleet.pairs, now)
        return found if isinstance(found, Unplaced) else PlacementResult(asked, found)

    def begun(self, request: RequestState, found: PlacementResult) -> None:
        """The request has an attempt as was found; one before it is over."""
        self.ended(request)
        self._policies.of(found.asked.model).placed(found.asked, found.placement, self._tools.clock.now())
        if request.attempts == 1:
            self._reuse.placed(request.generation, found.asked.held, found.placement, request.missed)
        self._tell_guesses(found)
        if request.generation.adapter:
            self._used(found.placement, request.generation.adapter)
        self._begun[request.key] = PlacementResult(found.asked.figures(), found.placement), request.accepted

    def ended(self, request: RequestState) -> None:
        """The latest attempt of the request is over."""
        begun = self._begun.pop(request.key, None)
        if begun is not None:
            (asked, placement), before = begun
            self._policies.of(asked.model).ended(asked, placement, request.accepted - before, self._tools.clock.now())

    def gone(self, worker_id: str) -> None:
        """A worker is lost."""
        self._policies.gone(worker_id)
        self._tools.costs.forget(worker_id)

    async def seek(self, generation: Generation) -> None:
        """Ask the shared index, if there is one, who else has the prompt's blocks; bounded by a few milliseconds."""
        scope = self._fleet.services.scope(generation.model)
        for names in self._names(generation).values():
            await self._fleet.blocks.seek(names, scope)

    def _workers(self, model: str, names: Mapping[bytes, Sequence[bytes]]) -> tuple[WorkerView, ...]:
        """The live workers, and holders that there is no link to."""
        workers, scope = self._fleet.views(model), self._fleet.services.scope(model)
        beyond = [view for each in names.values() for view in self._fleet.blocks.beyond(each, scope)]
        return (*workers, *beyond) if beyond else workers

    def _tell_guesses(self, found: PlacementResult) -> None:
        placement = found.placement
        for worker_id in (placement.decode, placement.prefill):
            peer = None if worker_id is None else self._fleet.peer(worker_id)
            if peer is not None:
                self._fleet.blocks.sent(peer, found.asked.names.get(peer.hello.root, ()))

    def _used(self, placement: Placement, adapter: str) -> None:
        for worker_id in (placement.decode, placement.prefill):
            peer = None if worker_id is None else self._fleet.peer(worker_id)
            if peer is not None:
                peer.view.used(adapter)

    def _holders(self, generation: Generation) -> tuple[Mapping[bytes, Sequence[bytes]], Mapping[str, Held]]:
        """The prompt's names by the root of the workers that use them, and who has how much of it."""
        names, held = self._names(generation), dict[str, Held]()
        scope = self._fleet.services.scope(generation.model)
        for each in names.values():
            held.update(self._fleet.leading(each, scope))
        return names, held

    def _names(self, generation: Generation) -> dict[bytes, Sequence[bytes]]:
        if generation.images:
            return {}  # Its tokens do not say which images they stand for.
        model, adapter = generation.model, generation.adapter
        adapters = {}
        if adapter and (found := content_hash(self._fleet.views(model), adapter)) is not None:
            adapters = {adapter: found}
        return {
            root: self._naming.names(of_prompt, generation.prompt, block_tokens)
            for root, block_tokens in self._fleet.roots(model)
            if generation.prompt_tokens >= block_tokens
            and (of_prompt := prompt_root(root, adapters, generation)) is not None
        }
