"""How long a decode step takes: pace · (base + s · sequences + k · attended positions).

The shape is one for all workers, which run the same model; the pace is each worker's own. What workers tell is a
mean over steps, of which some computed pieces of prompts as well. Those do not count here: what a prompt takes from
running sequences is a cost of that prompt. So a worker that has prompts says nothing, and a mean above its
prediction, which may still have such steps in it, counts for less than one below.
"""

from typing import Final, NamedTuple

from router.placement.learning.fit import Fit
from router.placement.learning.pace import Paces
from tandem.core.messages import Load

_SHARE: Final = 0.01
_KEEP: Final = 0.999
"""Every worker reports many times a second; batches vary over seconds."""
_PULLS: Final = (0.001, 0.02, 0.02)
_OUTLIER: Final = 1.25
_ABOVE: Final = 0.2
"""Weight of a step that took longer than predicted."""
_WARM: Final = 16
"""Observations after which predictions are good enough to tell outliers by them."""


class StepTerms(NamedTuple):
    """Milliseconds per step, per sequence, and per position that its sequences attend to."""

    base: float
    sequence: float
    position: float

    def ms(self, sequences: float, attended_tokens: float) -> float:
        return self.base + self.sequence * sequences + self.position * attended_tokens


class StepCosts:
    """Learns for all workers of a router."""

    def __init__(self, step_ms: float, sequence_ms: float, position_ms: float) -> None:
        self._fit = Fit((step_ms, sequence_ms, position_ms), _PULLS, _KEEP)
        self._observed = 0
        self._paces = Paces(_SHARE)
        self._terms: dict[str, StepTerms] = {}
        self._solved = self._fit.coefficients

    @property
    def general(self) -> StepTerms:
        """Those of a worker at the mean pace."""
        return StepTerms(*self._fit.coefficients)

    def terms(self, worker_id: str) -> StepTerms:
        if self._solved is not self._fit.coefficients:
            self._solved, self._terms = self._fit.coefficients, {}
        known = self._terms.get(worker_id)
        if known is None:
            pace = self._paces.telling(worker_id)
            known = self._terms[worker_id] = StepTerms(*(pace * term for term in self._solved))
        return known

    def observe(self, worker_id: str, load: Load, attended_tokens: int) -> None:
        """A worker's mean step. Prompts that are being computed beside, or have just been, make it say nothing."""
        if load.step_s <= 0.0 or load.running <= 0 or load.queued_prompt_tokens > 0 or load.waiting > 0:
            return
        ms = load.step_s * 1e3
        pace = self._paces.measured(worker_id)
        expected = pace * self.general.ms(load.running, attended_tokens)
        self._observed += 1
        warm = self._observed > _WARM and expected > 0.0
        above = warm and ms > expected
        ms = min(ms, _OUTLIER * expected) if above else ms
        self._fit.observe((1.0, load.running, attended_tokens), ms / pace, _ABOVE if above else 1.0)
        if warm:
            self._paces.observe(worker_id, ms / expected)
            self._terms.pop(worker_id, None)

    def forget(self, worker_id: str) -> None:
        self._paces.forget(worker_id)
        self._terms.pop(worker_id, None)
