"""Tool calls across the loss of workers: the front door over dispatch, and workers that are killed at every token."""

import asyncio
from typing import Any

import msgspec
import pytest

from router.api.auth import Keys
from router.api.core import ApiCore, ApiDeps
from router.api.rest.app import RestApp
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.entropy import SeededEntropy
from tandem.core.metrics import NullMeter
from tests.worlds import router_world
from tests.worlds.front_stage import Answer, Client, Inline
from tests.worlds.router_world import Spans, World
from tests.worlds.tool_stage import CALL, THINKING_TEMPLATE, WEATHER, gathered, renderer

TEXT = "hm, Oslo\n</think>\n\nLet me see.\n" + CALL + "\nSo much for that."
STEP = 4
TOKENS = -(-len(TEXT) // STEP)


def written(tokens: tuple[int, ...]) -> str:
    """The text after so many tokens; every third one's is held back until the next."""
    count = len(tokens)
    held = STEP - 1 if count % 3 == 0 else 0
    return TEXT + " 1" if count > TOKENS else TEXT[: max(0, STEP * count - held)]


def written_at(seed: int, sequence: int, position: int, last: bool) -> tuple[int, str]:
    """Where the token of this position goes on, and with what."""
    before = written((0,) * (position - 1))
    count = position + 1 if last else position
    after = written((0,) * count)[: -len(" 1")] if last else written((0,) * count)
    return len(before), after[len(before) :]


def door_of(world: World) -> ApiCore:
    return ApiCore(
        ApiDeps(
            generator=world.dispatcher,
            renderers={"demo": renderer(THINKING_TEMPLATE)},
            tokenizing=Inline(),
            clock=world.clock,
            entropy=SeededEntropy(1),
            meter=NullMeter(),
            recorder=Spans(),
        )
    )


def ask(kill_at: int | None, stream: bool) -> Answer:
    """The answer when the worker that generates is killed once so many characters have been said."""

    async def main(loop: VirtualLoop) -> Answer:
        world = World(loop)
        for name, role in (("p1", "prefill"), ("d1", "decode"), ("d2", "decode")):
            world.worker(name, role)
        await world.start()
        client = Client(RestApp(door_of(world), Keys(), lambda: b""))
        body: dict[str, Any] = {
            "model": "demo",
            "messages": [{"role": "user", "content": "Weather?"}],
            "tools": [WEATHER],
            "max_tokens": TOKENS,
            "stream": stream,
        }
        asked = asyncio.create_task(client.ask("POST", "/v1/chat/completions", msgspec.json.encode(body)))
        while kill_at is not None and not asked.done():
            await asyncio.sleep(0.005)
            running = next(iter(world.dispatcher._requests.values()), None)
            if running is not None and running.accepted >= kill_at and running.generated_on is not None:
                world.workers[running.generated_on.worker_id].die()
                break
        answer = await asked
        await world.stop()
        return answer

    return run(main, limit_s=600.0)


def message_of(answer: Answer, stream: bool) -> dict[str, Any]:
    if stream:
        return gathered(answer.events())
    message = answer.json()["choices"][0]["message"]
    calls = [{"id": each["id"], "type": each["type"], **each["function"]} for each in message["tool_calls"]]
    finish = answer.json()["choices"][0]["finish_reason"]
    kept = {name: message[name] for name in ("content", "reasoning_content")}
    return {**kept, "tool_calls": calls, "finish_reason": finish}


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_survives_the_loss_of_its_worker_at_any_token(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_world, "text_of", written)
    monkeypatch.setattr(router_world, "text_of_one", written_at)
    whole = message_of(ask(None, stream), stream)
    assert whole["reasoning_content"] == "hm, Oslo"
    assert whole["content"] == "Let me see.\nSo much for that."
    assert [(call["name"], call["arguments"]) for call in whole["tool_calls"]] == [
        ("get_weather", '{"city": "Oslo"}')
    ]
    for kill_at in range(1, TOKENS, 1 if stream else 7):
        assert message_of(ask(kill_at, stream), stream) == whole, kill_at
