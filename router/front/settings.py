"""Settings of the public interfaces."""

from dataclasses import dataclass, field

from router.front.outlet import OutletLimits


@dataclass(frozen=True)
class SloSettings:
    """What a request must meet to count as goodput: time to first token, and mean time per token after it."""

    ttft_s: float = 5.0
    tpot_s: float = 0.2


@dataclass(frozen=True)
class FrontSettings:
    """Bounds on what a client may ask for and hold."""

    body_bytes_max: int = 8 << 20
    body_wait_s: float = 30.0
    """How long the next piece of a request body may take to arrive."""
    linger_bytes_max: int = 64 << 20
    """How much of a refused body is still read, so that the client gets to see the refusal."""
    linger_s: float = 2.0
    settle_s: float = 5.0
    """How long after its deadline a request is ended here, should nothing else have ended it."""
    sequences_max: int = 128
    """Prompts times n of one request."""
    outlet: OutletLimits = field(default_factory=OutletLimits)
    slo: SloSettings = field(default_factory=SloSettings)
