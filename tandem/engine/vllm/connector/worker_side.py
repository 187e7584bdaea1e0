"""The connector in a vLLM worker: has this rank's pages copied, and reports loads and saves exactly once.

Everything happens in the engine's own thread, within its steps; copies are begun there and looked after in this and
later steps. An idle engine makes no steps, and costs nothing. An engine whose requests all wait for a load, or whose
finished requests wait to be reported, makes empty ones: these wait here, for the stage to say something.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tandem.engine.vllm import forced_tokens
from tandem.engine.vllm.conduit_messages import (
    Began,
    Ended,
    LoadFinished,
    OutputOffer,
    OutputSaved,
    OutputSlots,
    Routed,
    Saved,
)
from tandem.engine.vllm.connector.conduit_client import ConduitClient
from tandem.engine.vllm.connector.copies import Copies, Copying
from tandem.engine.vllm.connector.expert_counts import ExpertCounts
from tandem.engine.vllm.connector.load_pace import LoadPace
from tandem.engine.vllm.connector.load_table import EndedLoad, LoadCopy, LoadTable
from tandem.engine.vllm.connector.orders import OutputOrder, PageTarget, SaveOrder, StepOrders

_EMPTY_STEP_S: Final = 0.004
"""The most seconds that an empty step waits; a request that arrives meanwhile is scheduled that much later."""
_FLYING_STEP_S: Final = 0.001
"""Seconds that an empty step waits at most while blocks are being copied."""
_OFFER_S: Final = 2.0
"""Seconds that the blocks of an output are kept for a stage that does not answer."""


@dataclass(frozen=True, eq=False)
class _Flight:
    """Copies that are under way for some requests; `land` when all of them are over."""

    copyings: list[Copying]
    requests: frozenset[str]
    land: Callable[[], None]

    @property
    def over(self) -> bool:
        return all(copying.over for copying in self.copyings)


@dataclass
class _Save:
    order: SaveOrder
    targets: list[PageTarget]
    copyings: list[Copying]


class TandemConnectorWorker:
    """One per rank. `block_bytes` are what this rank holds of a block; `layers` are the names of its layers in order;
    `experts` counts where its tokens go."""

    def __init__(
        self,
        rank: int,
        client: ConduitClient,
        copies: Copies,
        block_bytes: int,
        pace: LoadPace,
        layers: Sequence[str] = (),
        experts: ExpertCounts | None = None,
    ) -> None:
        self._rank = rank
        self._client = client
        self._copies = copies
        self._block_bytes = block_bytes
        self._pace = pace
        self._layers = {name: index for index, name in enumerate(layers)}
        self._experts = experts
        self._book = LoadTable()
        self._tracked: dict[str, tuple[int, int]] = {}
        """Requests that the engine has, or that are being left: their work and sequence."""
        self._orders = StepOrders()
        self._saves: list[_Save] | None = None
        """The saves of this step, once the first layers of its blocks are being saved."""
        self._groups_saved = 0
        self._flights: list[_Flight] = []
        self._loading = 0
        """Blocks on their way from slots."""
        self._offers: dict[tuple[int, int], tuple[OutputOrder, float]] = {}
        """Outputs for which the stage has not given slots yet, and until when they are kept."""
        self._left: dict[str, None] = {}
        """Requests that are over and have not been left yet: something is still copied for them."""
        self._held: dict[str, None] = {}
        self._ended: list[EndedLoad] = []
        self._mapped = False

    def begin_step(self, orders: StepOrders) -> None:
        """Take the orders of a step before anything is computed."""
        self._orders = orders
        self._tracked.update(orders.tracked)
        self._saves, self._groups_saved = None, 0
        if not self._mapped:
            self._listen()
            if self._client.memory is not None:
                # Now and not when the first block is copied: a device takes seconds to pin it.
                self._map()
        self._copies.begin_step(fence=orders.fence)
        if orders.blank:
            self._copies.blank(orders.blank)

    def layer_computed(self, name: str) -> None:
        """The step has been made to compute this layer; later ones follow."""
        groups = self._copies.groups
        layer = self._layers.get(name)
        if len(groups) > 1 and layer is not None and self._orders.saves:
            self._save_until(layer + 1)

    def end_step(self) -> None:
        """Finish the step after everything has been computed, or launched: save the remaining layers, then load the
        blocks that have arrived."""
        if self._experts is not None and (balance := self._experts.balance()) is not None:
            self._client.send(Routed(balance))
        if not (self._orders.asks or self._book.waiting or self._flights or self._offers):
            # Most steps. What the stage says meanwhile is read with the next request at the latest.
            return
        self._save_until(self._copies.groups[-1].stop)
        for save in self._saves or ():
            self._fly(save.copyings, frozenset({save.order.request_id}), self._saved(save))
        for output in self._orders.outputs:
            self._offer(output)
        for load in self._orders.loads:
            self._book.begin(load)
            if self._rank == 0:
                self._client.send(Began(load.work, load.sequence, load.cached, load.loading))
        self._held.update(dict.fromkeys(self._orders.held))
        if not self._go_on() and self._orders.idle and (self._book.waiting or self._flights or self._offers):
            self._client.wait(_FLYING_STEP_S if self._flights else _EMPTY_STEP_S)
            self._go_on()

    def report(self, finished: set[str]) -> tuple[set[str], set[str]]:
        """Two sets of requests, given those that are `finished`. The first are finished requests whose blocks the
        engine keeps until this report, and from which nothing copies any more; the second are those whose load is
        reported as over now. Call once per step, before `failed_blocks`."""
        if not (finished or self._left or self._held or self._book.waiting):
            self._ended = []
            return set(), set()
        for request_id in sorted(finished):
            if request_id in self._tracked:
                self._left[request_id] = None
                self._book.abort(request_id)
        self._ended = self._book.take()
        for load in self._ended:
            if load.first is not None:
                forced_tokens.provide((load.work, load.sequence), load.first)
            self._client.send(LoadFinished(load.work, load.sequence, load.copied))
        busy = self._busy()
        for request_id in [request_id for request_id in self._left if request_id not in busy]:
            del self._left[request_id]
            key = self._tracked.pop(request_id)
            forced_tokens.forget(key)
            self._client.send(Ended(*key))
        sent = {request_id for request_id in self._held if request_id not in busy}
        for request_id in sent:
            del self._held[request_id]
        return sent, {load.request_id for load in self._ended}

    def failed_blocks(self) -> set[int]:
        """The engine's blocks that the loads of this step did not fill."""
        return {block for load in self._ended for block in load.failed}

    def close(self) -> None:
        """Idempotent."""
        self._copies.close()
        self._client.close()

    def _busy(self) -> set[str]:
        """Requests for which something is copied, or will be."""
        flying = {request_id for flight in self._flights for request_id in flight.requests}
        return flying | {order.request_id for order, _ in self._offers.values()}

    # -- the stage --

    def _listen(self) -> None:
        for message in self._client.receive():
            if isinstance(message, OutputSlots):
                self._save_output(message)
            else:
                self._book.hear(message)
        if self._client.lost:
            self._book.lose()
            self._offers.clear()

    def _map(self) -> None:
        if not self._mapped:
            self._copies.map_slots(self._client.mapped().buffer)
            self._mapped = True

    # -- copies --

    def _go_on(self) -> bool:
        """Do what can be done now; gives whether that was anything."""
        self._listen()
        begun = self._load()
        landed = self._land()
        now = time.monotonic()
        for key in [key for key, (_, until) in self._offers.items() if now > until]:
            del self._offers[key]
        return begun or landed

    def _fly(self, copyings: list[Copying], requests: frozenset[str], land: Callable[[], None]) -> None:
        self._flights.append(_Flight(copyings, requests, land))

    def _land(self) -> bool:
        over = [flight for flight in self._flights if flight.over]
        if not over:
            return False
        self._flights = [flight for flight in self._flights if flight not in over]
        # Said before anybody else may write to a slot: what was copied from one counts if this has not been said.
        self._listen()
        for flight in over:
            flight.land()
        return True

    def _save_until(self, layer: int) -> None:
        """Begin to save what has been computed of the step's blocks, in whole groups of layers."""
        if self._saves is None:
            self._saves = self._to_save()
        groups = self._copies.groups
        while self._groups_saved < len(groups) and groups[self._groups_saved].stop <= layer:
            for save in self._saves:
                save.copyings.append(self._copies.save(save.targets, groups[self._groups_saved]))
            self._groups_saved += 1

    def _to_save(self) -> list[_Save]:
        if self._client.lost or not self._orders.saves:
            return []
        self._listen()
        saves = list[_Save]()
        for order in self._orders.saves:
            targets = [target for target in order.targets if not self._book.held(order.work, target.index)]
            if targets:
                saves.append(_Save(order, targets, []))
        if saves:
            self._map()
        return saves

    def _saved(self, save: _Save) -> Callable[[], None]:
        work, indices = save.order.work, tuple(target.index for target in save.targets)

        def land() -> None:
            for index in indices:
                self._book.saved(work, index)
            self._client.send(Saved(work, indices))

        return land

    def _offer(self, order: OutputOrder) -> None:
        if self._client.lost:
            return
        self._offers[order.work, order.sequence] = order, time.monotonic() + _OFFER_S
        if self._rank == 0:
            self._client.send(OutputOffer(order.work, order.sequence, order.names))

    def _save_output(self, message: OutputSlots) -> None:
        key = message.work, message.sequence
        order, _ = self._offers.pop(key, (None, 0.0))
        if order is None:
            self._client.send(OutputSaved(*key, saved=False))
            return
        targets = [
            PageTarget(index, slot, block)
            for index, (slot, block) in enumerate(zip(message.slots, order.blocks, strict=True))
            if slot >= 0
        ]
        copyings = list[Copying]()
        if targets:
            self._map()
            copyings = [self._copies.save(targets, group) for group in self._copies.groups]
        self._fly(copyings, frozenset({order.request_id}), lambda: self._client.send(OutputSaved(*key, saved=True)))

    def _load(self) -> bool:
        """Begin to copy what has landed, as much as may be copied in a step; gives whether that was anything."""
        limit = self._pace.blocks(self._block_bytes, decoding=self._orders.decoding)
        copies = self._book.next_copies(None if limit is None else max(0, limit - self._loading))
        if not copies:
            return False
        self._map()
        copying = self._copies.load([copy.target for copy in copies])
        self._loading += len(copies)
        self._fly([copying], frozenset(copy.request_id for copy in copies), self._loaded(copies, copying))
        return True

    def _loaded(self, copies: list[LoadCopy], copying: Copying) -> Callable[[], None]:
        def land() -> None:
            self._loading -= len(copies)
            self._pace.measured(copying.bytes, copying.seconds)
            self._book.copied(copies)

        return land
