"""Ranks without an engine: they say hello to a stage and do with its memory what vLLM's would."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.protocol import EngineRequest, FetchJob, StepReport
from tandem.engine.vllm.canonical import PageFormat, RankPart, head_units
from tandem.engine.vllm.conduit_messages import CONDUIT_VERSION, Began, Ended, LoadFinished, RankHello, Saved
from tandem.engine.vllm.connector.conduit_client import ConduitClient
from tandem.engine.vllm.connector.load_table import EndedLoad, LoadTable
from tandem.engine.vllm.connector.orders import LoadOrder, PageTarget
from tandem.engine.vllm.stage import Stage
from tandem.engine.vllm.stage_params import StageParams, stage_params
from tandem.engine.vllm.stage_settings import StageSettings
from tandem.process.system import SystemClock

ROOT = bytes(range(16))
BLOCK_TOKENS = 8
LIMIT_S = 10.0


def page_format(**changes: object) -> PageFormat:
    """Four layers of two heads, 8 positions of 2 x 4 float32 values per page."""
    fields: dict[str, object] = {
        "engine": "vllm-test",
        "packing": "keys-values",
        "isa": "",
        "dtype": "float32",
        "item_bytes": 4,
        "block_tokens": BLOCK_TOKENS,
        "layers": 4,
        "units": 2,
        "units_per_head": 1,
        "page_bytes": BLOCK_TOKENS * 2 * 4 * 4,
    }
    return PageFormat(**{**fields, **changes})  # type: ignore[arg-type]


class FakeRank:
    """One rank: `tensor` ranks share the heads, `rank` counts from 0."""

    def __init__(self, path: str, rank: int, tensor: int, pages: PageFormat) -> None:
        units, writes = head_units(pages.units, tensor, rank)
        self.part = RankPart(0, pages.layers, units, writes)
        self.book = LoadTable()
        self.pages = pages
        self.client = ConduitClient(path, RankHello(CONDUIT_VERSION, rank, tensor, os.getpid(), pages, self.part))
        self._rank = rank

    def listen(self) -> None:
        for message in self.client.receive():
            self.book.hear(message)
        if self.client.lost:
            self.book.lose()

    def save(self, params: StageParams, indices: range | tuple[int, ...], fill: Callable[[int], bytes]) -> None:
        """Write this rank's pages of these blocks, each byte of them `fill(index)`'s."""
        self.listen()
        memory = self.client.mapped()
        done = []
        for index in indices:
            if index in params.held or self.book.held(params.work, index):
                continue
            slot, size = memory.block(params.slots[index]), self.pages.page_bytes
            for layer in range(self.pages.layers):
                for unit in self.part.units if self.part.writes else ():
                    at = (layer * self.pages.units + unit) * size
                    slot[at : at + size] = fill(index)[at : at + size]
            self.book.saved(params.work, index)
            done.append(index)
        self.client.send(Saved(params.work, tuple(done)))

    def begin(self, params: StageParams, cached: int = 0) -> None:
        """The engine gave the request of `params` its blocks: number 100 + index."""
        first, end = cached // BLOCK_TOKENS, -(-params.load // BLOCK_TOKENS)
        targets = tuple(PageTarget(index, params.slots[index], 100 + index) for index in range(first, end))
        self.book.begin(LoadOrder(f"r{params.work}", params.work, params.sequence, targets, params.first))
        self.client.send(Began(params.work, params.sequence, cached, params.load - cached))

    def step(self) -> list[EndedLoad]:
        """What is over now; what has landed counts as copied."""
        self.listen()
        self.book.copied(self.book.next_copies())
        ended = self.book.take()
        for load in ended:
            self.client.send(LoadFinished(load.work, load.sequence, load.copied))
        return ended

    def end(self, work: int, sequence: int = 0) -> None:
        self.client.send(Ended(work, sequence))


class StageWorld:
    """A stage, its ranks, and what it said."""

    def __init__(self, stage: Stage, ranks: list[FakeRank]) -> None:
        self.stage = stage
        self.ranks = ranks
        self.params: dict[int, StageParams | None] = {}
        self.fetches: dict[int, FetchJob] = {}
        self.refused: dict[int, TandemError] = {}
        self.names: dict[bytes, None] = {}
        self.lost: list[str] = []
        self._next = 0
        stage.on_admitted = self._admitted
        stage.on_refused = self.refused.__setitem__
        stage.on_report = self._report
        stage.on_lost = self.lost.append

    def _admitted(self, work: int, params: dict[str, object] | None) -> None:
        self.params[work] = stage_params(params)

    def _report(self, report: StepReport) -> None:
        self.fetches.update({job.work_id: job for job in report.fetches})
        self.names.update(dict.fromkeys(report.kv.stored))
        for name in report.kv.removed:
            self.names.pop(name)

    async def until(self, holds: Callable[[], object]) -> None:
        """Look again and again: ranks are told by the kernel, and tell nobody here."""
        async with asyncio.timeout(LIMIT_S):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def admitted(self, work: int) -> StageParams:
        await self.until(lambda: work in self.params)
        params = self.params[work]
        assert params is not None
        return params

    def open(
        self,
        prompt: tuple[int, ...],
        mode: str,
        *,
        save: bool = False,
        within_s: float = LIMIT_S,
        branches: tuple[ChildRequest, ...] = (ChildRequest(0, 1),),
        private: bool = False,
        priority: int = 0,
    ) -> int:
        self._next += 1
        lease = f"lease-{self._next}" if mode == "prefill" else ""
        deadline = SystemClock().now() + within_s
        work = EngineRequest(
            work_id=self._next,
            mode=mode,
            prompt=pack_tokens(prompt),
            branches=branches,
            sampling=Sampling(),
            stopping=Stopping(16),
            root=ROOT,
            deadline=deadline,
            lease_id=lease,
            lease_s=5.0,
            private=private,
            priority=priority,
        )
        self.stage.open(work, save)
        return self._next


@asynccontextmanager
async def stage_world(
    *,
    blocks: int = 32,
    tensor: int = 1,
    epoch: int = 3,
    settings: StageSettings | None = None,
    ready_s: float = LIMIT_S,
) -> AsyncIterator[StageWorld]:
    """A ready stage. At the end its books must balance."""
    stage = Stage(settings or StageSettings(blocks=blocks), SystemClock(), epoch)
    await stage.start()
    config = stage.transfer_config()["kv_connector_extra_config"]
    assert isinstance(config, dict)
    ranks = [FakeRank(config["socket"], rank, tensor, page_format()) for rank in range(tensor)]
    try:
        await stage.ready(ready_s, 1)
        yield StageWorld(stage, ranks)
        stage.books.check()
    finally:
        for rank in ranks:
            rank.client.close()
        await stage.stop()
