"""Examines every request when it is first placed: what of its prompt could be reused, and why the rest could not.

Requests that are placed in one turn of the event loop are examined together when it ends: one after the other they
cost half of what each costs in the middle of everything else, and nothing waits for the result.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kv_transfer.index.protocol import Held
from router.dispatch.reuse_history import PromptOwner, ReuseHistory
from router.dispatch.why_missed import Evidence, Others, Where
from router.fleet.fleet import Fleet
from router.fleet.peer import Peer
from router.generation import Generation
from router.placement import Placement
from tandem.core.clock import Clock
from tandem.core.kv import adapter_root

Tell = Callable[[Evidence], None]


class _Placed(NamedTuple):
    """A request that has been placed, and the callback that receives its evidence."""

    generation: Generation
    held: Mapping[str, Held]
    placement: Placement
    computing: Peer
    at: float
    tell: Tell


class ReuseWatch:
    """Owned by the dispatcher. Remembers prompts in at most `bytes_max`."""

    def __init__(self, fleet: Fleet, loop: asyncio.AbstractEventLoop, clock: Clock, bytes_max: int) -> None:
        self._fleet = fleet
        self._loop = loop
        self._clock = clock
        self._history = ReuseHistory(bytes_max)
        self._placed: list[_Placed] = []

    def placed(self, generation: Generation, held: Mapping[str, Held], placement: Placement, tell: Tell) -> None:
        """Have `tell` called soon with the evidence from which `why_missed` explains why some of the prompt has to be
        computed. `held` is what workers hold of the prompt now."""
        computing = self._fleet.peer(placement.prefill or placement.decode)
        if computing is None:
            return
        if not self._placed:
            self._loop.call_soon(self._look)
        self._placed.append(_Placed(generation, held, placement, computing, self._clock.now(), tell))

    def _look(self) -> None:
        placed, self._placed = self._placed, []
        for each in placed:
            each.tell(self._evidence(each))

    def _evidence(self, placed: _Placed) -> Evidence:
        generation, held, placement, computing, now, _ = placed
        hello, prompt = computing.hello, generation.prompt
        size = hello.layout.block_tokens
        root = adapter_root(hello.root, computing.view.adapters.get(generation.adapter, ""))
        owner = PromptOwner(generation.tenant, generation.tenant_salt, root, hello.revision)
        here = Where(computing.worker_id, computing.epoch, generation.request_id, now)
        known = self._history.look(owner, prompt, here)
        others = self._history.others(owner, prompt, size) if known.tokens < size else Others()
        self._history.begun(owner, prompt, size)
        holder, best = self._best(held, computing)
        where = known.where(best * size)
        return Evidence(
            prompt_tokens=generation.prompt_tokens,
            block_tokens=size,
            found=placement.cached_tokens,
            best=best * size,
            holder=holder,
            known=known.tokens,
            parted=known.parted,
            where=where,
            gone=where is not None and self._gone(where),
            now=now,
            others=others,
        )

    def _best(self, held: Mapping[str, Held], computing: Peer) -> tuple[str, int]:
        """The worker with the most leading blocks, of those whose blocks the computing worker could use, and how many
        it has."""
        holder, best = "", 0
        for worker_id, has in held.items():
            peer = self._fleet.peer(worker_id)
            if has.total > best and peer is not None and peer.hello.root == computing.hello.root:
                holder, best = worker_id, has.total
        return holder, best

    def _gone(self, where: Where) -> bool:
        peer = self._fleet.peer(where.worker)
        return peer is None or peer.epoch != where.epoch
