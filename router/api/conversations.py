"""Conversations become tokens: rendered as a whole, tokenized where they are new."""

from collections.abc import Sequence
from typing import Final

from router.api.chat_templates.chat_template import Message, Tools
from router.api.chat_templates.render import Renderer
from router.api.chat_templates.templates import AMPLE, Bounds
from router.tokenization.conversation_cache import ConversationCache
from router.tokenization.tokenizing import Tokenizing
from tandem.core.clock import Clock
from tandem.core.metrics import Meter

_OPENING_CHARACTERS: Final = 2048
"""A first message alone, up to this length, is not kept: most never go on, and it is soon tokenized again."""


class Conversations:
    """The conversations of one model. It keeps at most about `bytes_max` bytes of text and tokens."""

    def __init__(
        self, renderer: Renderer, tokenizing: Tokenizing, clock: Clock, meter: Meter, bytes_max: int
    ) -> None:
        self._renderer = renderer
        self._tokenizing = tokenizing
        self._clock = clock
        self._meter = meter
        self._cache = ConversationCache(renderer.cuts, bytes_max) if renderer.cuts is not None else None

    @property
    def size_bytes(self) -> int:
        """Size of the cached conversations in bytes; 0 without a cache."""
        return self._cache.size_bytes if self._cache is not None else 0

    async def tokens(
        self, messages: Sequence[Message], salt: str, tools: Tools | None = None, bounds: Bounds = AMPLE
    ) -> bytes:
        """Packed token ids of a conversation: those of `Renderer.chat`. What is kept is found by rendered text, so
        tools are as good as any other part of it. Tenants (`salt`) do not share what is kept.

        Raises `invalid_request`, `unsupported_parameter`, `context_length_exceeded`, `queue_full`,
        `deadline_exceeded`.
        """
        end = self._clock.now() + bounds.within_s
        text = await self._renderer.render(messages, tools, bounds)
        left_s = end - self._clock.now()
        cache = self._cache
        if cache is None or (len(messages) == 1 and len(text) <= _OPENING_CHARACTERS):
            return await self._tokenizing.run(lambda: self._renderer.chat(text, salt), len(text), left_s)
        known = cache.find(salt, text)
        rest = text[known.characters :]
        new = await self._tokenizing.run(lambda: self._renderer.tokenize(rest), len(rest), left_s)
        packed = known.packed + new.packed
        cache.keep(salt, text, known, packed, new.places)
        self._meter.add("tandem_prompt_characters_total", float(known.characters), "known")
        self._meter.add("tandem_prompt_characters_total", float(len(rest)), "tokenized")
        return packed


class AllConversations:
    """The conversations of every model, each created on first use and kept as long as the model's renderer is the
    same."""

    def __init__(self, tokenizing: Tokenizing, clock: Clock, meter: Meter, bytes_max: int) -> None:
        self._tokenizing = tokenizing
        self._clock = clock
        self._meter = meter
        self._bytes_max = bytes_max
        self._known: dict[str, tuple[Renderer, Conversations]] = {}

    def of(self, model: str, renderer: Renderer) -> Conversations:
        """The conversations of one model."""
        known = self._known.get(model)
        if known is None or known[0] is not renderer:
            made = Conversations(renderer, self._tokenizing, self._clock, self._meter, self._bytes_max)
            known = self._known[model] = renderer, made
        return known[1]
