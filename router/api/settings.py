"""Settings of the public interfaces."""

from dataclasses import dataclass, field

from router.api.idempotency import IdempotencySettings
from router.api.prefixes.pinned import PrefixSettings
from router.http_server.response_writer import ResponseWriterLimits
from tandem.core.slo import TPOT_S, TTFT_S


@dataclass(frozen=True)
class SloSettings:
    """Where a request's service sets no bound of its own: time to first token, and mean time per token after it."""

    ttft_s: float = TTFT_S
    tpot_s: float = TPOT_S


@dataclass(frozen=True)
class ApiSettings:
    """Bounds on what a client may ask for and hold."""

    body_bytes_max: int = 8 << 20
    body_wait_s: float = 30.0
    """How long the next piece of a request body may take to arrive."""
    body_total_s: float = 120.0
    """How long a whole request body may take to arrive, however steadily it comes."""
    linger_bytes_max: int = 64 << 20
    """How much of a refused body is still read, so that the client gets to see the refusal."""
    linger_s: float = 2.0
    settle_s: float = 5.0
    """How long after its deadline a request is ended here, should nothing else have ended it."""
    connections_max: int = 8192
    """Connections of HTTP clients open at once; fewer when the process may not have as many file descriptors. Probes
    and the control plane have their own (`router.http_server.connections_max`)."""
    grpc_connections_max: int = 1024
    """Connections of gRPC clients open at once, each with any number of calls up to `connections_max` in all; fewer
    when the process may not have as many file descriptors."""
    bodies_bytes_max: int = 256 << 20
    """Bytes of request bodies in hand at once, from all clients; beyond it requests are refused."""
    sequences_max: int = 128
    """Prompts times n of one request."""
    idempotency: IdempotencySettings = field(default_factory=IdempotencySettings)
    prefixes: PrefixSettings = field(default_factory=PrefixSettings)
    conversations_bytes_max: int = 128 << 20
    """What the text and tokens of conversations that may go on may take in memory, per model; 0 keeps nothing."""
    prompt_texts_bytes_max: int = 16 << 20
    """Token ids of recent prompts, kept to say where in its text a prompt differs from earlier ones."""
    resumable_tokens_max: int = 131_072
    """Output tokens that a resumable request may ask for, all sequences together: they are all kept."""
    cors_origins: tuple[str, ...] = ()
    """Web pages of these origins (`https://chat.example`) may ask from browsers; `*` lets all of them."""
    outlet: ResponseWriterLimits = field(default_factory=ResponseWriterLimits)
    slo: SloSettings = field(default_factory=SloSettings)
