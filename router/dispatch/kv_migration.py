"""Moves a stream together with its KV: the leaving worker hands its blocks to the worker that continues the stream.
Pure.

The move is an ordinary hand-off with the leaving worker in the place of prefill. That worker's prefix cache holds
everything but the last tokens, so it computes hardly anything, and the stream pauses for a transfer instead of a
whole prompt.
"""

from typing import Final

import msgspec

from router.placement import Placement, PlacementRequest
from router.placement.view import WorkerView

_SPARE_BLOCKS: Final = 2
"""Blocks that a migrating stream needs besides those of its tokens: the next one, and a copy of the partial one."""


def holds_now(receiving: WorkerView, request: PlacementRequest) -> bool:
    """Whether the worker has free blocks for the request now. Where it would have to wait, it had better stay."""
    return receiving.blocks_free >= _blocks(receiving, request) + _SPARE_BLOCKS


def can_migrate_kv(leaving: WorkerView, receiving: WorkerView, request: PlacementRequest) -> bool:
    """Whether the blocks can come from the worker that leaves: both exchange KV, and nothing waits there."""
    waits = leaving.load is not None and leaving.load.waiting > 0
    return leaving.pairing == receiving.pairing and not request.local_only and not waits


def with_migrated_kv(found: Placement, leaving: WorkerView, request: PlacementRequest) -> Placement:
    """The placement `found`, changed so that the leaving worker provides the blocks."""
    block_tokens = leaving.layout.block_tokens
    cached = (request.prompt_tokens - 1) // block_tokens * block_tokens
    return msgspec.structs.replace(
        found,
        mode="disaggregated",
        prefill=leaving.worker_id,
        prefill_tokens=request.prompt_tokens - cached,
        cached_tokens=cached,
        path="",
        reasons=(*found.reasons, f"its blocks come from {leaving.worker_id}, which leaves"),
    )


def _blocks(worker: WorkerView, request: PlacementRequest) -> int:
    return -(-request.prompt_tokens // worker.layout.block_tokens) * request.sequences
