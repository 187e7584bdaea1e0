"""Router and worker processes with simulated engines, started one by one so that a test can end each as it likes."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

START_S = 60.0
KEYS = {"salt_key": "0123456789abcdef", "keys": {"key-one": "first", "key-two": "second"}}


class Running:
    """One process, and the event lines it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.told: dict[str, Any] = {}
        self._names: list[str] = []

    @classmethod
    async def start(cls, module: str, *flags: str, environment: Mapping[str, str] | None = None) -> "Running":
        engine = () if module == "kv_store" else ("--engine", "simulated")
        argv = (sys.executable, "-m", module, "--events", *engine, *flags)
        return cls(
            await asyncio.create_subprocess_exec(
                *argv,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
            )
        )

    async def until(self, event: str) -> None:
        """Wait for an event line; what events say is kept in `told`."""
        assert self.process.stdout is not None
        async with asyncio.timeout(START_S):
            while event not in self._names:
                line = json.loads(await self.process.stdout.readline())
                self._names.append(line.pop("event"))
                self.told |= {f"{self._names[-1]}.{key}": value for key, value in line.items()}

    async def end(self, number: int = signal.SIGKILL) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)
            await self.process.wait()


@dataclass
class Heard:
    """What a client has got of a stream: the last event id, everything by sequence, and how it ended."""

    request_id: str = ""
    last_id: str = ""
    text: dict[int, str] = field(default_factory=dict)
    finish: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[Any]] = field(default_factory=dict)
    usage: Any = None
    error: Any = None
    done: bool = False
    events: int = 0
    _fields: dict[str, str] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """One line of the stream. An event counts with the empty line after it, and its id with it."""
        name, _, value = line.partition(": ")
        if name:
            self._fields[name] = value
            return
        fields, self._fields = self._fields, {}
        self.last_id = fields.get("id", self.last_id)
        if fields.get("data") == "[DONE]":
            self.done = True
        elif "data" in fields:
            self._event(msgspec.json.decode(fields["data"]))

    def answer(self) -> tuple[Any, ...]:
        """What has to be equal to that of an undisturbed stream."""
        assert self.done, "there was no [DONE]"
        counts = None if self.usage is None else (self.usage["prompt_tokens"], self.usage["completion_tokens"])
        return self.text, self.finish, self.logprobs, counts

    def _event(self, event: Any) -> None:
        self.events += 1
        self.error = event.get("error")
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", ()):
            index = choice["index"]
            text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            self.text[index] = self.text.get(index, "") + text
            if choice["finish_reason"]:
                assert index not in self.finish, "two ends"
                self.finish[index] = choice["finish_reason"]
            if choice["logprobs"]:
                self.logprobs.setdefault(index, []).extend(_entries(choice["logprobs"]))


def _entries(logprobs: Any) -> list[Any]:
    if "content" in logprobs:
        return list(logprobs["content"])
    return list(zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["text_offset"], strict=True))


