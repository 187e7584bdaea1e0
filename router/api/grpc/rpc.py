"""The public gRPC interface's messages to and from our own values; nothing else."""

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError

from protos import inference_pb2 as pb
from router.api.openai.decode import convert
from router.api.openai.schema import ChatRequest, CompletionRequest
from router.api.parsers.delta import ParsedDelta
from router.generation import ServedModel, Usage
from tandem.core.errors import TandemError
from tandem.core.messages import SequenceOutput

SERVICE: Final = "tandem.v1.Inference"

_APART: Final = frozenset(("logprobs", "structure"))
"""Parameters whose form is another than in the REST interface."""
_OPTIONAL: Final = tuple(
    field.name for field in pb.Parameters.DESCRIPTOR.fields if field.has_presence and field.name not in _APART
)


def decode_generate(raw: bytes) -> ChatRequest | CompletionRequest:
    """A request in the REST interface's structures. Raises `invalid_request` or `unsupported_parameter`."""
    message = pb.GenerateRequest()
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise TandemError("invalid_request", f"the message is not a GenerateRequest: {error}") from error
    values: dict[str, Any] = {"model": message.model, "stream": True, **_parameters(message.parameters)}
    if message.resumable:
        values["resumable"] = True
    logprobs = message.parameters.logprobs if message.parameters.HasField("logprobs") else None
    match message.WhichOneof("input"):
        case "chat":
            values |= _chat(message.chat)
            if logprobs is not None:
                values |= {"logprobs": True, "top_logprobs": logprobs}
            return convert(values, ChatRequest)
        case "text":
            values["prompt"] = message.text
        case "token_ids":
            values["prompt"] = [list(message.token_ids.ids)]
        case _:
            raise TandemError("invalid_request", "one of text, chat and token_ids is needed", param="input")
    if logprobs is not None:
        values["logprobs"] = logprobs
    return convert(values, CompletionRequest)


def decode_resume(raw: bytes) -> tuple[str, tuple[int, ...]]:
    """A request's id and where to go on, empty for its beginning. Raises `invalid_request`."""
    message = pb.ResumeRequest()
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise TandemError("invalid_request", f"the message is not a ResumeRequest: {error}") from error
    return message.request_id, tuple(message.positions)


def _parameters(parameters: pb.Parameters) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(parameters, name) for name in _OPTIONAL if parameters.HasField(name)}
    for name, value in (*values.items(), *(("logit_bias", bias) for bias in parameters.logit_bias.values())):
        if isinstance(value, float) and not math.isfinite(value):
            raise TandemError("invalid_request", f"{name} must be a finite number", param=name)
    if parameters.HasField("structure"):
        values["structured_outputs"] = _structure(parameters.structure)
    if parameters.logit_bias:
        values["logit_bias"] = dict(parameters.logit_bias)
    if parameters.stop:
        values["stop"] = list(parameters.stop)
    if parameters.stop_token_ids:
        values["stop_token_ids"] = list(parameters.stop_token_ids)
    return values


def _chat(chat: pb.Chat) -> dict[str, Any]:
    values: dict[str, Any] = {"messages": [_message(turn) for turn in chat.messages]}
    if chat.tools:
        values["tools"] = [_tool(tool, number) for number, tool in enumerate(chat.tools)]
    match chat.WhichOneof("choice"):
        case "tool_choice":
            values["tool_choice"] = chat.tool_choice
        case "called_tool":
            values["tool_choice"] = {"type": "function", "function": {"name": chat.called_tool}}
    if chat.HasField("parallel_tool_calls"):
        values["parallel_tool_calls"] = chat.parallel_tool_calls
    return values


def _message(turn: pb.Message) -> dict[str, Any]:
    named = ("name", "tool_call_id", "reasoning_content")
    values: dict[str, Any] = {"role": turn.role, "content": turn.content}
    values |= {name: getattr(turn, name) for name in named if turn.HasField(name)}
    if turn.tool_calls:
        values["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}} for call in turn.tool_calls
        ]
    return values


def _tool(tool: pb.Tool, number: int) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.HasField("description"):
        function["description"] = tool.description
    if tool.HasField("parameters"):
        function["parameters"] = _object(tool.parameters, f"tools[{number}].parameters")
    return {"type": "function", "function": function}


def _object(text: str, param: str) -> dict[str, Any]:
    """A JSON schema, given as text."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TandemError("invalid_request", f"{param}: not JSON: {error}", param=param) from error
    if not isinstance(value, dict):
        raise TandemError("invalid_request", f"{param}: a JSON schema is an object", param=param)
    return value


def _structure(structure: pb.Structure) -> dict[str, Any]:
    """The structure in the form of `structured_outputs` in the REST interface."""
    match structure.WhichOneof("kind"):
        case "json_object":
            return {"json_object": structure.json_object}
        case "json_schema":
            return {"json": structure.json_schema}
        case "regex":
            return {"regex": structure.regex}
        case "choice":
            return {"choice": list(structure.choice.texts)}
        case "grammar":
            return {"grammar": structure.grammar}
    return {}


def encode_chunk(
    request_id: str,
    index: int,
    output: SequenceOutput,
    positions: Sequence[int] = (),
    said: ParsedDelta | None = None,
) -> bytes:
    """Encode a chunk with tokens of the answer's sequence `index`; `positions` are for a resumable request, `said` is
    what its text was parsed as."""
    text = output.text if said is None else said.content
    chunk = pb.GenerateChunk(request_id=request_id, index=index, tokens=output.tokens, text=text, positions=positions)
    if output.finish is not None:
        chunk.finish_reason = output.finish
    if isinstance(output.stop_reason, str):
        chunk.stop_string = output.stop_reason
    elif output.stop_reason is not None:
        chunk.stop_token = output.stop_reason
    if said is not None:
        chunk.reasoning = said.reasoning
        for call in said.calls:
            chunk.tool_calls.add(index=call.index, id=call.id, name=call.name, arguments=call.arguments)
    for entry in output.logprobs:
        top = [pb.Alternative(token=other.token, logprob=other.logprob) for other in entry.top]
        chunk.logprobs.add(logprob=entry.logprob, top=top)
    return bytes(chunk.SerializeToString())


def encode_usage(request_id: str, usage: Usage, positions: Sequence[int] = ()) -> bytes:
    """The last chunk."""
    counts = pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )
    if usage.by_tier is not None:
        counts.cached_tokens_by_tier.CopyFrom(pb.TierTokens(**usage.by_tier))
    return bytes(pb.GenerateChunk(request_id=request_id, usage=counts, positions=positions).SerializeToString())


def encode_models(models: Sequence[ServedModel]) -> bytes:
    """The answer to `ListModels`."""
    listed = [
        pb.Model(id=model.name, context_tokens=model.context_tokens, parent=model.parent or None) for model in models
    ]
    return bytes(pb.ListModelsResponse(models=listed).SerializeToString())


def encode_error(error: TandemError) -> bytes:
    """The detail of a failed call."""
    detail = pb.Error(code=error.code, type=error.kind.type, message=error.message)
    if error.param is not None:
        detail.param = error.param
    if error.retry_after_s is not None:
        detail.retry_after_s = error.retry_after_s
    return bytes(detail.SerializeToString())
