"""Clients that keep asking while something happens, and remember every answer that was not whole."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

_ANSWER_S = 60.0
_FOLLOW_S = 0.2


@dataclass(frozen=True)
class Heard:
    """One answer: how it failed ("" if it did not), and its times in seconds."""

    failure: str
    first_s: float
    whole_s: float


@dataclass
class Load:
    """`clients` at a time stream `tokens` from `model`, over the routers in turn, from enter to exit.

    Where `routers` is a function, it is asked again and again, as the endpoints of a Service change.
    """

    routers: Sequence[str] | Callable[[], Sequence[str]]
    model: str
    clients: int = 4
    tokens: int = 24
    pause_s: float = 0.05
    prompt: str = "Tell me about this number."
    heard: list[Heard] = field(default_factory=list)

    def __enter__(self) -> "Load":
        self._over = threading.Event()
        self._numbers = itertools.count()
        self._urls = self._known()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join(_ANSWER_S + 10.0)
        assert not self._thread.is_alive(), "clients still wait"

    @property
    def failures(self) -> list[str]:
        return [heard.failure for heard in self.heard if heard.failure]

    def several(self, more: int = 10, bound_s: float = 60.0) -> None:
        """Wait until so many more answers have come."""
        target, end = len(self.heard) + more, time.monotonic() + bound_s
        while len(self.heard) < target:
            assert time.monotonic() < end, f"{len(self.heard)} of {target} answers within {bound_s:g} s"
            time.sleep(0.05)

    async def _run(self) -> None:
        async with httpx.AsyncClient(timeout=_ANSWER_S, trust_env=False) as client:
            await asyncio.gather(self._follow(), *(self._client(client) for _ in range(self.clients)))

    def _known(self) -> Sequence[str]:
        return self.routers() if callable(self.routers) else self.routers

    async def _follow(self) -> None:
        while callable(self.routers) and not self._over.is_set():
            self._urls = await asyncio.to_thread(self._known) or self._urls
            await asyncio.sleep(_FOLLOW_S)

    async def _client(self, client: httpx.AsyncClient) -> None:
        while not self._over.is_set():
            self.heard.append(await self._one(client, next(self._numbers)))
            await asyncio.sleep(self.pause_s)

    async def _one(self, client: httpx.AsyncClient, number: int) -> Heard:
        """Streamed; whole only with a reason for its end and the closing line."""
        begun, first_s, tokens, ended, last = time.monotonic(), 0.0, 0, False, ""
        body = {
            "model": self.model,
            "stream": True,
            "max_tokens": self.tokens,
            "messages": [{"role": "user", "content": f"{number} {self.prompt}"}],
        }
        url = f"{self._urls[number % len(self._urls)]}/v1/chat/completions"
        try:
            async with client.stream("POST", url, json=body) as answer:
                if answer.status_code != 200:
                    text = (await answer.aread()).decode(errors="replace")
                    return Heard(f"{answer.status_code} {text[:300]}", 0.0, time.monotonic() - begun)
                async for line in answer.aiter_lines():
                    if not line.startswith("data: "):
                        continue
                    last = line
                    first_s = first_s or time.monotonic() - begun
                    tokens += '"content":' in line
                    ended = ended or '"finish_reason":"' in line
        except httpx.HTTPError as error:
            return Heard(f"{type(error).__name__} after {tokens} tokens: {error}", first_s, time.monotonic() - begun)
        whole = ended and last == "data: [DONE]"
        return Heard(
            "" if whole else f"cut off after {tokens} tokens: {last[:300]}", first_s, time.monotonic() - begun
        )
