"""A request whose right answer can be known beforehand: its prompt and seed are fixed."""

from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True)
class ChaosRequest:
    """A request. `name` is equal for requests with equal answers; `n` sequences of at most `max_tokens` each. The
    prompt is text or, unless it is a chat, token ids."""

    name: str
    chat: bool
    prompt: str | tuple[int, ...]
    max_tokens: int
    n: int
    seed: int
    temperature: float
    top_p: float = 1.0

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, model: str, cache_salt: str, *, stream: bool = True, resumable: bool = False) -> bytes:
        """The JSON to send. Blocks are found in caches under an equal salt only; the empty one is no salt."""
        asked: dict[str, Any] = {
            "model": model,
            "n": self.n,
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "seed": self.seed,
            "temperature": self.temperature,
            "top_p": self.top_p,
        }
        if self.chat:
            asked["messages"] = [{"role": "user", "content": self.prompt}]
        else:
            asked["prompt"] = self.prompt
        if cache_salt:
            asked["cache_salt"] = cache_salt
        if stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        if resumable:
            asked["resumable"] = True
        return msgspec.json.encode(asked)
