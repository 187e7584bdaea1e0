"""The number of prompt tokens that a step may take while running sequences keep their inter-token target.

The learned step time (`StepTimeModel`) says what the running sequences leave of the target. That remainder goes to
prompts, one after the other, each at its own position. When no sequence decodes, `max_batched_tokens` alone bounds
the chunk.
"""

from dataclasses import replace
from math import inf

from tandem.core.messages import StepFit
from tandem.engine.scheduler.step_model import PromptCost, StepLoad, StepTimeModel
from tandem.engine.scheduler.step_rules import Allowance, Budget, open_allowance
from tandem.engine.settings import SchedulerSettings

__all__ = ["Allowance", "Budget", "StepBudget", "StepLoad", "StepTimeModel"]


class StepBudget:
    """Owns the model; opens one `Allowance` per step."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = self._bounds = settings
        # Before anything is measured: a chunk of 512 tokens is taken to fill the target.
        self._model = StepTimeModel(settings.itl_target_s / 512)

    def set_itl_target(self, itl_target_s: float | None) -> None:
        """Set how long steps may take from now on, in seconds. None, and any value that is not positive and finite,
        restores the value from the settings."""
        self._bounds = self._settings
        if itl_target_s is not None and 0.0 < itl_target_s < inf:
            self._bounds = replace(self._settings, itl_target_s=itl_target_s)

    def observe(self, load: StepLoad, seconds: float) -> None:
        self._model.observe(load, seconds)

    @property
    def prompt_cost(self) -> PromptCost | None:
        """The present cost of prompts; None before anything was measured."""
        return self._model.prompt_cost() if self._model.observed else None

    @property
    def longest_s(self) -> float:
        """Seconds that a step full of one prompt's tokens is expected to take; zero before anything was measured."""
        tokens = self._settings.max_batched_tokens
        load = StepLoad(0, tokens, tokens * tokens / 2, 1)
        return self._model.predict(load) if self._model.observed else 0.0

    def predicted_s(self, load: StepLoad) -> float:
        """Seconds that a step with this load is expected to take."""
        return self._model.predict(load)

    @property
    def fit(self) -> StepFit | None:
        """The fitted step times, for routers; None before the first few steps are over."""
        return self._model.fit()

    def open(self, running: StepLoad) -> Allowance:
        """The room beside the running sequences, whose load this is."""
        model, rows = self._model, running.decode_rows
        if rows == 0:
            return open_allowance(self._bounds, 0, 0.0, 1.0, model.prompt_cost())
        return open_allowance(self._bounds, rows, model.predict(running), model.margin, model.prompt_cost())
