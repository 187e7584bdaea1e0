"""How long steps of a worker take, alone or many at once."""

from dataclasses import dataclass
from math import ceil, sqrt

from tandem.engine.simulated.model import SimulatedModel


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step takes `base_s + sequence_s * B + read_s * C + token_s * P + context_s * A` seconds: B decoding sequences
    whose cached positions sum to C, P prompt tokens that attend to A positions in all. Of a position that several
    sequences share, the second reading and those after it count `reread` (a share): in the same step they find it in
    the GPU's own cache."""

    base_s: float
    sequence_s: float
    read_s: float
    token_s: float
    context_s: float
    reread: float = 1.0

    @classmethod
    def of(cls, model: SimulatedModel) -> "StepTime":
        """The coefficients of a simulated model."""
        return cls(model.base_s, model.sequence_s, model.read_s, model.token_s, model.context_s)

    def paced(self, pace: float) -> "StepTime":
        """Of a machine whose steps take `pace` times as long."""
        if pace == 1.0:
            return self
        return StepTime(
            self.base_s * pace,
            self.sequence_s * pace,
            self.read_s * pace,
            self.token_s * pace,
            self.context_s * pace,
            self.reread,
        )

    def mixed(self, sequences: int, context: float, tokens: int, attended: float) -> float:
        """Seconds of one step with prompt tokens in it."""
        decoding = self.base_s + self.sequence_s * sequences + self.read_s * context
        return decoding + self.token_s * tokens + self.context_s * attended

    def decode(self, sequences: int, context: float, steps: int) -> float:
        """Seconds of `steps` steps in a row, each of which adds a position to every sequence: the sum of an
        arithmetic series, which starts with `context` positions."""
        first = self.base_s + self.sequence_s * sequences + self.read_s * context
        return steps * (first + self.read_s * sequences * (steps - 1) / 2)

    def steps_until(self, sequences: int, context: float, seconds: float) -> int:
        """The least number of decode steps, at least 1, that takes `seconds` or longer: `decode` solved for it."""
        growth = self.read_s * sequences / 2
        linear = self.base_s + self.sequence_s * sequences + self.read_s * context - growth
        if growth > 0:
            root = (sqrt(linear * linear + 4 * growth * max(0.0, seconds)) - linear) / (2 * growth)
        else:
            root = seconds / linear
        steps = max(1, ceil(root))
        # The root is off by a rounding error at most: one step either way.
        if steps > 1 and self.decode(sequences, context, steps - 1) >= seconds:
            steps -= 1
        elif self.decode(sequences, context, steps) < seconds:
            steps += 1
        return steps

    def prompt(self, start: int, count: int) -> float:
        """Seconds that `count` prompt tokens after `start` known ones add to a step."""
        return self.token_s * count + self.context_s * attended(start, count)


def attended(start: int, count: int) -> float:
    """Positions that `count` prompt tokens after `start` known ones attend to."""
    return count * (start + count / 2)
