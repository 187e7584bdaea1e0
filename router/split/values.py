"""Inputs and outputs of the planner of a split. Values only."""

from typing import Final, NamedTuple

_PROMPTS_FIRST: Final = 4.0
"""Steps of a worker that takes prompts for others may take so many times as long as those of others."""


class ObservedRequest(NamedTuple):
    """One request as its placement saw it: what the fleet has to do for it. Times in seconds."""

    arrival_s: float
    prompt_tokens: int
    uncached_tokens: int
    """Prompt tokens that the worker that runs the prefill has to compute."""
    answer_tokens: float
    """Expected of all its sequences together while none of its kind has ended."""
    sequences: int = 1
    max_tokens: int = 0
    """Maximum number of output tokens of one sequence."""
    marks: tuple[bytes, ...] = ()
    """Marks of the prompt (`router.split.reuse`), kept until they are evaluated."""
    distances: tuple[float, ...] = ()
    """and the reuse distances that this gives, in tokens."""
    prefills: int = 0
    """Number of workers that took prompts for others when the request was placed."""


class WorkerStatus(NamedTuple):
    """One worker of role `auto` as it is now."""

    worker_id: str
    prefill: bool
    """Whether it takes prompts for others."""
    running: int
    """Sequences that decode on it."""
    attended_tokens: int
    """Positions that a step of theirs attends to."""
    queued_prompt_tokens: int
    blocks: int
    blocks_free: int
    block_tokens: int
    itl_target: bool
    """Whether the time that the worker's steps may take can be set while it runs
    (`tandem.core.messages.ITL_TARGET`)."""
    sequences_max: int = 256
    """Maximum number of sequences that run on the worker at a time."""
    tier_blocks: int = 0
    """Blocks that the worker's tiers take below its pool."""
    export_blocks: int = 0
    """Blocks of the worker's pool that prompts computed for others may take until they have been fetched; 0 for no
    bound."""
    barred: str = ""
    """Why it can neither take prompts for others nor leave its own to others: its KV cannot be exchanged, it spans
    several nodes. Empty where it can."""


class WorkTimes(NamedTuple):
    """The times that work takes on a worker at the median pace, in seconds."""

    step_s: float
    """Seconds that every step takes, whatever it computes."""
    sequence_s: float
    """and per decoding sequence,"""
    position_s: float
    """and per position that these attend to."""
    prompt_token_s: float
    """Per prompt token,"""
    prompt_position_s: float
    """and per position that it attends to."""
    transfer_latency_s: float
    """Fixed seconds per hand-off."""
    transfer_token_s: float
    """and per token of its prompt."""
    max_batched_tokens: int
    """Prompt tokens that one step computes at most."""


class SplitOption(NamedTuple):
    """A split and a bound on steps, as a number of workers: who they are is chosen when it is taken."""

    prefills: int
    """Workers that take prompts for others; 0: all are unified."""
    itl_s: float | None
    """Seconds that a step may take beside running sequences; None for what each engine was started with."""


class Outlook(NamedTuple):
    """The result that is expected of a `SplitOption`."""

    way: SplitOption
    attainment: float
    """Share of the requests that hold the SLO."""
    tokens_per_s: float
    """Output tokens per second."""
    carried: float = 0.0
    """Share of the requests that hold the SLO in the mean of loads around the one that the best way just carries."""


class Split(NamedTuple):
    """The workers that take prompts for others from now on, and the reason."""

    prefills: frozenset[str]
    itl_s: float | None
    reason: str

    def steps_s(self, worker_id: str) -> float | None:
        """Seconds that a step of this worker may take beside running sequences; None for what its engine was started
        with."""
        return steps_s(self.itl_s, worker_id in self.prefills)


def steps_s(itl_s: float | None, takes_prompts: bool) -> float | None:
    """Seconds that a step may take beside running sequences where the workers that answer are held to `itl_s`. A
    worker that takes prompts for others has few sequences, which were there before it began to: prompts of many do
    not wait for these."""
    return None if itl_s is None else itl_s * (_PROMPTS_FIRST if takes_prompts else 1.0)
