"""How much of what prompts share with earlier ones a fleet's memory still holds when they come. Pure.

A prompt is known by marks: the names of its blocks at every `MARK_TOKENS`. The reuse distance of a mark is the number
of tokens of other prompts that came since the mark was last used, each counted once: memory that evicts the least
recently used first still holds what lies within its size (Mattson et al. 1970, the stack distance). Distances are
exact to one epoch.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final

MARK_TOKENS: Final = 1024
MARKS_MAX: Final = 128
"""Maximum number of marks of one prompt; tokens beyond them count as new."""
_EPOCH_TOKENS: Final = 65_536
_EPOCHS_MAX: Final = 512
"""Epochs that are kept: marks last used before them are forgotten."""


def marks_of(names: Sequence[bytes], block_tokens: int) -> tuple[bytes, ...]:
    """The marks of a prompt, given the names of its whole blocks."""
    every = max(1, MARK_TOKENS // block_tokens)
    last = min(len(names), every * MARKS_MAX)
    return tuple([names[place] for place in range(every - 1, last, every)])


def held_tokens(distances: Sequence[float], memory_tokens: float) -> int:
    """Leading tokens of a prompt that a memory of such a size holds."""
    return MARK_TOKENS * bisect_right(distances, memory_tokens)


def new_tokens(prompt_tokens: int, distances: Sequence[float]) -> int:
    """The prompt tokens that no memory holds. A prefix that came before is taken to end halfway between two marks."""
    return max(1, prompt_tokens - MARK_TOKENS * len(distances) - (MARK_TOKENS // 2 if distances else 0))


class Reuse:
    """Tracks the prefix reuse of one service's prompts, in the order in which they arrive."""

    def __init__(self) -> None:
        self._used: dict[bytes, int] = {}
        """The epoch in which each mark was last used."""
        self._tokens: deque[int] = deque([0])
        """Per epoch, oldest first: the tokens that were last used in that epoch."""
        self._marks: deque[list[bytes]] = deque([[]])
        """Per epoch: the marks that were used in that epoch, and perhaps again later."""
        self._first = 0
        """Number of the oldest epoch."""
        self._filled = 0
        """Tokens used in the latest one."""

    def distances(self, marks: Sequence[bytes]) -> tuple[float, ...]:
        """The reuse distances of the marks of a prompt that arrives now, in tokens and ascending, up to the first new
        mark."""
        used, tokens, first = self._used, self._tokens, self._first
        found: list[float] = []
        since, counted = 0, first + len(tokens)
        for mark in marks:
            epoch = used.get(mark, -1)
            if epoch < first:
                break
            # A mark that lies deeper was last used no later.
            since += sum([tokens[each - first] for each in range(epoch, counted)])
            counted = min(counted, epoch)
            found.append(float(since))
        self._use(marks)
        return tuple(found)

    def _use(self, marks: Sequence[bytes]) -> None:
        used, tokens, first = self._used, self._tokens, self._first
        latest = first + len(tokens) - 1
        for mark in marks:
            epoch = used.get(mark, -1)
            if epoch >= first:
                tokens[epoch - first] -= MARK_TOKENS
            if epoch != latest:
                used[mark] = latest
                self._marks[-1].append(mark)
        tokens[-1] += MARK_TOKENS * len(marks)
        self._filled += MARK_TOKENS * len(marks)
        if self._filled >= _EPOCH_TOKENS:
            self._filled = 0
            tokens.append(0)
            self._marks.append([])
            if len(tokens) > _EPOCHS_MAX:
                tokens.popleft()
                for mark in self._marks.popleft():
                    if used.get(mark) == self._first:
                        del used[mark]
                self._first += 1
