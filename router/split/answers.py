"""Learns how long answers become, by how long the prompt is. Pure; one owner changes it in place.

Placement expects one length of all answers with a like bound. A split depends on which kinds of requests come
together: where long prompts have short answers and short ones long, a single mean mistakes either for the other after
a shift.
"""

from collections import deque
from typing import Final

_LATEST: Final = 64
"""Answers of a kind that are remembered."""
_FEW: Final = 5
"""Answers of a kind before what they say is believed."""


class AnswersByPrompt:
    """The latest by the octave of the prompt's tokens, and that of `max_tokens`."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], deque[float]] = {}
        self._turns: dict[tuple[int, int], int] = {}

    def observe(self, prompt_tokens: int, max_tokens: int, tokens: float) -> None:
        """A sequence ended after so many output tokens, by itself or at its bound."""
        kind = prompt_tokens.bit_length(), max_tokens.bit_length()
        self._latest.setdefault(kind, deque(maxlen=_LATEST)).append(tokens)

    def drawn(self, prompt_tokens: int, max_tokens: int, otherwise: float) -> float:
        """Output tokens to expect of one sequence, at least one: those of one of the latest answers of its kind, each
        in turn, because a split depends on the long ones; `otherwise` while too few of its kind have ended."""
        kind = prompt_tokens.bit_length(), max_tokens.bit_length()
        latest = self._latest.get(kind, ())
        if len(latest) < _FEW:
            return max(1.0, otherwise)
        turn = self._turns[kind] = self._turns.get(kind, 0) + 1
        return max(1.0, latest[turn % len(latest)])
