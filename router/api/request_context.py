"""A request's identity from the moment it arrives: id, caller, trace, time."""

import re
from typing import Final

import msgspec

from router.api.auth import ANYONE, Caller
from router.api.idempotency import Claim
from router.api.parsers.output import ParserSpec
from router.generation import Generation
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.spans import TraceContext, parse_traceparent

_VALID_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


class TokenizeSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The span of rendering and tokenizing; times are wall-clock seconds."""

    span_id: str
    start_s: float
    end_s: float
    prompt_tokens: int


class RequestContext(msgspec.Struct):
    """`trace` is the context of the request's root span, `parent_id` the client's span above it or empty.

    `caller` is known after authentication, `parts` (how many generations) and `speech` (how the answer is read, None
    for plain text) after tokenizing, and so is `tokenized`, which is recorded with the root span; `claim` is the hold
    on the client's idempotency key.
    """

    request_id: str
    trace: TraceContext
    parent_id: str
    received: float
    received_wall: float
    caller: Caller = ANYONE
    parts: int = 1
    claim: Claim | None = None
    tokenized: TokenizeSpan | None = None
    speech: ParserSpec | None = None
    body_bytes: int = 0
    """Bytes of the request's body that have been read."""
    charged: bool = False
    """Whether the request has been charged to its tenant."""

    def part_id(self, number: int) -> str:
        """The id of one of the request's generations."""
        return self.request_id if self.parts == 1 else f"{self.request_id}.{number}"


class RequestRegistry:
    """Gives requests their identity. No two open requests have the same id."""

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        self._entropy = entropy
        self._open: set[str] = set()

    def arrive(self, asked_id: str | None, traceparent: str | None, kind: str) -> RequestContext:
        """`asked_id` is honoured when well-formed and not in use; otherwise one is drawn, starting with `kind`."""
        parent = parse_traceparent(traceparent) if traceparent else None
        random = self._entropy.token(36).hex()
        request_id = f"{kind}-{random[:24]}"
        if asked_id is not None and _VALID_ID.fullmatch(asked_id):
            request_id = asked_id if asked_id not in self._open else f"{asked_id}.{random[:8]}"
        self._open.add(request_id)
        trace = TraceContext(
            parent.trace_id if parent is not None else random[24:56],
            random[56:72],
            parent.sampled if parent is not None else True,
        )
        parent_id = parent.span_id if parent is not None else ""
        return RequestContext(request_id, trace, parent_id, self._clock.now(), self._clock.wall())

    def again(self, generation: Generation, caller: Caller) -> RequestContext:
        """The identity of a request whose client has come back."""
        received = self._clock.now()
        return RequestContext(generation.request_id, generation.trace, "", received, generation.received_wall, caller)

    def hold(self, arrival: RequestContext) -> None:
        """Keep the id of a running request from being given to another request."""
        self._open.add(arrival.request_id)

    def release(self, arrival: RequestContext) -> None:
        """The request has ended; its id may be used again."""
        self._open.discard(arrival.request_id)
