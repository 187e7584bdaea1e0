"""One side of a comparison of two revisions: vLLM's stage and connector, without vLLM, with the tree that it runs in.

Started by `benchmarks.stage_copies`, once for each tree. A line of JSON on standard input says what to measure, one
on standard output what came of it. A hand-off has the processes that it has in production: two workers, and beside
each of them an engine's rank, which computes by sleeping. It uses only what the stage and the connector of both
revisions have.
"""

import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Final

import torch

from kv_transfer.export import Exporter
from kv_transfer.fetch import Fetcher
from kv_transfer.transport.shm import ShmSettings, ShmTransport
from tandem.core.deadlines import Deadlines
from tandem.core.messages import RemoteKv
from tandem.core.metrics import NullMeter
from tandem.engine.memory import HostMemory
from tandem.engine.protocol import FirstTokens
from tandem.engine.vllm.canonical import RankPart, SlotShape
from tandem.engine.vllm.conduit_messages import CONDUIT_VERSION, RankHello
from tandem.engine.vllm.connector import worker_side as vllm_worker
from tandem.engine.vllm.connector.conduit_client import ConduitClient
from tandem.engine.vllm.connector.orders import LoadOrder, PageTarget, SaveOrder, StepOrders
from tandem.engine.vllm.stage import Stage
from tandem.engine.vllm.stage_settings import StageSettings
from tandem.process.system import SystemClock
from tests.contract.block_space import KEYRING, ticket
from tests.worlds.stage_ranks import StageWorld, page_format

try:
    from tandem.engine.digest_threads import DigestThreads
    from tandem.engine.vllm.connector.cache_pages import CachePages
    from tandem.engine.vllm.connector.host_copies import HostCopies
    from tandem.engine.vllm.connector.load_pace import LoadPace

    OLD = False
except ImportError:
    PageCopier = import_module("tandem.engine.vllm.connector.page_copy").PageCopier
    OLD = True

SCRIPT: Final = str(Path(__file__).resolve())
BLOCK_TOKENS: Final = 16
LAYERS, UNITS, CONTENT = 8, 8, 256
"""Of an 8B model a quarter of the layers: 512 KiB per block, in pages of 8 KiB."""
PAGE_BYTES: Final = BLOCK_TOKENS * CONTENT * 2
READY_S: Final = 60.0
END_S: Final = 10.0
STAGE_BLOCKS: Final = 900
FIRST: Final = FirstTokens(((0, 7, None),))


def begin(*arguments: str) -> list[str]:
    """The command that runs this script with the tree of now, which comes before the script's own folder."""
    argv = [SCRIPT, *arguments]
    started = f"import sys, runpy; sys.argv = {argv!r}; runpy.run_path({SCRIPT!r}, run_name='__main__')"
    return [sys.executable, "-P", "-c", started]


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


# ---- copies ---------------------------------------------------------------------------------------------------


def made_cache(order: tuple[int, ...], shape: tuple[int, ...], *, apart: bool) -> list[torch.Tensor]:
    whole = torch.randint(-30_000, 30_000, [shape[axis] for axis in order], dtype=torch.int16)
    logical = whole.permute([order.index(axis) for axis in range(len(shape))])
    return [layer.clone(memory_format=torch.preserve_format) if apart else layer for layer in logical]


class SlotCopier:
    """The copies of this tree between a cache and slots."""

    def __init__(self, cache: list[torch.Tensor], blocks: int, part: RankPart, shape: SlotShape) -> None:
        self.block_bytes = part.layer_count * len(part.units) * shape.page_bytes
        self.copies: Any = (
            PageCopier(cache, blocks, part, shape) if OLD else HostCopies(CachePages(cache, blocks, part, shape))
        )

    def save(self, targets: list[PageTarget]) -> None:
        if OLD:
            self.copies.save(targets)
        else:
            self.copies.save(targets, self.copies.groups[0])

    def side(self, client: ConduitClient) -> Any:
        more = () if OLD else (LoadPace(0.05),)
        return vllm_worker.TandemConnectorWorker(0, client, self.copies, self.block_bytes, *more)


