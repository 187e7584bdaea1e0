"""Requests that begin alike go to the same worker, and to another one only when that is gone.

Rendezvous hashing: every worker draws a number from its id and the request's key, the highest wins. When a worker
joins or leaves, only the requests that it wins or won move.
"""

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

from router.placement.costs import CostModel
from router.placement.decision import Placement, PlacementRequest, Unplaced
from router.placement.pairs import Pairs
from router.placement.policies.ordered import ordered
from router.placement.policies.stateless import Stateless
from router.placement.view import WorkerView
from router.settings import PlacementSettings


class ConsistentHash(Stateless):
    """Chooses workers by the hash of `prompt_cache_key`, else of the prompt's first `hash_tokens` tokens, else of the
    request's id."""

    def choose(
        self,
        request: PlacementRequest,
        workers: Sequence[WorkerView],
        costs: CostModel,
        settings: PlacementSettings,
        pairs: Pairs | None,
        now: float,
    ) -> Placement | Unplaced:
        key, why = _key(request, workers, settings)
        return ordered(request, workers, costs, settings, pairs, partial(_by_draw, key), why)


def _key(request: PlacementRequest, workers: Sequence[WorkerView], settings: PlacementSettings) -> tuple[bytes, str]:
    """The key that the request is hashed by, and the sentence that explains it."""
    if request.prompt_cache_key:
        return request.prompt_cache_key.encode(), "the hash of its prompt_cache_key leads there"
    sizes = {worker.root: worker.layout.block_tokens for worker in workers}
    for root, names in request.names.items():
        if names and root in sizes:
            depth = max(1, settings.hash_tokens // sizes[root])
            return names[min(depth, len(names)) - 1], "the hash of its first blocks leads there"
    return request.request_id.encode(), "its prompt has no whole block, so the hash of its id leads there"


def _by_draw(key: bytes, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
    return sorted(workers, key=lambda worker: (_draw(key, worker.worker_id), worker.worker_id))


def _draw(key: bytes, worker_id: str) -> bytes:
    return blake2b(worker_id.encode() + b"\0" + key, digest_size=8).digest()
