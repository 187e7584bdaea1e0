"""The requests that a ledger has to send, and the protocol of the builder that makes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tandem.engine.vllm.requests import VllmRequest
from tandem.engine.vllm.tracked_request import TrackedChild


class RequestBuilder(Protocol):
    """Makes what vLLM's engine process takes; `client.VllmClient` is one."""

    def prepare(self, request: VllmRequest) -> Any:
        """Raises `invalid_request`, and `engine_failed` for one with images that vLLM fails on."""
        ...

    def attach(self, prepared: Any, transfer: Mapping[str, object]) -> None:
        """Add the connector's parameters."""
        ...


@dataclass(frozen=True)
class OutgoingRequest:
    """A request for vLLM."""

    branch: TrackedChild
    request: Any
