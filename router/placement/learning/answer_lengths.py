"""How long answers become, by how long they may become."""

from typing import Final

_SHARE: Final = 0.05


class AnswerLengths:
    """Mean output tokens per sequence, for bounds of like size: each power of two on its own."""

    def __init__(self) -> None:
        self._means: dict[int, float] = {}
        self._squares: dict[int, float] = {}

    def observe(self, max_tokens: int, tokens: float) -> None:
        """An answer ended by itself or at its bound."""
        kind = max_tokens.bit_length()
        mean = self._means.get(kind, tokens)
        self._means[kind] = mean + _SHARE * (tokens - mean)
        square = self._squares.get(kind, 2.0 * tokens * tokens)
        self._squares[kind] = square + _SHARE * (tokens * tokens - square)

    def expected(self, max_tokens: int, otherwise: int) -> float:
        """At most the bound; `otherwise` where no answer of this kind has ended yet."""
        return min(max_tokens, max(1.0, self._means.get(max_tokens.bit_length(), otherwise)))

    def regularity(self, max_tokens: int) -> float:
        """1 when all answers of this kind are equally long; 0 when their lengths vary by their mean or more, as they
        do when an answer's end does not depend on how long it has lasted. 0 until answers have told otherwise."""
        mean = self._means.get(max_tokens.bit_length(), 0.0)
        if mean <= 0.0:
            return 0.0
        return min(1.0, max(0.0, 2.0 - self._squares[max_tokens.bit_length()] / (mean * mean)))
