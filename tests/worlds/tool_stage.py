"""A front door whose model calls tools: a chat template that shows them, and workers that say what a test wants."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from router.api.chat_templates.render import FileRenderer
from router.api.chat_templates.templates import InlineTemplates
from router.api.parsers.dialect import ParserSettings
from router.generation import Generation, ServedModel, Sink, Usage
from tandem.apps.simulation.loop import LoopClock, VirtualLoop
from tandem.core.clock import Clock
from tandem.model.directory import ModelDirectory, open_model
from tests.worlds.chat_models import Family, tokenizer_of, write_files
from tests.worlds.front_stage import MODEL, Play, Script
from tests.worlds.outputs import said

TOOLS_TEMPLATE = """
{%- if tools %}
    {{- '<|im_start|>system\\nTools: ' ~ (tools | tojson) }}
    {{- ' Answer <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content }}
    {%- for call in m.tool_calls or [] %}
        {{- '<tool_call>{"name": "' ~ call.function.name ~ '", "arguments": ' ~ (call.function.arguments | tojson) }}
        {{- '}</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}"""
THINKING_TEMPLATE = TOOLS_TEMPLATE.replace("<|im_start|>assistant\\n", "<|im_start|>assistant\\n<think>\\n")

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK_TOOL = {"type": "function", "function": {"name": "get_time"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@cache
def renderer(template: str = TOOLS_TEMPLATE, tools: str = "auto", reasoning: str = "auto") -> FileRenderer:
    """The text side of a model with this chat template."""
    family = Family("tools", template, ("<|im_start|>", "<|im_end|>"))
    clock: Clock = LoopClock(VirtualLoop())
    with TemporaryDirectory() as directory:
        write_files(Path(directory), tokenizer_of(family), template, {})
        model = ModelDirectory(Path(directory), MODEL, open_model("demo").raw)
        return FileRenderer(model, InlineTemplates(clock), ParserSettings(tools, reasoning))


def saying(*pieces: str, finish: str = "stop") -> Play:
    """Every sequence says these pieces, a token each."""

    def play(generation: Generation, sink: Sink) -> None:
        for position, piece in enumerate(pieces, 1):
            for sequence in range(generation.n):
                last = finish if position == len(pieces) else None
                sink.output(said(sequence, position, (65,), piece, (), last))
        sink.done(Usage(generation.prompt_tokens, len(pieces) * generation.n, 0))

    return play


class ToolScript(Script):
    """Serves the model with `features`, and adapters of it."""

    def __init__(self, play: Play, features: Sequence[str] = (), adapters: Sequence[str] = ()) -> None:
        super().__init__(play)
        self.features = tuple(features)
        self.adapters = tuple(adapters)

    def models(self) -> tuple[ServedModel, ...]:
        bare = ServedModel(MODEL, 4096, (0,), features=self.features)
        return (bare, *(ServedModel(name, 4096, (0,), MODEL, self.features) for name in self.adapters))


def gathered(events: Sequence[Any]) -> dict[str, Any]:
    """What an OpenAI client makes of a stream's events, of its first sequence."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for event in events:
        if event == "[DONE]" or not event["choices"]:
            continue
        choice = event["choices"][0]
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        for piece in delta.get("tool_calls", ()):
            if piece["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"id": piece["id"], "type": piece["type"], "name": "", "arguments": ""})
            call = message["tool_calls"][piece["index"]]
            call["name"] += piece["function"].get("name", "")
            call["arguments"] += piece["function"]["arguments"]
        if choice["finish_reason"] is not None:
            message["finish_reason"] = choice["finish_reason"]
    return message
