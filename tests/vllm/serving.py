"""Whole platforms with vLLM workers, as `tandem up` starts them: router and workers are processes of their own."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import openai

from tandem.apps.cli.display import LineDisplay
from tandem.apps.cli.member import Member
from tandem.apps.cli.platform import Platform
from tandem.apps.cli.request_trace import RequestTrace, assemble_trace
from tandem.apps.cli.router_client import send_request, spans_of
from tandem.apps.cli.supervisor import ROUTER, Supervisor
from tandem.apps.cli.up_options import parse
from tandem.apps.client.http import Target
from tandem.core.errors import TandemError
from tests.vllm.lending import DEMO

START_S = 400.0
"""Several engines start at once on few cores."""
WHOLE_S = START_S
"""Who takes the place of a killed worker starts as slowly."""
STORY_S = 10.0
PAGE_S = 20.0
LOOK_S = 0.1
ONE_CORE = {
    "TANDEM_VLLM__THREADS": "1",
    "TANDEM_SCHEDULER__MAX_BATCHED_TOKENS": "64",
    "TANDEM_SCHEDULER__MAX_SEQUENCES": "16",
    "TANDEM_BLOCK_TOKENS": "32",
    "TANDEM_VLLM__BLOCKS": "129",
    "TANDEM_STAGE__BLOCKS": "256",
    "TANDEM_CORE__PLACEMENT__PREFER": "disaggregated",
}
"""Small engines whose prompts take several chunks; every prompt is handed off where there is a prefill worker."""


class Serving:
    """A platform that answers."""

    def __init__(self, platform: Platform, lines: list[str]) -> None:
        self.platform = platform
        self.lines = lines
        """What the platform has said of its processes."""
        self.model = platform.service.model_name

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.platform.url}/v1", api_key="any", max_retries=0, timeout=120.0)

    async def story(self, request_id: str) -> RequestTrace:
        """What `tandem explain` tells, once every worker has reported."""
        async with asyncio.timeout(STORY_S):
            while True:
                try:
                    story = assemble_trace(await spans_of(self.platform.target, request_id))
                except TandemError:
                    await asyncio.sleep(0.02)
                    continue
                if story.named("decode"):
                    return story
                await asyncio.sleep(0.02)

    def member(self, name: str) -> Member:
        return next(member for member in self.platform.members if member.name == name)

    async def whole(self) -> None:
        """Until every worker serves, those that take the place of killed ones too, and every pair that could hand a
        prompt over is proved: before that a router rightly lets a prompt be computed where it is generated from."""
        members = self.platform.members
        prefills, decodes = (sum(member.role == role for member in members) for role in ("prefill", "decode"))
        wanted = {"workers": len(members) - 1, "pairs": prefills * decodes}
        async with asyncio.timeout(WHOLE_S):
            while True:
                ready = all(member.state == "ready" for member in members)
                if ready and await self._usable() == wanted:
                    return
                await asyncio.sleep(LOOK_S)

    async def _usable(self) -> dict[str, int]:
        """The router's counts of workers with links and of pairs that work. Empty while it does not answer."""
        try:
            _, page = await send_request(self.platform.target, "GET", "/metrics")
        except TandemError:
            return {}
        usable = {"workers": "ready", "pairs": "closed"}
        return {
            name: sum(
                round(float(count))
                for labels, count in re.findall(rf"^tandem_{name}{{(.*)}} (\S+)$", page.decode(), re.MULTILINE)
                if f'state="{state}"' in labels
            )
            for name, state in usable.items()
        }

    async def figure(self, worker: str, sample: str, holds: Callable[[float], bool]) -> float:
        """A sample of a worker's metrics page, as soon as it is as wanted: figures come with later reports."""
        (value,) = await self.figures(worker, (sample,), holds)
        return value

    async def figures(self, worker: str, samples: Sequence[str], holds: Callable[..., bool]) -> list[float]:
        """Samples of one look at a worker's metrics page, as soon as they are as wanted together."""
        host, _, port = self.member(worker).metrics.rpartition(":")
        values = list[float]()
        for _ in range(round(PAGE_S / LOOK_S)):
            _, page = await send_request(Target(host, int(port), False, ""), "GET", "/metrics")
            found = [re.search(rf"^{re.escape(sample)} (\S+)$", page.decode(), re.MULTILINE) for sample in samples]
            values = [float(each[1]) for each in found if each is not None]
            if len(values) == len(samples) and holds(*values):
                return values
            await asyncio.sleep(LOOK_S)
        raise AssertionError(f"{', '.join(samples)} of {worker}: {values}")

    async def at_rest(self) -> None:
        """Until no worker has a block in use or under a lease."""
        for member in self.platform.members:
            if member.role != ROUTER:
                for state in ("used", "exported"):
                    await self.figure(member.name, f'tandem_kv_blocks{{state="{state}"}}', lambda blocks: blocks == 0)


def _as_said(_platform: Platform) -> None:
    """Nothing is changed."""


@asynccontextmanager
async def serving(
    flags: Sequence[str],
    environment: Mapping[str, str] | None = None,
    model: os.PathLike[str] = DEMO,
    *,
    drills: bool = False,
    change: Callable[[Platform], None] = _as_said,
) -> AsyncIterator[Serving]:
    """A platform of `tandem up --engine vllm` with these flags and settings; taken down again at the end.

    `change` gets it before anything starts.
    """
    given = ["--engine", "vllm", "--model", str(model), "--dtype", "float32", *flags, "--port", "0"]
    # What it is compared with draws neutrally, too.
    given += ["--generation-config", "vllm"]
    settings = {**os.environ, **ONE_CORE, **(environment or {})}
    platform = Platform(parse(given).service, settings, drills=drills)
    change(platform)
    lines: list[str] = []
    up: asyncio.Future[Serving] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def serve(supervisor: Supervisor) -> None:
        await platform.ready(supervisor, START_S)
        up.set_result(Serving(platform, lines))
        await over.wait()

    running = asyncio.create_task(platform.run(LineDisplay(lines.append), serve))
    try:
        await asyncio.wait((running, up), return_when=asyncio.FIRST_COMPLETED)
        if not up.done():
            await running
        yield up.result()
    finally:
        over.set()
        await asyncio.wait((running,))
        platform.directory.remove()
    running.result()


def token_ids(choice: Any) -> list[int]:
    """The ids of an answer that was asked for with `return_token_ids`."""
    found = choice.token_ids
    assert isinstance(found, list)
    return found
