"""A model's chat template: messages in, prompt text out, in a sandbox (templates come with model files)."""

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tandem.core.clock import Clock
from tandem.core.errors import TandemError

Message = Mapping[str, Any]
"""`role`, `content` (text, or a list of parts where images are among it) and perhaps `name`, `tool_calls`,
`tool_call_id`, `reasoning_content`, as templates expect them."""
Tools = Sequence[Mapping[str, Any]]
"""Functions that may be called, in OpenAI's form."""

_TAKES_TOOLS: Final = re.compile(r"\btools\b")
_SAMPLE_ROLES: Final = (("user",), ("user", "assistant", "user"), ("system", "user"), ("developer", "user"))
_PROBE: Final = "probe"
_TEXT_PART: Final = {"type": "text", "text": _PROBE}
_IMAGE_PART: Final = {"type": "image"}
_LEAKS: Final = re.compile(r"""['"](type|image)['"]""")
"""Matches in a prompt where the template wrote a list of parts out as it was."""
_TEMPLATE_FAULTS = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError)


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text for training; for serving it is its body."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own interface)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class ChatTemplate:
    """A compiled template with the special tokens it may name.

    The environment is the one published templates are written against: `trim_blocks` and `lstrip_blocks`,
    loop controls, `tojson` without HTML escaping, `raise_exception`, `strftime_now`.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], clock: Clock, origin: str) -> None:
        """Raises `bad_model`, naming `origin`, when the template is not valid Jinja."""
        environment = _environment(clock)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TandemError("bad_model", f"{origin}: the chat template cannot be compiled: {error}") from error
        self.source = source
        self._known = {**environment.globals, **special_tokens}
        self._known |= {"add_generation_prompt": True, "tools": None, "documents": None}
        self._takes_parts = self._shows([_TEXT_PART])
        self._takes_text = self._shows(_PROBE) or not self._takes_parts
        """Many templates of models with vision go through the parts of a message, and see nothing in a text."""
        self.takes_images = self._takes_parts and self._has_place_for_images()

    def render(
        self, messages: Sequence[Message], tools: Tools | None = None, characters_max: int | None = None
    ) -> str:
        """The prompt, ending where the assistant's answer begins.

        Raises `invalid_request` when the template refuses the messages (roles out of order, for example),
        `unsupported_parameter` for images that it has no place for, and `context_length_exceeded` for a prompt of too
        many characters.
        """
        images = any(not isinstance(message["content"], str) for message in messages)
        if images and not self.takes_images:
            raise TandemError(
                "unsupported_parameter",
                "the model's chat template has no place for images: give the service one that has (chat_template)",
                param="messages",
            )
        prompt = self._render(messages if self._takes_text and not images else _in_parts(messages), tools)
        if characters_max is not None and len(prompt) > characters_max:
            raise TandemError(
                "context_length_exceeded",
                f"the model's chat template makes a prompt of {len(prompt)} characters of these messages, and "
                f"{characters_max} are more than the model's context takes",
                param="messages",
            )
        return prompt

    def _shows(self, content: object) -> bool:
        """Whether a message's content is part of the prompt, and not merely written out as an object."""
        with contextlib.suppress(TandemError):
            prompt = self._render([{"role": "user", "content": content}], None)
            return _PROBE in prompt and not _LEAKS.search(prompt)
        return False

    def _has_place_for_images(self) -> bool:
        text, both = [_TEXT_PART], [_IMAGE_PART, _TEXT_PART]
        with contextlib.suppress(TandemError):
            found = [self._render([{"role": "user", "content": content}], None) for content in (text, both)]
            return found[0] != found[1] and _PROBE in found[1] and not _LEAKS.search(found[1])
        return False

    def _render(self, messages: Sequence[Message], tools: Tools | None) -> str:
        try:
            # `Template.render` would go through all globals one by one, each time.
            template, known = self._template, {**self._known, "messages": messages}
            if tools:
                known["tools"] = tools
            context = template.environment.context_class(template.environment, known, template.name, template.blocks)
            return "".join(template.root_render_func(context))
        except _TEMPLATE_FAULTS as error:
            # In which frame the interpreter runs out of them depends on who called, and its words on the frame.
            why = "maximum recursion depth exceeded" if isinstance(error, RecursionError) else error
            raise TandemError(
                "invalid_request",
                f"these messages cannot be rendered with the model's chat template: {why}",
                param="messages",
            ) from error


def _in_parts(messages: Sequence[Message]) -> list[Message]:
    """The same conversation, with every text content as the one part of its message."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message["content"], str)
        else message
        for message in messages
    ]


def takes_tools(source: str) -> bool:
    """Whether a template does anything with tools."""
    return _TAKES_TOOLS.search(source) is not None


def samples(template: ChatTemplate) -> list[str]:
    """The text that the template writes around messages of every role, as far as it accepts them."""
    texts = []
    for roles in _SAMPLE_ROLES:
        with contextlib.suppress(TandemError):
            texts.append(template.render([{"role": role, "content": "a"} for role in roles]))
    return texts


def _environment(clock: Clock) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime(clock)
    return environment


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, sort_keys: bool = False) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, sort_keys=sort_keys)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateRuntimeError(message)


def _strftime(clock: Clock) -> Callable[[str], str]:
    return lambda layout: datetime.fromtimestamp(clock.wall(), UTC).strftime(layout)
