"""Learns how long a decode step takes: pace · (base + s · sequences + k · attended positions).

The shape is one for all workers, which run the same model; the pace is each worker's own. Workers report a mean over
steps, some of which computed pieces of prompts as well. Those do not count here: what a prompt takes from running
sequences is a cost of that prompt. So a worker that has prompts says nothing, and a mean above its prediction, which
may still have such steps in it, counts for less than one below. Nothing is inferred of workers that report how long
their steps take: their reports hold. A worker that reports nothing is judged beside those of its kind.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from router.placement.learning.fit import Fit
from router.placement.learning.lazy import LazyDict
from router.placement.learning.pace import Faded, Judged, Paces
from tandem.core.messages import Load

_WINDOW: Final = 100.0
"""Reports that say a worker's pace,"""
_DOUBT: Final = 20.0
"""and as many with which half of what they say is believed."""
_KEEP: Final = 0.999
"""Every worker reports many times a second; batches vary over seconds."""
_PULLS: Final = (0.001, 0.02, 0.02)
_OUTLIER: Final = 1.25
_ABOVE: Final = 0.2
"""Weight of a step that took longer than predicted."""
_WARM: Final = 16
"""Observations after which predictions are good enough to recognize outliers by them."""


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
        self._paces = Paces(_DOUBT)
        self._faded: dict[str, Faded] = {}
        self._version = 0
        self._told: dict[str, StepTerms] = {}
        """Terms of the workers that report their steps, or whose kind does."""
        self._general: dict[str, StepTerms] = {}
        """The terms common to most of the workers that report, by model."""
        self._models: dict[str, str] = {}
        """The model that each worker in `_told` computes."""
        self._guessed: dict[str, Judged[StepTerms]] = {}
        """Judgements of workers that report nothing, but are of a kind that does."""
        self._terms = LazyDict[StepTerms](self._worked_out)
        self._solved = self._fit.coefficients

    def general(self, model: str = "") -> StepTerms:
        """The terms of a worker of this model at the median pace."""
        return self._general.get(model) or StepTerms(*self._fit.coefficients)

    def usual(self, worker_id: str) -> StepTerms:
        """The terms of a worker of the same model at the median pace."""
        return self.general(self._models.get(worker_id, ""))

    def terms(self, worker_id: str) -> StepTerms:
        return self.all_terms()[worker_id]

    def all_terms(self) -> Mapping[str, StepTerms]:
        """The terms of any worker, by its id, valid until something is learned."""
        if self._solved is not self._fit.coefficients or self._version != self._paces.version:
            self._solved, self._version = self._fit.coefficients, self._paces.version
            self._terms.clear()
        return self._terms

    def _worked_out(self, worker_id: str) -> StepTerms:
        told = self._told.get(worker_id)
        if told is not None:
            return told
        pace = self._paces.beside(worker_id)
        return StepTerms(*(pace * term for term in self._solved))

    def tell(
        self, worker_id: str, terms: StepTerms, model: str, general: StepTerms, *, guessed: bool = False
    ) -> None:
        """Record what a worker's steps cost, and the terms common to most of the reporting workers of its model.
        `guessed`: the worker reports nothing itself, but others of its kind do."""
        self._general[model], self._models[worker_id] = general, model
        if guessed:
            guess = self._guessed.setdefault(worker_id, Judged(terms, _WINDOW, _DOUBT))
            guess.told = terms
            self._told[worker_id] = _scaled(terms, guess.pace)
        else:
            self._guessed.pop(worker_id, None)
            self._told[worker_id] = terms
        self._terms.pop(worker_id, None)

    def observe(self, worker_id: str, load: Load, attended_tokens: int) -> None:
        """A worker's mean step. Prompts that are being computed beside, or have just been, make it say nothing."""
        guess = self._guessed.get(worker_id)
        if (
            (guess is None and worker_id in self._told)
            or load.step_s <= 0.0
            or load.running <= 0
            or load.queued_prompt_tokens > 0
            or load.waiting > 0
        ):
            return
        if guess is not None:
            told_ms = guess.told.ms(load.running, attended_tokens)
            guess.observe(load.step_s * 1e3, told_ms, _OUTLIER)
            self._told[worker_id] = _scaled(guess.told, guess.pace)
            self._terms.pop(worker_id, None)
            return
        ms = load.step_s * 1e3
        pace = self._paces.beside(worker_id)
        shape_ms = StepTerms(*self._fit.coefficients).ms(load.running, attended_tokens)
        expected = pace * shape_ms
        self._observed += 1
        warm = self._observed > _WARM and expected > 0.0
        above = warm and ms > expected
        ms = min(ms, _OUTLIER * expected) if above else ms
        self._fit.observe((1.0, load.running, attended_tokens), ms / pace, _ABOVE if above else 1.0)
        if warm:
            faded = self._faded.setdefault(worker_id, Faded())
            faded.add(ms, shape_ms, _WINDOW)
            self._paces.tell(worker_id, faded.measured / faded.expected, faded.work)
            self._terms.pop(worker_id, None)

    def forget(self, worker_id: str) -> None:
        self._paces.forget(worker_id)
        for known in (self._faded, self._terms, self._told, self._guessed):
            known.pop(worker_id, None)
        model = self._models.pop(worker_id, None)
        if model is not None and model not in self._models.values():
            del self._general[model]


def _scaled(terms: StepTerms, pace: float) -> StepTerms:
    return StepTerms(pace * terms.base, pace * terms.sequence, pace * terms.position)
