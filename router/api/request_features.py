"""What a request wants beyond free text: how its answer is to be parsed, and what form it must have."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from router.api.openai.schema import ChatRequest, CompletionRequest
from router.api.openai.scoring import alternatives_asked
from router.api.openai.structured import asked_grammar
from router.api.openai.tools import Toolbox, call_grammar, calls_of, toolbox
from router.api.parsers import think
from router.api.parsers.dialect import Dialect
from router.api.parsers.output import ParserSpec
from router.generation import ServedModel
from tandem.core.errors import TandemError
from tandem.core.kv import unpack_tokens
from tandem.core.request import Grammar

_TAIL_TOKENS: Final = 16
"""The tag that opens reasoning, and white space after it, are within so many tokens."""


class RequestFeatures(msgspec.Struct, frozen=True):
    """`tools` are for the chat template."""

    speech: ParserSpec | None = None
    grammar: Grammar | None = None
    special_text: bool = False
    tools: list[dict[str, Any]] | None = None


NOTHING: Final = RequestFeatures()


def request_features(
    request: ChatRequest | CompletionRequest, model: ServedModel, dialect: Dialect
) -> RequestFeatures:
    """Raises `invalid_request`, and `unsupported_parameter` for what the model's engine or template cannot do."""
    if alternatives_asked(request) is not None and "prompt_logprobs" not in model.features:
        param = "echo" if request.prompt_logprobs is None else "prompt_logprobs"
        raise TandemError(
            "unsupported_parameter",
            f"{param}: the engine that serves {model.name} gives no log-probabilities of prompts; vllm does",
            param=param,
        )
    box = None
    if isinstance(request, ChatRequest) and (request.tools or request.tool_choice is not None):
        box = toolbox(request)
    asked = asked_grammar(request)
    if box is None and asked is None and not (dialect.reasoning and isinstance(request, ChatRequest)):
        return NOTHING
    if asked is not None and box is not None:
        raise TandemError(
            "unsupported_parameter",
            f"{asked[0]}: an answer bound to a format cannot call tools; leave them out or set tool_choice to none",
            param=asked[0],
        )
    forced = call_grammar(box) if box is not None else None
    bound = asked if forced is None else ("tool_choice", forced)
    if bound is not None and "grammar" not in model.features:
        raise TandemError(
            "unsupported_parameter",
            f"{bound[0]}: the engine that serves {model.name} cannot bind its output to a grammar",
            param=bound[0],
        )
    return _wants(box, bound, dialect, chat=isinstance(request, ChatRequest))


def _wants(
    box: Toolbox | None, bound: tuple[str, Grammar] | None, dialect: Dialect, *, chat: bool
) -> RequestFeatures:
    """Output that is bound from its first token on has no room for reasoning."""
    calls = calls_of(box, dialect) if box is not None else ParserSpec()
    reasoning = chat and dialect.reasoning and bound is None
    parsed = bool(calls.calls) and bound is None
    return RequestFeatures(
        speech=msgspec.structs.replace(calls, reasoning=reasoning) if calls.calls or reasoning else None,
        grammar=bound[1] if bound is not None else None,
        special_text=(parsed and dialect.special_tools) or (reasoning and dialect.special_reasoning),
        tools=box.shown if box is not None else None,
    )


def opened(speech: ParserSpec, prompt: bytes, token_bytes: Callable[[int], bytes]) -> ParserSpec:
    """`speech`, with a note of whether the prompt (packed token ids) has already begun the reasoning."""
    if not speech.reasoning:
        return speech
    tail = b"".join(map(token_bytes, unpack_tokens(prompt[-4 * _TAIL_TOKENS :]))).decode("utf-8", "replace")
    return msgspec.structs.replace(speech, opened=tail.rstrip().endswith(think.OPEN))