class Site:
    """The workers of one service, and as many routers over them as a test starts."""

    def __init__(self, root: Path, lease_s: float, step_s: float) -> None:
        self._root = root
        self._lease_s = lease_s
        self._step_s = step_s
        self._all: list[Running] = []
        self.workers: list[Running] = []
        self.client = httpx.AsyncClient(timeout=100.0)
        (root / "ticket").write_text("6b" * 32 + "\n")
        (root / "keys.json").write_text(json.dumps(KEYS))

    async def start(self) -> None:
        """One prefill and two decode workers."""
        for number, module in enumerate(("prefill_worker", "decode_worker", "decode_worker")):
            self.workers.append(await self._worker(module, f"w{number}"))
        for worker in self.workers:
            await worker.until("ready")
        members = [{"address": worker.told["listening.address"]} for worker in self.workers]
        (self._root / "workers").write_text(json.dumps({"workers": members}))

    async def router(self, *flags: str) -> Running:
        """A router that is ready; `url_of` says where."""
        router = await self._run(
            "router",
            *("--port", "0", "--grpc_port", "0", "--workers_file", str(self._root / "workers")),
            *("--ticket_key_file", str(self._root / "ticket"), "--api_keys", str(self._root / "keys.json")),
            *("--model_name", "tiny", "--core.placement.prefer", "disaggregated"),
            *("--core.deadlines.resumable_lease_s", str(self._lease_s), *flags),
        )
        await router.until("ready")
        return router

    async def ask(
        self,
        url: str,
        path: str,
        body: Any,
        until: int | None = None,
        named: str = "",
        heard: Heard | None = None,
    ) -> Heard:
        """Stream an answer to its end, or for `until` events; `named` gives the request its id. What comes is taken
        into `heard`, where another task can see it meanwhile."""
        heard = heard or Heard()
        content = {"model": "tiny", "stream": True, "resumable": True, "seed": 7, **body}
        headers = {**bearer("key-one"), **({"x-request-id": named} if named else {})}
        async with self.client.stream("POST", url + path, json=content, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            heard.request_id = answer.headers["x-request-id"]
            with contextlib.suppress(httpx.TransportError):
                await listen(answer, heard, until)
        return heard

    async def go_on(self, url: str, heard: Heard, key: str = "key-one", until: int | None = None) -> int:
        """Come back for the rest, or for `until` events of it; gives the status."""
        where = f"{url}/v1/requests/{heard.request_id}/events"
        headers = {**bearer(key), "last-event-id": heard.last_id}
        async with self.client.stream("GET", where, headers=headers) as answer:
            if answer.status_code == 200:
                await listen(answer, heard, None if until is None else heard.events + until)
            else:
                heard.error = msgspec.json.decode(await answer.aread())["error"]
            return answer.status_code

    async def blocks_in_use(self) -> int:
        """KV blocks of all workers that are not free."""
        used = 0.0
        for worker in self.workers:
            page = (await self.client.get(f"http://{worker.told['metrics.address']}/metrics")).text
            free = [line for line in page.splitlines() if line.startswith('tandem_kv_blocks{state="free"}')]
            used += BLOCKS - float(free[0].split()[-1]) if free else 0.0
        return round(used)

    async def all_free(self, within_s: float) -> None:
        """Wait until no block is in use."""
        async with asyncio.timeout(within_s):
            while await self.blocks_in_use():  # noqa: ASYNC110  (other processes' blocks)
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        await self.client.aclose()
        for running in self._all:
            await running.end()

    async def _worker(self, module: str, name: str) -> Running:
        return await self._run(
            module,
            *("--worker_id", name, "--model_name", "tiny", "--ticket_key_file", str(self._root / "ticket")),
            *("--socket_directory", str(self._root), "--metrics_bind", "127.0.0.1:0"),
            *("--simulated.blocks", str(BLOCKS), "--simulated.base_s", str(self._step_s)),
            *("--deadlines.resumable_lease_s", str(self._lease_s), "--deadlines.router_restart_s", "0"),
        )

    async def _run(self, module: str, *flags: str) -> Running:
        running = await Running.start(module, *flags)
        self._all.append(running)
        return running


BLOCKS = 256


@asynccontextmanager
async def site(root: Path, lease_s: float = 15.0, step_s: float = 0.01) -> AsyncIterator[Site]:
    """Workers that run; nothing of them or of the routers survives the test."""
    place = Site(root, lease_s, step_s)
    try:
        await place.start()
        yield place
    finally:
        await place.close()


async def begun(heard: Heard, events: int = 3) -> None:
    """Wait until a stream has brought so many events."""
    async with asyncio.timeout(START_S):
        while heard.events < events:  # noqa: ASYNC110  (what is waited for happens in other processes)
            await asyncio.sleep(0.01)


def url_of(router: Running) -> str:
    return f"http://{router.told['listening.address']}"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def listen(answer: httpx.Response, heard: Heard, until: int | None) -> None:
    """Take in the lines of a stream, up to a number of events."""
    async for line in answer.aiter_lines():
        heard.take(line)
        if until is not None and heard.events >= until:
            return
