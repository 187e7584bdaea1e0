"""A model's chat template that would stop the router stops nothing but the request it was rendered for."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from router.api.chat_templates.render import FileRenderer
from router.api.chat_templates.supervisor import HelperTemplates
from tandem.apps.cli.router_client import send_request
from tandem.apps.client.http import Target
from tandem.model.directory import ModelDirectory, open_model
from tandem.process.system import SystemClock
from tests.unit.router.api.test_template_helper import BURNS, GROWS
from tests.worlds.chat_models import FAMILIES, tokenizer_of, write_files
from tests.worlds.front_server import serving
from tests.worlds.front_stage import Script, chat_body


@pytest.mark.parametrize(("source", "word"), [(BURNS, "burn"), (GROWS, "grow")])
async def test_a_template_beyond_its_bounds_stops_neither_health_nor_the_next_request(
    source: str, word: str, tmp_path: Path
) -> None:
    templates = HelperTemplates(SystemClock())
    write_files(tmp_path, tokenizer_of(FAMILIES[0]), source, {})
    renderer = FileRenderer(ModelDirectory(tmp_path, "greedy", open_model("demo").raw), templates)
    async with serving(Script(), renderer=renderer) as served:
        target = Target("127.0.0.1", served.port, False, "")

        async def chat(text: str) -> tuple[int, bytes]:
            body = chat_body(messages=[{"role": "user", "content": text}])
            return await send_request(
                target, "POST", "/v1/chat/completions", msgspec.json.encode(body), timeout_s=120.0
            )

        assert (await chat("hi"))[0] == 200
        order = list[str]()

        async def in_order(name: str, asked: "asyncio.Task[tuple[int, bytes]]") -> tuple[int, bytes]:
            answer = await asked
            order.append(name)
            return answer

        greedy = asyncio.create_task(in_order("greedy", asyncio.create_task(chat(word))))
        await asyncio.sleep(0.05)
        if word == "burn":
            status, _ = await in_order(
                "health", asyncio.create_task(send_request(target, "GET", "/health", timeout_s=120.0))
            )
            assert (status, order) == (200, ["health"])
        status, answer = await greedy
        error = msgspec.json.decode(answer)["error"]
        assert (status, error["code"], error["param"]) == (400, "invalid_request", "messages")
        # A process that gets little of a busy machine is given up by the wall clock before its own time is used up.
        why = error["message"].partition("the chat template of the model 'greedy': ")[2]
        assert why.startswith(("it took more than", "no answer came from the process that renders it"))
        status, answer = await chat("hi")
        assert (status, "was given up for the next" in msgspec.json.decode(answer)["error"]["message"]) == (400, True)
    templates.close()
