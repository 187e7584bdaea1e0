"""How long answers become, by how long the prompt is. Pure; one owner changes it in place.

Placement expects one length of all answers with a like bound. A split hangs on what kinds of requests come together:
where long prompts have short answers and short ones long, a single mean takes either for the other after a shift.
"""

from typing import Final

_WEIGHT: Final = 0.1
"""Of an answer in what is expected of the next."""
_FEW: Final = 5
"""Answers of a kind before what they say is believed."""


class AnswersByPrompt:
    """Means by the octave of the prompt's tokens, and that of `max_tokens`."""

    def __init__(self) -> None:
        self._means: dict[tuple[int, int], tuple[int, float]] = {}

    def observe(self, prompt_tokens: int, max_tokens: int, tokens: float) -> None:
        """A sequence ended after so many output tokens, by itself or at its bound."""
        kind = prompt_tokens.bit_length(), max_tokens.bit_length()
        count, mean = self._means.get(kind, (0, tokens))
        # The first ones weigh alike.
        weight = max(_WEIGHT, 1.0 / (count + 1))
        self._means[kind] = count + 1, mean + weight * (tokens - mean)

    def expected(self, prompt_tokens: int, max_tokens: int, otherwise: float) -> float:
        """Of one sequence, one token at least; `otherwise` while too few of its kind have ended."""
        count, mean = self._means.get((prompt_tokens.bit_length(), max_tokens.bit_length()), (0, 0.0))
        return max(1.0, mean if count >= _FEW else otherwise)
