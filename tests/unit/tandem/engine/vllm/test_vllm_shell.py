"""The shell round vLLM on virtual time, over a stub of what has been loaded: images that are read slowly or for ever,
and reports of nothing."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.errors import TandemError
from tandem.core.kv import Layout, pack_tokens, unpack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.protocol import EngineInfo, EngineRequest, StepReport
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.engine import VllmEngine
from tandem.engine.vllm.names import BlockStored, EventBatch
from tandem.engine.vllm.requests import Expanded, VllmRequest
from tandem.engine.vllm.settings import VllmSettings

BLOCK = 4
ROOT = bytes(16)
QUEUE_S = 10.0
READING_S = 30.0
INFO = EngineInfo(
    model="m", model_hash="h", vocab_size=100, context_tokens=1000, eos_token_ids=(1,), blocks=100,
    layout=Layout("e", "p", "float32", 4, 1, BLOCK, 1, 1, 1, 1), features=("images",),
)  # fmt: skip


class Client:
    """vLLM, which says nothing by itself. An image is read for `reads_s`, and takes one place more."""

    block_tokens = BLOCK
    blocks = 100
    pids = ()

    def __init__(self, reads_s: float) -> None:
        self.reads_s = reads_s
        self.sent: list[VllmRequest] = []

    async def expand(self, prompt: bytes, _files: tuple[bytes, ...]) -> Expanded:
        await asyncio.sleep(self.reads_s)
        return Expanded(pack_tokens((*unpack_tokens(prompt), 9)), {"type": "multimodal"})

    def prepare(self, request: VllmRequest) -> VllmRequest:
        return request

    def attach(self, prepared: Any, transfer: Mapping[str, object]) -> None:
        raise AssertionError("there is no stage")

    async def add(self, request: VllmRequest) -> None:
        self.sent.append(request)

    async def abort(self, request_ids: list[str]) -> None:
        """It has forgotten them."""

    async def outputs(self) -> Any:
        await asyncio.Event().wait()


class Events:
    """Tells the same batch of cache events again and again, until `over`."""

    def __init__(self, batches: list[EventBatch]) -> None:
        self._batches = batches
        self.over = asyncio.Event()

    async def batches(self) -> AsyncIterator[EventBatch]:
        for batch in self._batches:
            await asyncio.sleep(0.001)
            yield batch
        self.over.set()
        await asyncio.Event().wait()


class Stub:
    """`loading.Loaded`, as far as the shell asks."""

    stage = None
    heartbeats = ()
    seconds_per_token = 1e-6

    def __init__(self, client: Client, events: Events | None = None) -> None:
        self.client = client
        self.events = events
        self.killed = False

    def info(self) -> EngineInfo:
        return INFO

    async def load(self) -> None:
        """It is loaded."""

    async def close(self) -> None:
        """Nothing is left."""

    def kill(self) -> None:
        self.killed = True

    async def why_gone(self, known: str | None) -> TandemError:
        return TandemError("engine_failed", known or "")


class Shell:
    """An engine that runs, and what it has reported."""

    def __init__(self, loop: VirtualLoop, directory: Path, stub: Stub) -> None:
        self.reports: list[StepReport] = []
        settings = VllmSettings(directory=str(directory), step_timeout_min_s=READING_S)
        self.clock = LoopClock(loop)
        self.engine = VllmEngine(settings, SchedulerSettings(queue_s=QUEUE_S), self.clock, None)
        self.engine._loaded = stub  # type: ignore[assignment]
        self.stub = stub

    async def start(self) -> "asyncio.Task[None]":
        await self.engine.start()
        return asyncio.create_task(self.engine.run(self.reports.append))

    def submit(self, count: int) -> list[EngineRequest]:
        """Works with an image each."""
        found = [
            EngineRequest(
                work_id=number,
                mode="local",
                prompt=pack_tokens((5, 6)),
                branches=(ChildRequest(0, 1),),
                sampling=Sampling(),
                stopping=Stopping(4, ignore_eos=True),
                root=ROOT,
                deadline=self.clock.now() + 600.0,
                private=True,
                images=(b"file",),
            )
            for number in range(1, count + 1)
        ]
        for each in found:
            self.engine.submit(each)
        return found

    @property
    def failed(self) -> dict[int, tuple[str, str | None]]:
        return {each.work_id: (each.code, each.param) for report in self.reports for each in report.failed}

    @property
    def progressed(self) -> set[int]:
        return {work_id for report in self.reports for work_id, _ in report.progressed}


def test_images_that_are_read_for_ever_end_the_engine_and_are_not_tried_elsewhere(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        shell = Shell(loop, tmp_path, Stub(Client(reads_s=3600.0)))
        running = await shell.start()
        shell.submit(3)
        await asyncio.sleep(READING_S - 1)
        assert not shell.failed
        assert shell.progressed == {1, 2, 3}
        with pytest.raises(TandemError, match="images of one request for more than 30 s") as ended:
            await running
        assert ended.value.code == "engine_failed"
        assert shell.stub.killed
        # The others are for whoever has lost an engine with them: they are moved.
        assert shell.failed == {1: ("invalid_request", "messages")}

    run(main, limit_s=4 * READING_S)


def test_images_that_are_read_slowly_are_waited_for_and_counted_as_waiting(tmp_path: Path) -> None:
    """Each takes longer than a work may wait without anything getting on before it."""

    async def main(loop: VirtualLoop) -> None:
        client = Client(reads_s=2 * QUEUE_S)
        shell = Shell(loop, tmp_path, Stub(client))
        await shell.start()
        shell.submit(3)
        await asyncio.sleep(QUEUE_S)
        loads = [report.load for report in shell.reports if report.load is not None]
        assert loads[-1].waiting == 3
        # Of the first in vLLM, which says nothing here, nobody is to be told that vLLM is silent.
        await asyncio.sleep(QUEUE_S + 1)
        shell.engine.cancel(1)
        await asyncio.sleep(2 * QUEUE_S)
        shell.engine.cancel(2)
        await asyncio.sleep(2 * QUEUE_S)
        assert [unpack_tokens(each.tokens) for each in client.sent] == [(5, 6, 9)] * 3
        assert not shell.failed
        await shell.engine.stop()

    run(main, limit_s=20 * QUEUE_S)


def test_cache_events_that_change_nothing_are_told_to_nobody(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        stored = BlockStored([b"hash"], None, [5, 6, 7, 8], BLOCK, [[ROOT.hex()]])
        events = Events([EventBatch(0.0, [stored])] * 5)
        shell = Shell(loop, tmp_path, Stub(Client(0.0), events))
        await shell.start()
        await events.over.wait()
        assert sum(len(report.kv.stored) for report in shell.reports) == 1
        told = [report for report in shell.reports if report.load is None]
        assert all(report.kv.stored or report.kv.removed for report in told)
        assert len(shell.reports) <= 2, "the names, and figures beside them or before"
        await shell.engine.stop()

    run(main, limit_s=10.0)
