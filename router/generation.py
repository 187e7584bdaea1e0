"""The seam between the front door and dispatch: a validated request in, accepted tokens out.

The front door (`router.api`) builds a `Generation` and a `Sink`; `router.dispatch` owns everything
between. All calls happen on the router's event loop and never block.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from tandem.core.errors import TandemError
from tandem.core.messages import Pin, SequenceOutput
from tandem.core.request import RequestSpec
from tandem.core.slo import UNBOUND, Slo
from tandem.core.spans import TraceContext


class Generation(RequestSpec, frozen=True, kw_only=True, gc=False):
    """A request after validation, rendering and tokenizing.

    `seed` is always set (drawn by the router when the client gave none). `trace` is
    the context of the request's root span, whose id the front door has already drawn; `received` is
    `Clock.now()` when the request arrived, `received_wall` the same instant for span stamps.
    """

    request_id: str
    model: str
    tenant: str
    n: int
    seed: int
    timeout_s: float
    received: float
    received_wall: float
    trace: TraceContext
    resume: bytes | None = None
    """The state that the front door of another router needs to continue the answer of a resumable request; None for
    other requests."""
    cache_key: str = ""
    """The client's `prompt_cache_key`, made the tenant's own: requests that share it gain from running together."""
    pin: Pin | None = None
    """The prompt is a prefix to be computed and kept."""
    avoid: tuple[tuple[str, int], ...] = ()
    """Incarnations (worker id, epoch) that may compute the request only if no other can."""
    beginning: str = ""
    """How the request's conversation began, the same for every turn; empty where the request is not part of one."""
    revision: str = ""
    """The revision of its service that was asked for by name; empty for whichever is its turn."""
    images: tuple[bytes, ...] = ()
    """Files of the images that the prompt has places for, in the order of the places. The prompt grows where the
    images are read: its tokens are not those of a text, and it shares no block with another request."""

    @property
    def asked_model(self) -> str:
        """The name by which the client asked for the model."""
        return self.adapter or self.model

    @property
    def line(self) -> str:
        """The line in which the request waits for a worker. It is shared by the requests that can only be served
        together."""
        return f"{self.model}@{self.revision}" if self.revision else self.model

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) // 4


class PrefixReplica(msgspec.Struct, frozen=True, gc=False):
    """A worker incarnation that keeps the first `blocks` blocks of a pinned prefix."""

    worker_id: str
    epoch: int
    blocks: int


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Counts for the answer; `cached_tokens` are prompt tokens that no worker had to compute."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    by_tier: Mapping[str, int] | None = None
    """`cached_tokens` by the tier where they were found (`tandem.core.tiers`); None when no worker has reported
    it."""
    kept: tuple[PrefixReplica, ...] = ()
    """The workers that keep a prefix to be pinned, and how much of it each keeps."""


class Sink(Protocol):
    """Receives what a generation yields, in order, exactly once. Exactly one of `done`, `failed` ends it."""

    def output(self, output: SequenceOutput) -> None:
        """The next accepted positions of one sequence; `finish` is set with its last."""
        ...

    def done(self, usage: Usage) -> None:
        """Every sequence has finished."""
        ...

    def failed(self, error: TandemError) -> None:
        """The generation ends here; what was output before stands."""
        ...


class RequestStatus(msgspec.Struct, frozen=True):
    """The progress of a running request. `prefill` and `decode` are the workers of its current attempt, None while it
    waits for one; `prefill` is also None when decode computes the prompt itself. `tokens` are those accepted so
    far."""

    stage: str
    """`queue`, `prefill`, `transfer`, `first-token` or `decode` (`router.dispatch.request_status` has their
    meaning)."""
    prefill: str | None
    decode: str | None
    tokens: int
    attempts: int


class Running(Protocol):
    """A started generation."""

    def standing(self) -> RequestStatus:
        """The current status of the request. Called only before its end."""
        ...

    def cancel(self, reason: str) -> None:
        """Free everything that the request holds anywhere; the sink gets nothing more."""
        ...


class ServedModel(msgspec.Struct, frozen=True):
    """A model with at least one live worker."""

    name: str
    context_tokens: int
    eos_token_ids: tuple[int, ...]
    parent: str = ""
    """The model that a LoRA adapter adapts; empty for a model."""
    features: tuple[str, ...] = ()
    """Features that the engines of some of its workers have beyond the rest
    (`tandem.core.messages.Hello.features`)."""
    revisions: tuple[str, ...] = ()
    """The revisions of its service that may be asked for by name."""
    aliases: tuple[str, ...] = ()
    """Other names that clients may ask for the model by."""
    slo: Slo = UNBOUND
    """The objective that its service sets for requests."""

    @property
    def base(self) -> str:
        """The model itself, under an adapter too."""
        return self.parent or self.name


class Generator(Protocol):
    """The interface that the front door needs from the rest of the router."""

    def start(self, generation: Generation, sink: Sink) -> Running:
        """Admit and dispatch. Raises `queue_full`, `draining`, `no_workers`, `over_quota`, `model_not_found`."""
        ...

    def models(self) -> tuple[ServedModel, ...]:
        """Models that can be asked for now."""
        ...

    def ready(self) -> str | None:
        """None when a request could be served now, otherwise why not, in one sentence."""
        ...


class Seeker(Protocol):
    """Looks up a request before it is started, when there is an index beyond the router's own."""

    async def seek(self, generation: Generation) -> None:
        """Find out who has the prompt's blocks. Bounded by a few milliseconds; never fails."""
        ...


class BlockShape(msgspec.Struct, frozen=True):
    """The blocks a model's KV is kept in; `keeps` is whether a worker has tiers to keep them in."""

    tokens: int
    bytes: int
    keeps: bool = True


class PinnedPrefixes(Protocol):
    """The interface that the front door needs from the rest of the router for prefixes that are kept."""

    def shape(self, model: str) -> BlockShape | None:
        """The blocks of a model's workers; None when no worker of it is known."""
        ...

    def names(self, holder: PrefixReplica, generation: Generation) -> bytes:
        """The packed names of the blocks that `holder` keeps; empty when it is gone."""
        ...

    def still(self, holders: Sequence[PrefixReplica], names: bytes) -> tuple[PrefixReplica, ...]:
        """The holders that are still there, each with how many of the leading blocks it has now, wherever they came
        from."""
        ...

    def unpin(self, holder: PrefixReplica, names: bytes, tenant_salt: str) -> None:
        """Tell a holder, if it is there, that these blocks need not be kept any more."""
        ...


class Resumed(Protocol):
    """A resumable request that was found again. Its lease runs while no sink listens to it."""

    @property
    def generation(self) -> Generation: ...

    def chars(self, after: tuple[int, ...]) -> tuple[int, ...]:
        """The length of each sequence's text after so many tokens of each. Raises `invalid_request` where the stream
        has no such place."""
        ...

    def listen(self, sink: Sink, after: tuple[int, ...]) -> Running:
        """Send `sink` everything beyond the place `after`, now and from now on; a sink that listened before gets
        `taken_over`. `Running.cancel` stops listening and starts the lease again. Raises `invalid_request`."""
        ...


class Resumer(Protocol):
    """Finds resumable requests: those of this router, and those that workers hold for any router."""

    async def resume(self, request_id: str, tenant: str) -> Resumed:
        """Raises `not_found` when it is unknown or another tenant's, `queue_full`, `draining`."""
        ...
