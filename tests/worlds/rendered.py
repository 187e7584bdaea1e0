"""Conversations rendered where they are asked for, for tests of what comes after that."""

from collections.abc import Coroutine, Hashable, Sequence
from typing import Any, TypeVar

from router.api.chat_templates.chat_template import Message, Tools
from router.api.chat_templates.render import Renderer

T = TypeVar("T")


def done(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("it waited")


def rendered(renderer: Renderer, messages: Sequence[Message], tools: Tools | None = None) -> str:
    """The text of a conversation, with a renderer whose templates are rendered inline."""
    return done(renderer.render(messages, tools))


def chat(renderer: Renderer, messages: Sequence[Message], owner: Hashable | None = None) -> bytes:
    """Its tokens, made at once."""
    return renderer.chat(rendered(renderer, messages), owner)
