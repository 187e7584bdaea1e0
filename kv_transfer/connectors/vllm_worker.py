"""The connector in a vLLM worker: copies this rank's pages, and reports loads exactly once.

Everything happens in the engine's own thread, within its steps. An idle engine makes no steps, and costs nothing. An
engine whose requests all wait for a load makes empty ones: these wait here, for the stage to say something.
"""

from typing import Final

from kv_transfer.connectors.conduit_client import ConduitClient
from kv_transfer.connectors.expert_counts import ExpertCounts
from kv_transfer.connectors.load_book import EndedLoad, LoadBook
from kv_transfer.connectors.orders import SaveOrder, StepOrders
from kv_transfer.connectors.page_copy import PageCopier
from tandem.engine.vllm import forced_tokens
from tandem.engine.vllm.conduit_messages import Began, Ended, Loaded, Routed, Saved

_EMPTY_STEP_S: Final = 0.004
"""How long an empty step waits at most: a request that comes meanwhile is scheduled so much later."""
_STEP_BYTES_MAX: Final = 128 << 20
"""Loaded in one step in which others generate, so that these do not wait for a long prompt's blocks."""


class WorkerSide:
    """One per rank. `block_bytes` are what this rank holds of a block; `experts` counts where its tokens go."""

    def __init__(
        self,
        rank: int,
        client: ConduitClient,
        copier: PageCopier,
        block_bytes: int,
        experts: ExpertCounts | None = None,
    ) -> None:
        self._rank = rank
        self._client = client
        self._copier = copier
        self._experts = experts
        self._copies_max = max(1, _STEP_BYTES_MAX // max(1, block_bytes))
        self._book = LoadBook()
        self._tracked: dict[str, tuple[int, int]] = {}
        self._orders = StepOrders()
        self._ended: list[EndedLoad] = []
        self._mapped = False

    def begin_step(self, orders: StepOrders) -> None:
        """Before anything is computed."""
        self._orders = orders
        self._tracked.update(orders.tracked)
        if orders.blank:
            self._copier.blank(orders.blank)

    def end_step(self) -> None:
        """After everything has been computed: save, then load what has come."""
        if self._experts is not None and (balance := self._experts.balance()) is not None:
            self._client.send(Routed(balance))
        self._listen()
        for save in self._orders.saves:
            self._save(save)
        for load in self._orders.loads:
            self._book.begin(load)
            if self._rank == 0:
                self._client.send(Began(load.work, load.sequence, load.cached, load.loading))
        if not self._book.waiting:
            return
        self._listen()
        copied = self._load()
        if self._orders.idle and not copied:
            self._client.wait(_EMPTY_STEP_S)
            self._listen()
            self._load()

    def over(self, finished: set[str]) -> set[str]:
        """Requests whose load is reported now, given those that are finished. Call once per step, before
        `failed_blocks`."""
        gone = [request_id for request_id in sorted(finished) if request_id in self._tracked]
        for request_id in gone:
            self._book.abort(request_id)
        self._ended = self._book.take()
        for load in self._ended:
            if load.first is not None:
                forced_tokens.provide((load.work, load.sequence), load.first)
            self._client.send(Loaded(load.work, load.sequence, load.copied))
        for request_id in gone:
            key = self._tracked.pop(request_id)
            forced_tokens.forget(key)
            self._client.send(Ended(*key))
        return {load.request_id for load in self._ended}

    def failed_blocks(self) -> set[int]:
        """The engine's blocks that the loads of this step did not fill."""
        return {block for load in self._ended for block in load.failed}

    def close(self) -> None:
        """Idempotent."""
        self._client.close()

    def _listen(self) -> None:
        for message in self._client.receive():
            self._book.hear(message)
        if self._client.lost:
            self._book.lose()

    def _map(self) -> None:
        if not self._mapped:
            self._copier.map_slots(self._client.mapped().buffer)
            self._mapped = True

    def _save(self, order: SaveOrder) -> None:
        targets = [target for target in order.targets if not self._book.held(order.work, target.index)]
        if not targets or self._client.lost:
            return
        self._map()
        self._copier.save(targets)
        for target in targets:
            self._book.saved(order.work, target.index)
        self._client.send(Saved(order.work, tuple(target.index for target in targets)))

    def _load(self) -> int:
        """Copy what has landed; gives how many blocks that were."""
        targets = self._book.next_copies(self._copies_max)
        if targets:
            self._map()
            self._copier.load(targets)
        return len(targets)
