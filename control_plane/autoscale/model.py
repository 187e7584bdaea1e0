"""Inputs and results of the scaling decision. Plain values: no cluster, no clock.

Times are wall-clock seconds (schedules are in UTC), loads are of one service over all routers and workers. A
*worker's worth* is what one worker of a pool carries within the SLO.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

COLD_START_S: Final = 180.0
"""Seconds that a cold start is assumed to last before one has been measured."""


@dataclass(frozen=True)
class PoolLoad:
    """The load of one pool now. `wanted` is the number of replicas that its EnginePool asks for."""

    wanted: int = 0
    ready: int = 0
    starting_s: tuple[float, ...] = ()
    """For each pod that is not ready yet, seconds since its creation."""
    kv_used: float = 0.0
    """Shares of KV memory in use, summed over the workers."""

    @property
    def on_the_way(self) -> tuple[float, ...]:
        """Ages of all workers that are to come; those that have no pod yet have 0."""
        unmade = max(0, self.wanted - self.ready - len(self.starting_s))
        return self.starting_s + (0.0,) * unmade


@dataclass(frozen=True)
class ServiceLoad:
    """One service now. The three totals only grow."""

    pools: Mapping[str, PoolLoad] = field(default_factory=dict)
    queued_requests: int = 0
    """Arrived, and not placed on a worker yet."""
    queued_prompt_tokens: int = 0
    prefilling_prompt_tokens: int = 0
    """Prompt tokens that placed requests still have to compute before their first token."""
    sequences: int = 0
    """Placed and not ended."""
    prefilling: int = 0
    """The number of `sequences` that have no first token yet."""
    arrived_prompt_tokens: int = 0
    """Total."""
    arrived_requests: int = 0
    """Total."""
    output_tokens: int = 0
    """Total, of requests that have ended."""
    finished_requests: int = 0
    """Total."""
    complete: bool = True
    """Whether every router has reported; otherwise what is missing may be anything."""

    @property
    def busy(self) -> bool:
        return self.queued_requests > 0 or self.queued_prompt_tokens > 0 or self.sequences > 0

    @property
    def outstanding_prompt_tokens(self) -> int:
        return self.queued_prompt_tokens + self.prefilling_prompt_tokens

    @property
    def decoding(self) -> int:
        return max(0, self.sequences - self.prefilling)

    @property
    def coming(self) -> int:
        """Sequences that decode workers are going to get."""
        return self.queued_requests + min(self.prefilling, self.sequences)


@dataclass(frozen=True)
class DecodeFit:
    """A decode step of `b` sequences takes `base_s + sequence_s * b` seconds; measured up to `seen` sequences."""

    base_s: float
    sequence_s: float
    seen: float

    def step_s(self, sequences: float) -> float:
        return self.base_s + self.sequence_s * sequences

    def sequences_within(self, tpot_s: float) -> float:
        """The number of sequences that one worker decodes within `tpot_s` per token, at least 1. Nothing beyond about
        four times what was measured is believed."""
        believed = 4 * self.seen + 16
        if self.sequence_s <= 0:
            return believed
        return min(believed, max(1.0, (tpot_s - self.base_s) / self.sequence_s))


@dataclass(frozen=True)
class PoolSpeed:
    """Measured speed of one worker of a pool, from warm workers only; None for what has not been measured."""

    prefill_token_s: float | None = None
    """Seconds per prompt token,"""
    prefill_position_s: float = 0.0
    """and per token and position it attends to."""
    decode: DecodeFit | None = None
    cold_start_s: float = COLD_START_S
    """Seconds from the creation of a pod until it is ready."""

    def prompt_s(self, tokens: float) -> float | None:
        """Seconds that a prompt takes one worker."""
        if self.prefill_token_s is None:
            return None
        return tokens * (self.prefill_token_s + self.prefill_position_s * tokens / 2)


@dataclass(frozen=True)
class PoolScaling:
    """One pool's answer: `replicas` are to be; `load` is what it carries, in workers' worth, before spares, floors
    and limits."""

    replicas: int
    load: float
    floor: int
    reasons: tuple[str, ...]

    def metric(self, wanted: int) -> float:
        """The metric for an autoscaler whose target is one per replica: rounded up it is `replicas`.

        Autoscalers ignore deviations of up to a tenth. To keep a decision from being lost there, the metric is the
        greatest such value when more replicas are wanted and the least when fewer are.
        """
        if self.replicas == 0:
            return 0.0
        least = self.replicas - 1 + _LEAST
        if self.replicas != wanted:
            return float(self.replicas) if self.replicas > wanted else least
        return min(max(self.load, least), float(self.replicas))


_LEAST: Final = 0.01
