"""The seam between the front door and dispatch: a validated request in, accepted tokens out.

The front door (`router.front`) builds a `Generation` and a `Sink`; `router.dispatch` owns everything
between. All calls happen on the router's event loop and never block.
"""

from typing import Protocol

import msgspec

from tandem.core.errors import TandemError
from tandem.core.messages import TokenLogprob
from tandem.core.request import Sampling, Stopping
from tandem.core.spans import TraceContext


class Generation(msgspec.Struct, frozen=True):
    """A request after validation, rendering and tokenizing.

    `prompt` is packed uint32. `seed` is always set (drawn by the router when the client gave none). `trace` is
    the context of the request's root span, whose id the front door has already drawn; `received` is
    `Clock.now()` when the request arrived, `received_wall` the same instant for span stamps.
    """

    request_id: str
    model: str
    tenant: str
    tenant_salt: str
    prompt: bytes
    n: int
    seed: int
    sampling: Sampling
    stopping: Stopping
    timeout_s: float
    received: float
    received_wall: float
    trace: TraceContext
    priority: int = 0
    resume: bytes | None = None
    """Of a resumable request, what the front door of another router needs to go on with its answer; else None."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) // 4


class Usage(msgspec.Struct, frozen=True):
    """Counts for the answer; `cached_tokens` are prompt tokens that no worker had to compute."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Sink(Protocol):
    """Receives what a generation yields, in order, exactly once. Exactly one of `done`, `failed` ends it."""

    def output(
        self,
        sequence: int,
        position: int,
        tokens: tuple[int, ...],
        text: str,
        logprobs: tuple[TokenLogprob, ...],
        finish: str | None,
        stop_reason: str | int | None,
    ) -> None:
        """The next accepted positions of one sequence; `finish` is set with its last."""
        ...

    def done(self, usage: Usage) -> None:
        """Every sequence has finished."""
        ...

    def failed(self, error: TandemError) -> None:
        """The generation ends here; what was output before stands."""
        ...


class Standing(msgspec.Struct, frozen=True):
    """Where a running request is. `prefill` and `decode` are the workers of its current attempt, None while it
    waits for one (`prefill` also when decode computes the prompt itself); `tokens` are those accepted so far."""

    stage: str
    """`queue`, `prefill`, `transfer`, `first-token` or `decode` (`router.dispatch.whereabouts` has their meaning)."""
    prefill: str | None
    decode: str | None
    tokens: int
    attempts: int


class Running(Protocol):
    """A started generation."""

    def standing(self) -> Standing:
        """Where it is now. Asked only before its end."""
        ...

    def cancel(self, reason: str) -> None:
        """Free everything everywhere; the sink hears nothing more."""
        ...


class ServedModel(msgspec.Struct, frozen=True):
    """A model with at least one live worker."""

    name: str
    context_tokens: int
    eos_token_ids: tuple[int, ...]


class Generator(Protocol):
    """What the front door needs of the rest of the router."""

    def start(self, generation: Generation, sink: Sink) -> Running:
        """Admit and dispatch. Raises `queue_full`, `draining`, `no_workers`, `over_quota`, `model_not_found`."""
        ...

    def models(self) -> tuple[ServedModel, ...]:
        """Models that can be asked for now."""
        ...

    def ready(self) -> str | None:
        """None when a request could be served now, otherwise why not, in one sentence."""
        ...


class Resumed(Protocol):
    """A resumable request that was found again. While nobody listens its lease runs."""

    @property
    def generation(self) -> Generation: ...

    def chars(self, after: tuple[int, ...]) -> tuple[int, ...]:
        """How long each sequence's text is after so many tokens of each. Raises `invalid_request` where the stream
        has no such place."""
        ...

    def listen(self, sink: Sink, after: tuple[int, ...]) -> Running:
        """Tell `sink` everything beyond that place, now and from now on; whoever listened before is told
        `taken_over`. Leaving (`Running.cancel`) begins the lease again. Raises `invalid_request`."""
        ...


class Resumer(Protocol):
    """Who finds resumable requests: those of this router, and those that workers hold for any."""

    async def resume(self, request_id: str, tenant: str) -> Resumed:
        """Raises `not_found` when it is unknown or another tenant's, `queue_full`, `draining`."""
        ...
