"""The key that turns of one conversation have in common, by which they are known to belong together. Pure."""

from typing import Final

from router.api.openai.schema import ChatMessage, ChatRequest, CompletionRequest

_CHARACTERS: Final = 512
_MESSAGES: Final = 4


def affinity_key(request: ChatRequest | CompletionRequest) -> str:
    """The first characters of a conversation's messages up to its first question, which every later turn repeats.
    Empty for a completion, which is no conversation. Conversations that begin alike count as one."""
    if not isinstance(request, ChatRequest):
        return ""
    found = []
    for message in request.messages[:_MESSAGES]:
        found.append(_text(message)[:_CHARACTERS])
        if message.role == "user":
            break
    return "\x00".join(found)


def _text(message: ChatMessage) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    return next((part.text for part in content if part.text), "") if content else ""
