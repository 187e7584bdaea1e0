"""The states of a sequence, and which state may follow which."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class SequenceStatus(IntEnum):
    """The state of a sequence, by vLLM's names where vLLM has the state.

    vLLM's RUNNING is two states here, because a step is planned for prompts and for generated tokens apart. Sequences
    have blocks from `WAITING_FOR_REMOTE_KVS` to `RUNNING_DECODE`. `Batch.move` changes states, as `NEXT` allows.
    """

    WAITING_FOR_PARENT = 0
    """The sequence is a child whose parent is not complete."""
    WAITING = 1
    """The sequence is in a waiting queue, and has not been admitted."""
    WAITING_FOR_PREFIX = 2
    """Not admitted, because a block that the sequence would load is being loaded for another request."""
    WAITING_FOR_LOAD_END = 3
    """The sequence gave its blocks back while they were being loaded. It waits again once the load has ended."""
    WAITING_FOR_REMOTE_KVS = 4
    """The sequence has been admitted, and its blocks are being loaded."""
    WAITING_FOR_FIRST_TOKEN = 5
    """The sequence has its KV. Another worker samples its next position."""
    RUNNING_PREFILL = 6
    """More than the last token is to be computed, or the last token again for its logits."""
    RUNNING_DECODE = 7
    """The sequence gets one token per step."""
    PREEMPTED = 8
    """The sequence is in a waiting queue again, because its blocks were taken after it had been admitted."""
    FINISHED = 9
    """The sequence is over. Why, its last output says (`Emitted.finish`), or the failure of its request."""


_S: Final = SequenceStatus
_ADMITTED: Final = frozenset({_S.WAITING_FOR_FIRST_TOKEN, _S.RUNNING_PREFILL, _S.RUNNING_DECODE, _S.FINISHED})

NEXT: Final[Mapping[SequenceStatus, frozenset[SequenceStatus]]] = {
    _S.WAITING_FOR_PARENT: _ADMITTED,
    _S.WAITING: _ADMITTED | {_S.WAITING_FOR_PREFIX, _S.WAITING_FOR_REMOTE_KVS},
    _S.WAITING_FOR_PREFIX: frozenset({_S.WAITING, _S.FINISHED}),
    _S.WAITING_FOR_LOAD_END: frozenset({_S.WAITING, _S.FINISHED}),
    _S.WAITING_FOR_REMOTE_KVS: _ADMITTED | {_S.WAITING_FOR_LOAD_END, _S.PREEMPTED},
    _S.WAITING_FOR_FIRST_TOKEN: frozenset({_S.RUNNING_PREFILL, _S.RUNNING_DECODE, _S.PREEMPTED, _S.FINISHED}),
    _S.RUNNING_PREFILL: frozenset({_S.RUNNING_DECODE, _S.WAITING_FOR_FIRST_TOKEN, _S.PREEMPTED, _S.FINISHED}),
    _S.RUNNING_DECODE: frozenset({_S.PREEMPTED, _S.FINISHED}),
    _S.PREEMPTED: _ADMITTED,
    _S.FINISHED: frozenset(),
}
"""The states that may follow each state."""

NOT_ADMITTED: Final = frozenset({_S.WAITING, _S.WAITING_FOR_PREFIX, _S.WAITING_FOR_LOAD_END})
"""The states of a request's root while the request has no place."""
