"""Converts request parameters into sampling and the conditions that end a sequence.

Ranges were checked while decoding; the rules here tie parameters to each other and to the model.
"""

from typing import Any, Final, TypeGuard

import msgspec

from router.api.openai.defaults import NEUTRAL, TOP_P_MIN, Defaults
from router.api.openai.schema import ChatMessage, ChatRequest, CompletionRequest, Parameters, ToolCall
from router.api.openai.scoring import alternatives_asked, wanted_logprobs
from router.api.openai.unsupported import WHY_NOT_BY_MEANING
from tandem.core.errors import TandemError
from tandem.core.request import Sampling, Stopping

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_ARGUMENTS_CHARACTERS: Final = 1 << 19
_NOTHING_SAID: Final = (None,) * 8


def check(request: ChatRequest | CompletionRequest) -> None:
    """Rules among parameters. Raises `invalid_request`."""
    if request.stream_options is not None and not request.stream:
        raise _invalid("stream_options", "stream_options is only allowed when stream is true")
    if request.resumable and not request.stream:
        raise _invalid("resumable", "resumable is only allowed when stream is true")
    if request.return_token_ids and request.stream:
        raise _invalid("return_token_ids", "return_token_ids is only allowed when stream is false")
    if request.prompt_cache_options and request.prompt_cache_options.get("mode") == "semantic":
        raise TandemError("unsupported_parameter", WHY_NOT_BY_MEANING, param="prompt_cache_options.mode")
    if isinstance(request, ChatRequest):
        _check_chat(request)
    else:
        _check_completion(request)
    if request.stream and request.prompt_logprobs is not None:
        raise _invalid("prompt_logprobs", "prompt_logprobs is only allowed when stream is false")


def sampling(request: ChatRequest | CompletionRequest, vocab_size: int, defaults: Defaults = NEUTRAL) -> Sampling:
    """The sampling for a request: as the request says, else as `defaults` do. Raises `invalid_request` for a biased
    token that the model does not have."""
    plain = defaults.unseeded if request.seed is None else defaults.seeded
    said = (
        request.temperature,
        request.top_p,
        request.top_k,
        request.min_p,
        request.presence_penalty,
        request.frequency_penalty,
        request.repetition_penalty,
        request.logit_bias,
    )
    wanted, of_prompt = wanted_logprobs(request), alternatives_asked(request)
    if said == _NOTHING_SAID and wanted is None and of_prompt is None:
        return plain
    bias = request.logit_bias or {}
    for token in bias:
        if token >= vocab_size:
            raise _invalid("logit_bias", f"logit_bias: token {token} is not below the vocabulary size {vocab_size}")
    return Sampling(
        temperature=_or(request.temperature, plain.temperature),
        top_p=max(_or(request.top_p, plain.top_p), TOP_P_MIN),
        top_k=plain.top_k if request.top_k is None else max(request.top_k, 0),
        min_p=_or(request.min_p, plain.min_p),
        presence_penalty=_or(request.presence_penalty, plain.presence_penalty),
        frequency_penalty=_or(request.frequency_penalty, plain.frequency_penalty),
        repetition_penalty=_or(request.repetition_penalty, plain.repetition_penalty),
        logit_bias=tuple(sorted(bias.items())),
        logprobs=0 if wanted is None and of_prompt is not None else wanted,
        prompt_logprobs=of_prompt,
        seeded=plain.seeded,
    )


def stopping(
    request: ChatRequest | CompletionRequest,
    prompt_tokens: int,
    context_tokens: int,
    vocab_size: int,
    defaults: Defaults = NEUTRAL,
) -> Stopping:
    """When a sequence ends. Without `max_tokens` a sequence may be as long as `defaults` say, and else fill the
    context. Stop tokens that the model does not have never come, so they are left out: clients of many models send
    the stop tokens of all of them.

    Raises `context_length_exceeded` with both numbers, or `invalid_request`.
    """
    asked, name = _asked_tokens(request)
    room = context_tokens - prompt_tokens
    if room < (asked or 1):
        raise TandemError(
            "context_length_exceeded",
            f"the model's context is {context_tokens} tokens, but {prompt_tokens + (asked or 1)} were asked for: "
            f"{prompt_tokens} in the prompt and {asked or 'at least 1'} to generate",
            param=name if asked is not None and room > 0 else "messages" if _is_chat(request) else "prompt",
        )
    max_tokens = asked or min(room, defaults.max_tokens or room)
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise _invalid("min_tokens", f"min_tokens {min_tokens} is more than the {max_tokens} tokens to generate")
    stop = request.stop if request.stop is not None else ()
    return Stopping(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(token for token in request.stop_token_ids or () if token < vocab_size),
        ignore_eos=bool(request.ignore_eos),
        fills=asked is None,
    )


def messages(request: ChatRequest) -> list[dict[str, Any]]:
    """The conversation as chat templates take it. Raises `invalid_request` or `unsupported_parameter`."""
    _check_arguments(request)
    return [_turn(message, f"messages[{number}]") for number, message in enumerate(request.messages)]