class Layouts:
    """Rates of copies on caches that are made when they are asked for first."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[SlotCopier, HostMemory, dict[str, list[PageTarget]]]] = {}
        self._flat = torch.ones(128 << 20, dtype=torch.uint8), torch.ones(128 << 20, dtype=torch.uint8)

    def rate(self, what: dict[str, Any]) -> float:
        """GB/s, the median of three."""
        if what["how"] == "memcpy":
            here, there = self._flat
            return _rate(len(here), lambda: there.copy_(here))
        mover, _, targets = self._of(what)
        some = targets[what["order"]]
        move = mover.save if what["how"] == "save" else mover.copies.load
        return _rate(len(some) * mover.block_bytes, lambda: move(some))

    def _of(self, what: dict[str, Any]) -> tuple[SlotCopier, HostMemory, dict[str, list[PageTarget]]]:
        if what["name"] not in self._made:
            for _, memory, _ in self._made.values():
                memory.close()  # An open descriptor keeps every page of it.
            self._made.clear()
            layers, units, tensor, content = what["layers"], what["units"], what["tensor"], what["content"]
            page = BLOCK_TOKENS * content * 2
            blocks = max(16, min(2048, (96 << 20) // (layers * units * page)))
            cache = made_cache(
                tuple(what["axes"]), (layers, blocks, units, BLOCK_TOKENS, content), apart=what["apart"]
            )
            shape = SlotShape(layers, units * tensor, page)
            own = tuple(range(units)) if tensor == 1 else tuple(range(units, 2 * units))
            mover, memory = (
                SlotCopier(cache, blocks, RankPart(0, layers, own), shape),
                HostMemory(shape.slot_bytes, blocks),
            )
            mover.copies.map_slots(memory.buffer)
            scattered = random.Random(1).sample(range(blocks), blocks)
            targets = {
                "neighbours": [PageTarget(index, index, index) for index in range(blocks)],
                "scattered": [PageTarget(index, slot, index) for index, slot in enumerate(scattered)],
            }
            for each in targets.values():  # Every page is touched once.
                mover.save(each)
                mover.copies.load(each)
            self._made[what["name"]] = mover, memory, targets
        return self._made[what["name"]]


def _rate(size: int, work: Callable[[], object]) -> float:
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return size / statistics.median(taken) / 1e9


# ---- a rank ---------------------------------------------------------------------------------------------------


def run_rank(path: str) -> None:
    """Computes prompts by sleeping, or loads them, as it is told."""
    pages = page_format(
        item_bytes=2, dtype="bfloat16", block_tokens=BLOCK_TOKENS, layers=LAYERS, units=UNITS, page_bytes=PAGE_BYTES
    )
    part = RankPart(0, LAYERS, tuple(range(UNITS)))
    client = ConduitClient(path, RankHello(CONDUIT_VERSION, 0, 1, 0, pages, part))
    side: Any = None
    for line in sys.stdin:
        told = json.loads(line)
        blocks = len(told["slots"])
        if side is None:
            torch.manual_seed(1)
            cache = made_cache((0, 1, 2, 3, 4), (LAYERS, blocks, UNITS, BLOCK_TOKENS, CONTENT), apart=False)
            right = [layer.clone() for layer in cache]
            side = SlotCopier(cache, blocks, part, SlotShape(LAYERS, UNITS, PAGE_BYTES)).side(client)
        if told["do"] == "prefill":
            tell(t=_compute(side, told))
            continue
        for layer in cache:
            layer.zero_()
        tell(ready=True)
        tell(t=_load(side, told))
        assert all(torch.equal(one, other) for one, other in zip(cache, right, strict=True)), "other bytes came"
    if side is not None:
        side.close()


def _report(side: Any, finished: set[str]) -> set[str]:
    """Requests whose load is reported."""
    loaded: set[str] = side.over(finished) if OLD else side.report(finished)[1]
    return loaded


def _step(side: Any, orders: StepOrders, compute_s: float = 0.0) -> float:
    """Gives when the step had computed."""
    side.begin_step(orders)
    time.sleep(compute_s)
    computed = time.monotonic()
    side.end_step()
    return computed


def _compute(side: Any, told: dict[str, Any]) -> float:
    """Compute a prompt in steps; gives when the last had computed."""
    work, slots, request = told["work"], told["slots"], f"r{told['work']}"
    tracked, computed = {request: (work, 0)}, 0.0
    for first in range(0, len(slots), told["chunk"]):
        some = range(first, min(first + told["chunk"], len(slots)))
        targets = tuple(PageTarget(index, slots[index], index) for index in some)
        save = SaveOrder(work, targets) if OLD else SaveOrder(request, work, targets)  # type: ignore[call-arg]
        computed = _step(
            side, StepOrders(saves=(save,), tracked=tracked), told["chunk_s"] * len(some) / told["chunk"]
        )
        _report(side, set())
        tracked = {}
    _end(side, request)
    return computed


def _load(side: Any, told: dict[str, Any]) -> float:
    """Load a prompt; gives when it is reported."""
    work, request = told["work"], f"r{told['work']}"
    targets = tuple(PageTarget(index, slot, index) for index, slot in enumerate(told["slots"]))
    order = LoadOrder(request, work, 0, targets, first=True, loading=told["load"])
    orders = StepOrders(loads=(order,), tracked={request: (work, 0)}, idle=True)
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        _step(side, orders)
        orders = StepOrders(idle=True)
        if request in _report(side, set()):
            assert not side.failed_blocks()
            loaded = time.monotonic()
            _end(side, request)
            return loaded
    raise TimeoutError(f"a load was not over within {READY_S} s")


def _end(side: Any, request: str) -> None:
    _step(side, StepOrders(idle=True))
    _report(side, {request})


# ---- workers --------------------------------------------------------------------------------------------------


class ScriptProcess:
    """A process of this script, and lines to and from it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, *arguments: str) -> "ScriptProcess":
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*begin(*arguments), stdin=pipe, stdout=pipe))

    def tell(self, **what: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")

    async def told(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(2 * READY_S):
            told: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return told

    async def end(self) -> None:
        """It ends with its input; if it does not, it is killed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


class StageWorker:
    """A stage with its rank beside it."""

    def __init__(self, epoch: int) -> None:
        self.clock = SystemClock()
        self.stage = Stage(StageSettings(blocks=STAGE_BLOCKS), self.clock, epoch)
        self.world = StageWorld(self.stage, [])
        self.rank: ScriptProcess

    async def start(self) -> None:
        await self.stage.start()
        told = self.stage.transfer_config()["kv_connector_extra_config"]
        assert isinstance(told, dict)
        self.rank = await ScriptProcess.start("rank", told["socket"])
        await self.stage.ready(READY_S, *(() if OLD else (1,)))

    async def stop(self) -> None:
        await self.rank.end()
        await self.stage.stop()


async def lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def prompt(tokens: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(3, 30_000), k=tokens))


async def run_prefill() -> None:
    """Computes prompts and exports their blocks."""
    worker = StageWorker(11)
    await worker.start()
    transport = ShmTransport(ShmSettings())
    exporter = Exporter(worker.stage, KEYRING, worker.clock, Deadlines())
    tell(address=await transport.serve(exporter), epoch=worker.stage.epoch)
    given = await lines()
    while line := await given.readline():
        told = json.loads(line)
        work = worker.world.open(prompt(told["tokens"], told["seed"]), "prefill")
        params = await worker.world.admitted(work)
        tell(lease=f"lease-{work}")
        worker.rank.tell(do="prefill", work=work, slots=params.slots, chunk=told["chunk"], chunk_s=told["chunk_s"])
        computed = await worker.rank.told()
        worker.stage.first_sampled(work, FIRST)
        worker.stage.close(work)
        tell(**computed)
    await transport.close()
    await worker.stop()


class Decode:
    """The worker that is handed prompts, and the other one, which it starts."""

    def __init__(self) -> None:
        self._worker = StageWorker(22)
        self._seeds = count(1)
        self._prefill: ScriptProcess
        self._at: dict[str, Any] = {}

    async def start(self) -> None:
        self._prefill = await ScriptProcess.start("prefill")
        await self._worker.start()
        self._at = await self._prefill.told()
        self._transport = ShmTransport(ShmSettings())
        stage, clock = self._worker.stage, self._worker.clock
        more: dict[str, Any] = {} if OLD else {"hashing": DigestThreads(stage.layout)}
        self._fetcher = Fetcher(stage, [self._transport], clock, Deadlines(), NullMeter(), **more)

    async def exposed(self, told: dict[str, Any]) -> float:
        """Seconds from the end of the last step's computing until everything is in decode's cache."""
        seed, tokens, worker = next(self._seeds), told["tokens"], self._worker
        self._prefill.tell(tokens=tokens, seed=seed, chunk=told["chunk"] // BLOCK_TOKENS, chunk_s=told["chunk_s"])
        lease = (await self._prefill.told())["lease"]
        work = worker.world.open(prompt(tokens, seed), "decode")
        await worker.world.until(lambda: work in worker.world.fetches)
        remote = RemoteKv(
            worker_id="p0",
            epoch=self._at["epoch"],
            addresses=(self._at["address"],),
            lease_id=lease,
            ticket=ticket(self._at["epoch"], lease, worker.stage.epoch, 4e9),
        )
        fetching = asyncio.create_task(self._fetcher.fetch(worker.world.fetches.pop(work), remote))
        params = await worker.world.admitted(work)
        worker.rank.tell(do="load", work=work, slots=params.slots, load=params.load)
        await worker.rank.told()
        computed = (await self._prefill.told())["t"]
        worker.stage.provide_first(work, 0, FIRST.tokens[0][1])
        loaded = (await worker.rank.told())["t"]
        report = await fetching
        assert report.reason is None, report.reason
        worker.stage.close(work)
        return float(loaded - computed)

    async def stop(self) -> None:
        await self._prefill.end()
        await self._transport.close()
        await self._worker.stop()


async def run_side() -> None:
    """Measures as it is told by `benchmarks.stage_copies`."""
    torch.set_num_threads(1)
    layouts, decode = Layouts(), None
    given = await lines()
    while line := await given.readline():
        told = json.loads(line)
        if told["how"] != "handoff":
            tell(value=layouts.rate(told))
            continue
        if decode is None:
            decode = Decode()
            await decode.start()
        tell(value=await decode.exposed(told))
    if decode is not None:
        await decode.stop()


if __name__ == "__main__":
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["rank", path]:
            run_rank(path)
        case ["prefill"]:
            asyncio.run(run_prefill())
        case _:
            asyncio.run(run_side())
