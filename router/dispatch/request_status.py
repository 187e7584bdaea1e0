"""The stage of a running request, from what its router knows; nothing is kept up to date for it between queries.

    queue        not placed, or placed again after an attempt failed and not placed yet
    prefill      submitted; of the blocks that decode is to fetch none is known to exist
    transfer     the first block that decode has to fetch exists, on the prefill worker or already on decode
    first-token  the prefill worker's first token was accepted, none of decode's own
    decode       decode's own tokens come

A prompt of which decode misses no full block (a short one, a cached one, one that decode computes itself) has no
`transfer` that the index could show, and a stage never goes back within an attempt.
"""

from collections.abc import Collection
from typing import Protocol

from router.dispatch.adapters import prompt_root
from router.dispatch.attempt import Attempt
from router.dispatch.sequences import Sequences
from router.generation import Generation, RequestStatus
from tandem.core.kv import chain_names


class Holders(Protocol):
    """Finds the workers that hold a block now (the dispatcher, from the index)."""

    def holders(self, name: bytes) -> Collection[str]:
        """Ids of the live workers that have it."""
        ...


class StatusReader:
    """Reads the status of one request. The block to look for is named once per attempt, when the status is asked
    for."""

    def __init__(self, generation: Generation, index: Holders) -> None:
        self._generation = generation
        self._index = index
        self._block: tuple[int, bytes | None] = (0, None)
        """The attempt's number and the first full block that its decode worker had not."""
        self._seen: int = 0
        """The last attempt of which that block was seen."""

    def standing(self, attempt: Attempt | None, sequences: Sequences, attempts: int) -> RequestStatus:
        """The status of the request. Without a current attempt, the request waits for one."""
        if attempt is None:
            return RequestStatus("queue", None, None, sequences.accepted, attempts)
        stage, placement = self._stage(attempt, sequences), attempt.placement
        return RequestStatus(stage, placement.prefill, placement.decode, sequences.accepted, attempts)

    def _stage(self, attempt: Attempt, sequences: Sequences) -> str:
        if not attempt.decode.watched:
            return "decode"
        if any(each.next_position > attempt.first[each.sequence] for each in sequences.unfinished()):
            return "first-token"
        return "transfer" if attempt.placement.prefill is not None and self._transfers(attempt) else "prefill"

    def _transfers(self, attempt: Attempt) -> bool:
        if self._seen == attempt.number:
            return True
        if self._block[0] != attempt.number:
            self._block = (attempt.number, self._first_missing(attempt))
        name = self._block[1]
        if name is None:
            return False
        holders = self._index.holders(name)
        if attempt.placement.prefill in holders or attempt.placement.decode in holders:
            self._seen = attempt.number
        return self._seen == attempt.number

    def _first_missing(self, attempt: Attempt) -> bytes | None:
        """The first full block of the prompt that decode did not have when the attempt was placed."""
        view = attempt.decode.peer.view
        root, size = prompt_root(view.root, view.adapters, self._generation), view.layout.block_tokens
        if root is None:
            return None
        count = attempt.placement.decode_cached_tokens // size + 1
        names = chain_names(root, self._generation.prompt[: 4 * count * size], size)
        return names[count - 1] if len(names) >= count else None
