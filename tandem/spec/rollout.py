"""How a new revision replaces the old one, how requests find workers, and what the service is to hold."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from tandem.core import slo
from tandem.spec.text import Name, Share, Strict

_DURATION_MAX_MS = 3_600_000
TOO_DIFFERENT: Final = 3
"""Exit status of a comparison (`tandem verify`) that was made and found its sides too different. Whatever else goes
wrong has another."""


class Gate(Strict, frozen=True):
    """What a new revision must show against the old one before it gets traffic."""

    agreement: Annotated[float, Meta(ge=0, le=1)] = 0.99
    """Share of equal greedy tokens."""
    kl: Annotated[float, Meta(ge=0, le=100)] = 0.05
    """At most this mean divergence of the distributions, in nats."""
    prompts_config_map: Name | None = None
    """ConfigMap whose key `prompts.jsonl` has the prompts; by default a built-in set."""


class Rollout(Strict, frozen=True):
    """How a new revision replaces the old one."""

    weight: Annotated[int, Meta(ge=0, le=100)] = 100
    """Percentage of new traffic and of replicas that a new revision may take; 100 completes the rollout."""
    max_surge: Share = 1
    """Replicas above a pool's number during a rollout: a number or a percentage."""
    max_unavailable: Share = 0
    """Replicas below a pool's number during a rollout: a number or a percentage."""
    in_place: Literal["WhenNoRoom", "Never"] = "WhenNoRoom"
    """Where no node has room for new workers beside the old ones, old ones give way first, one by one. A pool's only
    worker does so only where `maxUnavailable` covers it."""
    paused: bool = False
    """Nothing is changed any further."""
    auto_rollback: bool = True
    """Go back when the gate, the deadline, errors or the SLO say so."""
    progress_deadline_seconds: Annotated[int, Meta(ge=60, le=604_800)] = 1800
    """Without progress for so long, a rollout has failed."""
    revision_history_limit: Annotated[int, Meta(ge=1, le=20)] = 5
    """Old revisions that are remembered."""
    gate: Gate | None = None
    """Without one, a new revision gets traffic once every pool of it is ready."""


class Routing(Strict, frozen=True):
    """How requests find workers."""

    policy: Literal["prefix_aware", "least_loaded", "round_robin", "power_of_two", "consistent_hash"] = "prefix_aware"
    """By what a worker is chosen."""
    max_queue_seconds: Annotated[int, Meta(ge=1, le=3600)] = 60
    """How long a request waits for a worker before it is refused with 503."""


class Slo(Strict, frozen=True):
    """What the service is meant to hold."""

    ttft_ms: Annotated[int, Meta(ge=1, le=_DURATION_MAX_MS)] | None = None
    """Time to first token, in milliseconds."""
    tpot_ms: Annotated[int, Meta(ge=1, le=_DURATION_MAX_MS)] | None = None
    """Mean time per output token after the first, in milliseconds. It bounds the steps of workers, too."""
    itl_ms: Annotated[int, Meta(ge=1, le=_DURATION_MAX_MS)] | None = None
    """99th percentile of a request's gaps between tokens, in milliseconds. It bounds the steps of workers, too."""
    percentile: Annotated[int, Meta(ge=50, le=99)] = 99
    """Of requests, for all times."""
    error_rate: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """At most this share of requests fails."""

    @property
    def bounds(self) -> slo.Slo:
        """The times in seconds, as everybody who judges requests by them takes them."""
        ttft_s, tpot_s, itl_s = (
            None if bound is None else bound / 1e3 for bound in (self.ttft_ms, self.tpot_ms, self.itl_ms)
        )
        return slo.Slo(ttft_s, tpot_s, itl_s)