def prompts(request: CompletionRequest, vocab_size: int) -> list[str | list[int]]:
    """The prompts of a completion request, each text or token ids. Raises `invalid_request`."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if _tokens_alone(prompt):
        return [_known_tokens(prompt, vocab_size)]
    found: list[str | list[int]] = []
    for item in prompt:
        if isinstance(item, int):
            raise _invalid("prompt", "prompt mixes token ids with other prompts")
        found.append(_known_tokens(item, vocab_size) if isinstance(item, list) else item)
    if not found:
        raise _invalid("prompt", "prompt is empty")
    return found


def _tokens_alone(items: "list[int] | list[str | int | list[int]]") -> TypeGuard[list[int]]:
    """Whether these are token ids and nothing else; there may be hundreds of thousands."""
    return set(map(type, items)) == {int}


def _known_tokens(tokens: list[int], vocab_size: int) -> list[int]:
    if not tokens:
        raise _invalid("prompt", "prompt has no tokens")
    if max(tokens) >= vocab_size:
        raise _invalid("prompt", f"prompt: token {max(tokens)} is not below the vocabulary size {vocab_size}")
    return tokens


def _check_chat(request: ChatRequest) -> None:
    if request.top_logprobs is not None and not request.logprobs:
        raise _invalid("top_logprobs", "top_logprobs is only allowed when logprobs is true")
    both = request.max_tokens, request.max_completion_tokens
    if None not in both and both[0] != both[1]:
        raise _invalid("max_tokens", "max_tokens and max_completion_tokens differ; give one of them")


def _check_completion(request: CompletionRequest) -> None:
    if request.echo and request.stream:
        raise _invalid("echo", "echo is only allowed when stream is false")
    if request.max_tokens == 0 and not request.echo:
        raise _invalid("max_tokens", "max_tokens 0 is only allowed with echo, where the answer is the prompt alone")


def _asked_tokens(request: Parameters) -> tuple[int | None, str]:
    """An answer that is its prompt alone needs a step of the engine, which draws a token, all the same."""
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        return request.max_completion_tokens, "max_completion_tokens"
    return 1 if request.max_tokens == 0 else request.max_tokens, "max_tokens"


def _turn(message: ChatMessage, place: str) -> dict[str, Any]:
    if message.role not in _ROLES:
        known = ", ".join(_ROLES)
        raise _invalid(f"{place}.role", f"{place}.role: {message.role!r} is not one of {known}")
    for name in ("audio", "function_call"):
        if getattr(message, name):
            raise TandemError(
                "unsupported_parameter", f"{place}.{name} is not supported here", param=f"{place}.{name}"
            )
    turn: dict[str, Any] = {"role": message.role, "content": _content(message, place)}
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_calls or message.tool_call_id or message.reasoning_content or message.role == "tool":
        _add_tools(turn, message, place)
    return turn


def _add_tools(turn: dict[str, Any], message: ChatMessage, place: str) -> None:
    """Add the fields for tools and reasoning to a turn."""
    if message.tool_calls and message.role != "assistant":
        raise _invalid(f"{place}.tool_calls", f"{place}.tool_calls: only an assistant calls tools")
    if message.role == "tool" and message.tool_call_id is None:
        raise _invalid(f"{place}.tool_call_id", f"{place}.tool_call_id is missing: which call this answers")
    if message.tool_calls:
        turn["tool_calls"] = [_call(call, f"{place}.tool_calls[{at}]") for at, call in enumerate(message.tool_calls)]
    if message.role == "tool":
        turn["tool_call_id"] = message.tool_call_id
    if message.reasoning_content and message.role == "assistant":
        turn["reasoning_content"] = message.reasoning_content


def _call(call: ToolCall, place: str) -> dict[str, Any]:
    """A call as templates expect it: with its arguments as an object. What is none stays the text it is."""
    if call.type != "function":
        raise _invalid(f"{place}.type", f"{place}.type: {call.type!r} is not function")
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        arguments = None
    given = arguments if isinstance(arguments, dict) else call.function.arguments
    shown = {"type": "function", "function": {"name": call.function.name, "arguments": given}}
    return {"id": call.id, **shown} if call.id else shown


def _check_arguments(request: ChatRequest) -> None:
    """Check the arguments of tool calls, which are JSON of their own and reach templates as objects: together they
    must be short enough to decode in no time."""
    left = _ARGUMENTS_CHARACTERS
    for number, message in enumerate(request.messages):
        for at, call in enumerate(message.tool_calls or ()):
            left -= len(call.function.arguments or "")
            if left < 0:
                where = f"messages[{number}].tool_calls[{at}].function.arguments"
                problem = f"{where}: the arguments of all calls have more than {_ARGUMENTS_CHARACTERS} characters"
                raise _invalid(where, problem)


def _content(message: ChatMessage, place: str) -> str | list[dict[str, str]]:
    """Text, or, where there are images among it, the parts as templates of models with vision expect them."""
    content = message.content
    if isinstance(content, str):
        return content
    if content is None and message.tool_calls:
        return ""
    if content is None:
        raise _invalid(f"{place}.content", f"{place}.content is missing")
    for number, part in enumerate(content):
        if part.type not in ("text", "image_url"):
            where = f"{place}.content[{number}].type"
            problem = f"{where}: only text and image_url are supported, not {part.type!r}"
            raise TandemError("unsupported_parameter", problem, param=where)
        if part.type == "image_url" and message.role != "user":
            where = f"{place}.content[{number}].image_url"
            raise _invalid(where, f"{where}: only a user's turn has images")
    if all(part.type == "text" for part in content):
        return "".join(part.text for part in content)
    return [
        {"type": "image"} if part.type == "image_url" else {"type": "text", "text": part.text} for part in content
    ]


def _is_chat(request: Parameters) -> bool:
    return isinstance(request, ChatRequest)


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _invalid(param: str, message: str) -> TandemError:
    return TandemError("invalid_request", message, param=param)
