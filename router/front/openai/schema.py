"""Request bodies of the OpenAI REST interface, with their types and ranges.

The public gRPC interface fills the same structures, so both refuse the same things in the same words. Fields that
OpenAI's clients send and that change nothing here (`user`, `metadata`, …) are accepted.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Count = Annotated[int, Meta(ge=1, le=1 << 31)]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 32)]
StopText = Annotated[str, Meta(min_length=1, max_length=1024)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`include_obfuscation` pads events against traffic analysis elsewhere; here it changes nothing."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What chat and completion requests have in common. None means the default."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] | None = None
    min_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=10.0)] | None = None
    logit_bias: (
        Annotated[dict[TokenId, Annotated[float, Meta(ge=-100.0, le=100.0)]], Meta(max_length=1024)] | None
    ) = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=256)] | None = None
    ignore_eos: bool | None = None
    timeout: Annotated[float, Meta(gt=0.0)] | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    resumable: bool | None = None

    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Requests share cached prefixes only with those of the same tenant and salt."""

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


class ContentPart(msgspec.Struct, frozen=True):
    """A piece of a message. Only `text` parts are supported; the others are refused by name."""

    type: str
    text: str = ""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn. The last six fields are what OpenAI's answers carry, so that an answer can be sent back as it is."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: Any = None
    function_call: Any = None
    tool_calls: Any = None
    tool_call_id: str | None = None


class ChatRequest(Parameters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class CompletionRequest(Parameters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `/v1/completions`. `prompt` is text, token ids, or a list of either."""

    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
