"""Streams with tool calls that a client leaves and comes back to: at every place, and with every cut."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest

from router.dispatch.answer_log import AnswerLog
from router.generation import Generation, ServedModel, Sink, Usage
from tests.unit.router.api.test_front_resume import Kept, Leaving, ResumableScript, events
from tests.worlds.front_stage import MODEL, Stage, Started, logprobs, on_stage
from tests.worlds.outputs import Speaker
from tests.worlds.tool_stage import CALL, THINKING_TEMPLATE, WEATHER, gathered, renderer

TEXT = "hm, Oslo\n</think>\n\nLet me see.\n" + CALL + '\n<tool_call>{"nome": "oh no"} that was wrong'


@dataclass
class PieceScript(ResumableScript):
    """Says a text in pieces of `size` characters, a token each, and some tokens without any."""

    size: int = 1

    def start(self, generation: Generation, sink: Sink) -> Started:
        kept = self.kept[generation.request_id] = Kept(generation, AnswerLog(generation, sink))
        asyncio.get_running_loop().call_soon(self._say, kept)
        return Leaving(generation, sink, kept)

    def _say(self, kept: Kept) -> None:
        speaker = Speaker(kept.log)
        pieces = [TEXT[at : at + self.size] for at in range(0, len(TEXT), self.size)]
        spread = [each for piece in pieces for each in ("", piece)]
        for position, piece in enumerate(spread, 1):
            finish = "stop" if position == len(spread) else None
            drawn = logprobs(kept.generation.sampling.logprobs, 65)
            speaker.say(0, position, (65,), piece, drawn, finish)
        kept.log.done(Usage(kept.generation.prompt_tokens, len(spread), 0))

    def models(self) -> tuple[ServedModel, ...]:
        return (ServedModel(MODEL, 4096, (0,)),)


@pytest.mark.parametrize("size", [1, 2, 7, 40])
@pytest.mark.parametrize("logprobs", [False, True])
def test_what_comes_before_and_after_any_event_is_the_whole(size: int, logprobs: bool) -> None:
    script = PieceScript(size=size)

    async def test(stage: Stage) -> None:
        stage.door.services = replace(stage.door.services, resumer=script)
        more: dict[str, Any] = {"stream": True, "resumable": True, "tools": [WEATHER], "logprobs": logprobs}
        whole = events(await stage.chat(**more))
        name, said = whole[0][1]["id"], [event for _, event in whole]
        message = gathered(said)
        assert message["reasoning_content"] == "hm, Oslo"
        assert message["content"].startswith("Let me see.")
        assert message["content"].endswith("that was wrong")
        assert [call["arguments"] for call in message["tool_calls"]] == ['{"city": "Oslo"}']
        assert message["finish_reason"] == "tool_calls"
        for at in range(0, len(whole) - 1, 1 if size > 2 else 5):
            rest = [
                event
                for _, event in events(await stage.get(f"/v1/requests/{name}/events", last_event_id=whole[at][0]))
            ]
            assert gathered([*said[: at + 1], *rest]) == message, at
            assert rest[-2:] == said[-2:] or at >= len(whole) - 2
        again = [event for _, event in events(await stage.get(f"/v1/requests/{name}/events"))]
        assert gathered(again) == message

    on_stage(test, script, renderer=renderer(THINKING_TEMPLATE))
