"""The body of `POST /v1/cache/prefixes`, and the JSON a pinned prefix is shown as."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from router.api.openai.decode import decode_as
from router.api.openai.schema import ChatMessage, ChatRequest, CompletionRequest, TokenId
from router.api.prefixes.pinned import Prefix, PrefixSettings
from router.generation import PrefixReplica
from tandem.core.errors import TandemError


class PrefixRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prefix to keep, and how: `messages` as a conversation begins, or `prompt` as text or token ids."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    prompt: Annotated[str, Meta(min_length=1)] | Annotated[list[TokenId], Meta(min_length=1)] | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    """Priority of the prefix's pins: when pins have to give way, those with the lowest priority go first."""
    ttl_s: Annotated[float, Meta(gt=0.0)] | None = None
    replicas: Annotated[int, Meta(ge=1)] | None = None
    """The number of workers on which to pin the prefix."""
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    timeout: Annotated[float, Meta(gt=0.0)] | None = None

    def generating(self) -> ChatRequest | CompletionRequest:
        """The smallest request that computes this prefix."""
        known: dict[str, Any] = {"model": self.model, "max_tokens": 1, "cache_salt": self.cache_salt}
        if self.messages is not None:
            return ChatRequest(messages=self.messages, **known)
        assert self.prompt is not None, "a decoded request has one of both"
        return CompletionRequest(prompt=self.prompt if isinstance(self.prompt, str) else [self.prompt], **known)


_DECODER: Final = msgspec.json.Decoder(PrefixRequest)


def decode_prefix(body: bytes, settings: PrefixSettings) -> PrefixRequest:
    """The body. Raises `invalid_request` or `unsupported_parameter`, naming the parameter."""
    request = decode_as(body, _DECODER, PrefixRequest)
    if (request.messages is None) == (request.prompt is None):
        raise _invalid("prompt", "give one of messages and prompt")
    if request.ttl_s is not None and request.ttl_s > settings.ttl_s_max:
        raise _invalid("ttl_s", f"ttl_s is {request.ttl_s:g}; at most {settings.ttl_s_max:g} are allowed")
    if request.replicas is not None and request.replicas > settings.replicas_max:
        raise _invalid("replicas", f"replicas is {request.replicas}; at most {settings.replicas_max} are allowed")
    return request


def show(prefix: Prefix, holders: Sequence[PrefixReplica], usage: dict[str, Any] | None = None) -> dict[str, object]:
    """A prefix for a client; `holders` are those that have it now."""
    shown: dict[str, object] = {
        "id": prefix.id,
        "object": "cache.prefix",
        "model": prefix.model,
        "tokens": prefix.tokens,
        "blocks": prefix.blocks,
        "bytes": prefix.kv_bytes,
        "priority": prefix.priority,
        "ttl_s": prefix.ttl_s,
        "created": int(prefix.created_wall),
        "expires_at": int(prefix.expires_wall),
        "holders": [{"worker": holder.worker_id, "blocks": holder.blocks} for holder in holders],
    }
    return shown if usage is None else {**shown, "usage": usage}


def _invalid(param: str, message: str) -> TandemError:
    return TandemError("invalid_request", message, param=param)
