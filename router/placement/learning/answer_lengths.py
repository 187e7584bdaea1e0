"""Learns how long answers become, by how long they may become."""

from math import log2
from typing import Final

_PER_OCTAVE: Final = 2
_BINS: Final = 40
"""Up to a million tokens."""
_FORGET: Final = 1 / 20
_WEIGHT_MAX: Final = 1e12
_ROUNDING: Final = 1.0 + 1e-9
_FEW: Final = 1e-3
"""Share of all answers that is too small to say anything of those that lasted longer."""


class Lengths:
    """A histogram of output tokens per sequence over logarithmic bins, which forgets: each answer counts 5 % less
    than the next. One owner changes it in place."""

    __slots__ = ("_later", "_sums", "_weight", "_weights", "mean", "residual")

    def __init__(self) -> None:
        self._weights = [0.0] * _BINS
        self._sums = [0.0] * _BINS
        self._weight = 1.0
        """Weight of the next answer: later answers weigh more, instead of earlier ones less."""
        self._later: list[tuple[float, float]] | None = None
        """Weight and tokens of the answers beyond each bin, while nothing has changed."""
        self.mean = 0.0
        self.residual = 0.0
        """Tokens that an answer under way has left, on average over all that are under way at some moment."""

    def observe(self, tokens: float) -> None:
        """An answer ended."""
        index = _bin(tokens)
        self._weights[index] += self._weight
        self._sums[index] += self._weight * tokens
        self._weight /= 1.0 - _FORGET
        if self._weight > _WEIGHT_MAX:
            self._weights = [each / self._weight for each in self._weights]
            self._sums = [each / self._weight for each in self._sums]
            self._weight = 1.0
        self._later = None

    def left(self, age: float) -> float:
        """Tokens that an answer of `age` tokens is expected to have left: what those that became longer had. Of an
        answer that is longer than all that are remembered, little."""
        later = self._later or self._look()
        index = _bin(age)
        weight, tokens = later[index]
        own = self._weights[index]
        if own and self._sums[index] > own * age * _ROUNDING:
            weight, tokens = weight + own, tokens + self._sums[index]
        if weight <= _FEW * later[-1][0]:
            return 0.0
        return tokens / weight - age

    def look(self) -> None:
        """Have `mean` and `residual` as of now."""
        if self._later is None:
            self._look()

    def _look(self) -> list[tuple[float, float]]:
        later, weight, tokens, squares = [(0.0, 0.0)] * (_BINS + 1), 0.0, 0.0, 0.0
        for index in range(_BINS - 1, -1, -1):
            later[index] = weight, tokens
            if own := self._weights[index]:
                weight, tokens = weight + own, tokens + self._sums[index]
                squares += self._sums[index] * self._sums[index] / own
        later[_BINS] = weight, tokens
        self.mean = tokens / weight if weight else 0.0
        self.residual = squares / (2.0 * tokens) if tokens else 0.0
        self._later = later
        return later


class AnswerLengths:
    """Lengths of answers for bounds of like size: each power of two on its own. Only answers that ended count: a
    cancelled one would have become longer, by an unknown amount."""

    def __init__(self) -> None:
        self._kinds: dict[int, Lengths] = {}

    def observe(self, max_tokens: int, tokens: float) -> None:
        """An answer ended by itself or at its bound."""
        kind = max_tokens.bit_length()
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = Lengths()
        known.observe(tokens)

    def of(self, max_tokens: int) -> Lengths | None:
        """The lengths of answers with such a bound; None while none has ended."""
        known = self._kinds.get(max_tokens.bit_length())
        if known is not None:
            known.look()
        return known

    def expected(self, max_tokens: int, otherwise: int) -> float:
        """Output tokens that an answer is expected to have, at most its bound; `otherwise` is expected where no
        answer of this kind has ended yet."""
        known = self.of(max_tokens)
        return min(max_tokens, max(1.0, known.mean if known is not None else otherwise))

    def expected_left(self, max_tokens: int, age: float, otherwise: int) -> float:
        """Tokens that an answer of `age` tokens is expected to have left, at most to the bound."""
        known = self.of(max_tokens)
        left = known.left(age) if known is not None else otherwise - age
        return min(max(0.0, max_tokens - age), max(0.0, left))


def _bin(tokens: float) -> int:
    return min(_BINS - 1, int(_PER_OCTAVE * log2(tokens))) if tokens > 1.0 else 0
