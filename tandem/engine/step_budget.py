"""How many prompt tokens a step may take so that running sequences keep their inter-token target.

What the learned step time (`StepTimeModel`) leaves of the target beside the running sequences is given to prompts,
one after the other, each at its own position. Nothing decodes: `max_batched_tokens` alone bounds the chunk.
"""

import msgspec

from tandem.engine.settings import SchedulerSettings
from tandem.engine.step_model import PromptCost, StepLoad, StepTimeModel

__all__ = ["Allowance", "Budget", "StepBudget", "StepLoad", "StepTimeModel"]


class Budget(msgspec.Struct, frozen=True, gc=False):
    """Prompt tokens that one prompt may take of the next step, and the sentence that explains them."""

    tokens: int
    reason: str


class Allowance(msgspec.Struct, gc=False):
    """What is left of one step for prompts. `seconds` None: nothing decodes, nobody waits for this step."""

    tokens: int
    floor: int
    seconds: float | None
    cost: PromptCost
    rows: int
    """Sequences that decode in the step."""
    target_s: float

    @property
    def beside(self) -> str:
        return f"beside {self.rows} decoding (ITL target {self.target_s * 1e3:g} ms)"

    @property
    def spent(self) -> bool:
        return self.tokens <= 0

    def offer(self, start: float) -> Budget:
        """How much the prompt that has computed `start` tokens may take now; 0 when its turn is another step's."""
        if self.seconds is None:
            return Budget(self.tokens, "prefill alone: max_batched_tokens")
        fits = int(self.cost.tokens_within(self.seconds, start))
        if fits >= self.tokens:
            return Budget(self.tokens, f"chunk bounded by max_batched_tokens {self.beside}")
        if fits < self.floor:
            return Budget(min(self.floor, self.tokens), f"chunk at its floor {self.beside}: the target is full")
        return Budget(fits, f"chunk held to the target {self.beside}")

    def take(self, start: int, count: int) -> None:
        """`count` tokens of a prompt go into the step."""
        self.tokens -= count
        self.floor = max(0, self.floor - count)
        if self.seconds is not None:
            self.seconds -= self.cost.seconds(start, count)


class StepBudget:
    """Owns the model; opens one `Allowance` per step."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        # Before anything is measured: a chunk of 512 tokens is taken to fill the target.
        self._model = StepTimeModel(settings.itl_target_s / 512)

    def observe(self, load: StepLoad, seconds: float) -> None:
        self._model.observe(load, seconds)

    @property
    def prompt_cost(self) -> PromptCost | None:
        """What prompts cost now; None before anything was measured."""
        return self._model.prompt_cost() if self._model.observed else None

    def open(self, running: StepLoad) -> Allowance:
        """The room beside the running sequences, whose load this is."""
        settings, model = self._settings, self._model
        rows = running.decode_rows
        tokens = settings.max_batched_tokens - rows
        target_s, cost = settings.itl_target_s, model.prompt_cost()
        if rows == 0:
            return Allowance(tokens, 0, None, cost, 0, target_s)
        seconds = target_s / model.margin - model.predict(running)
        return Allowance(max(1, tokens), settings.min_prefill_tokens, seconds, cost, rows, target_s)
