"""Exponentially weighted least squares of a few non-negative coefficients. Pure.

Each observation counts relative to its own size, so short and long ones teach alike. Every coefficient is pulled to
its prior by a share of its own evidence: where the inputs have not varied the error goes to the coefficients that are
held loosest, and where they have the pull is lost in the evidence.
"""

from collections.abc import Sequence
from typing import Final

_SOLVE_EVERY: Final = 4
"""Observations between two solutions, once there have been that many: a solution costs a few microseconds."""


class Fit:
    """value ≈ coefficients · features. `coefficients` are ready to read at any time, and none is negative."""

    def __init__(self, priors: Sequence[float], pulls: Sequence[float], keep: float) -> None:
        """`pulls` are shares of a coefficient's evidence with which its prior counts; `keep` in (0, 1) is what an
        observation leaves of the weight of those before it."""
        self._priors = tuple(priors)
        self._pulls = tuple(pulls)
        self._keep = keep
        size = len(self._priors)
        self._squares = [[0.0] * size for _ in range(size)]
        self._products = [0.0] * size
        self._observed = 0
        self.coefficients = self._priors

    def observe(self, features: Sequence[float], value: float, weight: float = 1.0) -> None:
        """Learn from one measurement; a value that is not positive is ignored."""
        if value <= 0.0:
            return
        self.add(features, value, weight)
        self._observed += 1
        if self._observed < _SOLVE_EVERY or self._observed % _SOLVE_EVERY == 0:
            self.settle()

    def add(self, features: Sequence[float], value: float, weight: float = 1.0) -> None:
        """Take a measurement in, whose value is positive, without learning from it until `settle`."""
        weight /= value * value
        for row, x in enumerate(features):
            squares = self._squares[row]
            for column, y in enumerate(features):
                squares[column] = self._keep * squares[column] + weight * x * y
            self._products[row] = self._keep * self._products[row] + weight * x * value

    def settle(self) -> None:
        """Solve: drop the most negative coefficient and solve again until none is negative."""
        used = [index for index in range(len(self._priors)) if self._squares[index][index] > 0.0]
        while used:
            found = self._solution(used)
            worst = min(range(len(used)), key=lambda at: found[at] * self._squares[used[at]][used[at]] ** 0.5)
            if found[worst] >= 0.0:
                self.coefficients = self._spread(used, found)
                return
            del used[worst]

    def _spread(self, used: Sequence[int], found: Sequence[float]) -> tuple[float, ...]:
        """Coefficients whose input has never been seen keep their prior, others that are not used are zero."""
        values = dict(zip(used, found, strict=True))
        return tuple(
            values.get(index, 0.0 if self._squares[index][index] > 0.0 else prior)
            for index, prior in enumerate(self._priors)
        )

    def _solution(self, used: Sequence[int]) -> list[float]:
        """The pulled normal equations of the used coefficients by Gaussian elimination with scaled rows."""
        rows = []
        for row in used:
            own = self._squares[row][row]
            pull = self._pulls[row] * own
            scale = own**-0.5
            cells = [scale * (self._squares[row][column] + (pull if row == column else 0.0)) for column in used]
            rows.append([*cells, scale * (self._products[row] + pull * self._priors[row])])
        return _eliminate(rows)


def _eliminate(rows: list[list[float]]) -> list[float]:
    """Solve `[matrix | right side]`, positive definite, in place."""
    size = len(rows)
    for pivot in range(size):
        for below in range(pivot + 1, size):
            factor = rows[below][pivot] / rows[pivot][pivot]
            for column in range(pivot, size + 1):
                rows[below][column] -= factor * rows[pivot][column]
    solution = [0.0] * size
    for row in range(size - 1, -1, -1):
        known = sum(rows[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (rows[row][size] - known) / rows[row][row]
    return solution
