"""Request bodies of the OpenAI REST interface, with their types and ranges.

The public gRPC interface fills the same structures, so both refuse the same things in the same words. Fields that
OpenAI's clients send and that change nothing here (`user`, `metadata`, …) are accepted.
"""

from typing import Annotated, Any, Literal

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


class JsonSchemaFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`json_schema` of a response format. Output follows the schema whether it is `strict` or not."""

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The format that the whole answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The format that the whole answer must have, in the form that vLLM's clients use: exactly one of these
    fields."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: Annotated[str, Meta(min_length=1)] | None = None
    choice: Annotated[list[str], Meta(min_length=1, max_length=1024)] | None = None
    grammar: Annotated[str, Meta(min_length=1)] | None = None


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters that chat and completion requests have in common. None means the default."""

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
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """Number of alternatives to report beside every token of the prompt, as vLLM's clients ask for it."""
    return_token_ids: bool | None = None
    """Whether the answer, which is not streamed then, has the ids of its tokens and of the prompt's."""

    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Requests share cached prefixes only with those of the same tenant and salt."""
    prompt_cache_key: Annotated[str, Meta(max_length=256)] | None = None
    """Requests of a tenant with the same key are expected to begin alike: a hint to placement, no more."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: Annotated[str, Meta(min_length=1)] | None = None
    guided_choice: Annotated[list[str], Meta(min_length=1, max_length=1024)] | None = None
    guided_grammar: Annotated[str, Meta(min_length=1)] | None = None

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


class ImageUrl(msgspec.Struct, frozen=True):
    """An image as a `data:` URL; `detail` changes nothing."""

    url: str
    detail: str | None = None


class ContentPart(msgspec.Struct, frozen=True):
    """A piece of a message: `text` or `image_url`. The others are refused by name."""

    type: str
    text: str = ""
    image_url: ImageUrl | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """The function that was called: `arguments` is JSON text, as the model wrote it."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: str = ""


class ToolCall(msgspec.Struct, frozen=True):
    """A call in an assistant's turn."""

    function: CalledFunction
    id: str = ""
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One turn. Its last fields are what OpenAI's answers carry, so that an answer can be sent back as it is."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: Any = None
    function_call: Any = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=1024)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class FunctionSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Only functions are tools here."""

    type: Literal["function"]
    function: FunctionSpec


class NamedFunction(msgspec.Struct, frozen=True):
    """The function that has to be called."""

    name: str


class NamedTool(msgspec.Struct, frozen=True):
    """A `tool_choice` that names a function."""

    type: Literal["function"]
    function: NamedFunction


class ChatRequest(Parameters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    tools: Annotated[list[Tool], Meta(max_length=256)] | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class CompletionRequest(Parameters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `/v1/completions`. `prompt` is text, token ids, or a list of either.

    With `echo` the answer begins with the prompt, and its `logprobs` have the prompt's tokens too; then `max_tokens`
    may be 0, for nothing but that.
    """

    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
