"""A decode worker with vLLM is killed in the middle of streams: they go on elsewhere, equal to undisturbed ones."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import openai
import pytest
import pytest_asyncio

from tandem.apps.cli.member import Member
from tandem.apps.cli.router_client import RunningStatus, parse_status, send_request
from tests.vllm.serving import Serving, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

WORDS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string", "pattern": "^[a-z]{3,9}$"},
    "minItems": 40,
    "maxItems": 50,
}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "top_p": 0.95},
    "penalised": {"temperature": 0.8, "frequency_penalty": 0.6, "presence_penalty": 0.3},
    "json": {"temperature": 0.9, "extra_body": {"structured_outputs": {"json": WORDS}}},
}
MAX_TOKENS = 160
NEAR = 60
"""A stream counts for a kill after k tokens when it had at most so many more: streams do not begin at one moment."""
ROOM = {"TANDEM_SCHEDULER__MAX_BATCHED_TOKENS": "1024"}
"""All prompts in one or two steps, so that their streams begin together."""
TRIES = 3
END_S = 90.0
PLACED_S = 0.003
_NUMBERS = count(1)


@dataclass
class Heard:
    """One stream so far. `worker` decodes it, once that is known."""

    kind: str
    prompt: tuple[int, ...]
    request_id: str
    worker: str = ""
    tokens: list[str] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    counted: int = 0
    """Tokens, as the router told at the end."""

    @property
    def answer(self) -> tuple[list[str], str, str, int]:
        return self.tokens, self.text, self.finish, self.counted


def streams() -> list[Heard]:
    """Two of each kind, one after the other, so that with two decode workers each worker gets one of each."""
    kinds = [kind for kind in KINDS for _ in range(2)]
    return [Heard(kind, prompt(number), f"resume-{next(_NUMBERS)}") for number, kind in enumerate(kinds)]


def prompt(number: int) -> tuple[int, ...]:
    """Some end at the edge of a block, some do not."""
    return tuple(3 + (number * 37 + 11 * place * place) % 1500 for place in range(64 + 9 * (number // 2 % 2)))


async def listen(place: Serving, api: openai.AsyncOpenAI, heard: Heard, told: Callable[[], None]) -> None:
    """To the end, with blocks that nobody else finds."""
    parameters = dict(KINDS[heard.kind])
    more = {**parameters.pop("extra_body", {}), "cache_salt": heard.request_id}
    stream = await api.completions.create(
        model=place.model,
        prompt=list(heard.prompt),
        max_tokens=MAX_TOKENS,
        seed=len(heard.prompt),
        logprobs=1,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"X-Request-Id": heard.request_id},
        extra_body={**more, "ignore_eos": "structured_outputs" not in more},
        **parameters,
    )
    async for chunk in stream:
        for choice in chunk.choices:
            heard.tokens += (choice.logprobs.tokens if choice.logprobs else None) or ()
            heard.text += choice.text
            heard.finish = choice.finish_reason or heard.finish
        heard.counted = chunk.usage.completion_tokens if chunk.usage is not None else 0
        told()


async def locate(place: Serving, heard: Heard) -> None:
    """Ask the router until it has placed the request."""
    while not heard.worker and not heard.finish:
        status, body = await send_request(place.platform.target, "GET", f"/v1/requests/{heard.request_id}")
        found = parse_status(body) if status == 200 else None
        if isinstance(found, RunningStatus) and found.decode is not None:
            heard.worker = found.decode
        else:
            await asyncio.sleep(PLACED_S)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[Serving]:
    async with serving(["--prefill", "1", "--decode", "2"], ROOM) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(place: Serving) -> list[Heard]:
    """What every stream is when nothing happens to it."""
    asked = streams()
    async with place.client() as api:
        await asyncio.gather(*(listen(place, api, one, lambda: None) for one in asked))
    for one in asked:
        assert len(one.tokens) == one.counted > 60, one
    return asked


@pytest.mark.parametrize("after", [1, *(pytest.param(each, marks=pytest.mark.long) for each in (4, 7)), 40])
async def test_streams_of_a_killed_decode_worker_go_on_and_are_equal(
    place: Serving, undisturbed: list[Heard], after: int
) -> None:
    disturbed: set[str] = set()
    for _ in range(TRIES):
        disturbed |= await _kill_during_streams(place, undisturbed, after, set(KINDS) - disturbed)
        if disturbed == set(KINDS):
            return
    pytest.fail(f"in {TRIES} rounds only {sorted(disturbed)} were with the worker that was killed")


async def _kill_during_streams(place: Serving, undisturbed: list[Heard], after: int, wanted: set[str]) -> set[str]:
    """One kill, as soon as every stream has `after` tokens; gives the kinds that were with the victim, which has
    most of the wanted ones."""
    # That a worker had died was noticed while its streams went on.
    await place.whole()
    asked, news = streams(), asyncio.Event()
    async with place.client() as api, asyncio.timeout(END_S):
        # A worker that has just started has everything of grammars still to prepare.
        warm = [one for one in streams() if one.kind == "json"]
        await asyncio.gather(*(listen(place, api, one, lambda: None) for one in warm))
        listening = asyncio.gather(*(listen(place, api, one, news.set) for one in asked))
        listening.add_done_callback(lambda _ended: news.set())
        locating = asyncio.gather(*(locate(place, one) for one in asked))
        while not listening.done() and any(len(one.tokens) < after for one in asked):
            news.clear()
            await news.wait()
        near = [one for one in asked if not one.finish and len(one.tokens) <= after + NEAR]
        victim = _busiest(place, [one for one in near if one.kind in wanted])
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        await asyncio.gather(listening, locating)
    for one, right in zip(asked, undisturbed, strict=True):
        assert one.answer == right.answer, f"{one.kind} with {one.worker}, {victim.name} was killed"
    return {one.kind for one in near if one.worker == victim.name}


def _busiest(place: Serving, near: list[Heard]) -> Member:
    """The decode worker with most kinds of these streams."""
    decoders = [member for member in place.platform.members if member.role == "decode"]
    return max(decoders, key=lambda member: len({one.kind for one in near if one.worker == member.name}))
