"""A router's view of the splits of its services, for people and tools: `GET /v1/explain/fleet`."""

import msgspec


class SplitOptionListing(msgspec.Struct, frozen=True):
    """The expected outcome of one way of splitting the workers."""

    prefills: int
    """Workers that take prompts for others; 0: all are unified."""
    itl_ms: float | None
    """Milliseconds that steps beside running sequences may take; None for what the service's objective says."""
    attainment: float
    """Share of the requests that hold the objective."""
    tokens_per_s: float
    """Output tokens per second."""
    carried: float = 0.0
    """Share of the requests that hold it in the mean of loads around the one that the best way just carries."""


class FleetOutlook(msgspec.Struct, frozen=True):
    """The split among the `auto` workers of one service."""

    service: str
    """`namespace/name`; where services are not known it is the model."""
    model: str
    prefills: tuple[str, ...]
    """The workers that take prompts for others,"""
    workers: tuple[str, ...]
    """of these."""
    itl_ms: float | None
    """Milliseconds that steps beside running sequences may take; None where nothing bounds them."""
    why: str
    since_s: float
    """Seconds for which this split has been in force."""
    decides: str
    """The router that decides; empty while none does."""
    decides_here: bool
    """Whether that is the one that was asked."""
    moves: int
    """How often a worker has changed what it takes since the deciding router began to decide."""
    forecast_error: float | None
    """Mean difference of the attainment that was forecast from the one that was observed; None while unknown."""
    outlooks: tuple[SplitOptionListing, ...]
    """The expected outcomes of the ways that were compared last, the best first."""
    objective: dict[str, float]
    """The bounds that requests must meet, in seconds."""
