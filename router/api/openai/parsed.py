"""Chat answers with reasoning and tool calls, in OpenAI's form: events of a stream, and whole messages."""

from typing import Any, Final

from router.api.openai.answer import ChatFormat, Choice, Label, encode, with_reason
from router.api.openai.logprobs import Vocabulary
from router.api.parsers.delta import CallPiece, ParsedDelta
from router.api.parsers.output import OutputParser, ParserSpec

TOOL_CALLS: Final = "tool_calls"


class ParsedChatFormat(ChatFormat):
    """`source` is the request's own (`router.api.parsers.output.OutputParser`)."""

    def __init__(self, label: Label, vocabulary: Vocabulary, speech: ParserSpec, source: str) -> None:
        super().__init__(label, vocabulary)
        self._speech = speech
        self._source = source

    def output_parser(self, index: int) -> OutputParser:
        """A reader for one sequence of the answer."""
        return OutputParser(self._speech, self._source, index)

    def said(
        self, index: int, said: ParsedDelta, logprobs: Any, finish: str | None, stop_reason: str | int | None
    ) -> bytes:
        """The event for parsed output; empty when there is nothing to report."""
        if not said and logprobs is None and finish is None:
            return b""
        choice = {"index": index, "delta": _delta(said), "logprobs": logprobs, "finish_reason": finish}
        return self._open + encode(with_reason(choice, stop_reason)) + b"]" + self._close

    def _choice(self, choice: Choice) -> dict[str, Any]:
        output_parser, said = self.output_parser(choice.index), ParsedDelta()
        output_parser.feed(choice.text, said)
        output_parser.finish(said)
        logprobs = self.logprobs(choice.tokens, choice.logprobs, 0) if choice.logprobs else None
        message: dict[str, Any] = {"role": "assistant", "content": said.content, "refusal": None}
        if said.reasoning:
            message["reasoning_content"] = said.reasoning
        if said.calls:
            message["content"] = said.content or None
            message["tool_calls"] = [_whole_call(call) for call in said.calls]
        finish = finish_reason(choice.finish, output_parser)
        entry = {"index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": finish}
        return with_reason(entry, choice.stop_reason)


def finish_reason(finish: str, output_parser: OutputParser) -> str:
    """Why a sequence ended, in OpenAI's words: one that called tools did so to call them, unless it was cut off."""
    return TOOL_CALLS if finish == "stop" and output_parser.called else finish


def _delta(said: ParsedDelta) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    if said.reasoning:
        delta["reasoning_content"] = said.reasoning
    if said.content:
        delta["content"] = said.content
    if said.calls:
        delta["tool_calls"] = [_call_delta(piece) for piece in said.calls]
    return delta


def _call_delta(piece: CallPiece) -> dict[str, Any]:
    """The first piece of a call has its id and name."""
    if not piece.name:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    return {"index": piece.index, **_whole_call(piece)}


def _whole_call(call: CallPiece) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
