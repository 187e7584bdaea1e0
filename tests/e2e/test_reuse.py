"""A conversation comes back after its blocks have left the pool: worker processes find them in DRAM, on NVMe after a
restart, and at a peer; and say the same as a worker that computes everything."""

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from kv_transfer.key_file import read_keyring
from kv_transfer.tickets import Claims, issue
from kv_transfer.transport.protocol import reuse_lease
from tandem.core.entropy import SeededEntropy
from tandem.core.messages import AttemptReport, Hello, KvDelta, KvSnapshot, Source, Submit
from tandem.core.request import Stopping
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.reference import reference_tokens
from tandem.link.proof import LinkKeys
from tandem.link.tcp_dialer import TcpDialer
from tandem.process.system import SystemClock
from tests.unit.tandem.worker.test_worker_wire import Worker
from tests.worlds.worker_stage import Router, dial, prompt, submit

MODEL = SimulatedModel()
BLOCKS = 128
TURN = 640
"""Tokens of the conversation: 40 blocks."""
WITHIN_S = 20.0


class Stage:
    """Worker processes that share a ticket key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key_file = folder / "key"
        self._key_file.write_text("6b" * 32 + "\n")
        self.keyring = read_keyring(self._key_file)
        self._dialer = TcpDialer("router", SeededEntropy(4), keys=LinkKeys(self.keyring.secrets))
        self._handles = itertools.count(1)
        self.workers: list[Worker] = []
        self.routers: list[Router] = []

    async def start(self, name: str, *flags: str) -> tuple[Worker, Router]:
        """A worker that brings whatever can be brought: on a busy machine a read may look dearer than computing."""
        worker = await Worker.start(
            "decode_worker",
            *("--worker-id", name, "--role", "unified", "--ticket-key-file", str(self._key_file)),
            *("--host.reuse", "always"),
            *("--socket-directory", str(self.folder), "--kv-memory", str(BLOCKS * MODEL.layout.block_bytes), *flags),
        )
        self.workers.append(worker)
        router = await dial(self._dialer, await worker.address())
        self.routers.append(router)
        return worker, router

    async def ask(self, router: Router, tokens: bytes, **more: object) -> AttemptReport:
        """One local request; its tokens must be those of the model."""
        one = msgspec.structs.replace(submit(next(self._handles), tokens=tokens), **more)
        router.link.tokens.send(one)
        report = await router.ended(one.handle)
        assert router.tokens(one.handle) == _reference(one)
        return report

    async def evict(self, router: Router) -> None:
        """Fill the pool with something else."""
        for salt in (21, 22, 23):
            await self.ask(router, prompt(1500, salt))

    def source(self, holder: Hello, receiver: Hello, blocks: int) -> Source:
        lease = reuse_lease(f"{next(self._handles)}")
        claims = Claims("tenant", holder.epoch, lease, receiver.epoch, SystemClock().wall() + 60.0)
        ticket = issue(self.keyring, claims)
        return Source(holder.worker_id, holder.epoch, holder.addresses, lease, ticket, blocks)


def _reference(one: Submit) -> tuple[int, ...]:
    return reference_tokens(MODEL, one.prompt, one.branches[0], one.sampling, one.stopping).tokens


def _kept(router: Router, tier: str) -> int:
    """How many names the worker says it has in a tier."""
    names: dict[bytes, None] = {}
    for piece in router.state:
        if isinstance(piece, KvDelta | KvSnapshot) and piece.tier == tier:
            stored, removed = (piece.names, b"") if isinstance(piece, KvSnapshot) else (piece.stored, piece.removed)
            names |= {stored[at : at + 16]: None for at in range(0, len(stored), 16)}
            for at in range(0, len(removed), 16):
                names.pop(removed[at : at + 16], None)
    return len(names)


def _hello(router: Router) -> Hello:
    assert router.hello is not None
    return router.hello


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    one = Stage(folder)
    try:
        yield one
    finally:
        for router in one.routers:
            router.stop()
        for worker in one.workers:
            worker.kill()
            await worker.process.wait()


async def test_what_the_pool_has_evicted_comes_back_from_dram(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        _, router = await s.start("u-0", "--tiers.dram_bytes", str(1 << 20))
        assert [tier.name for tier in _hello(router).tiers] == ["dram"]
        first = await s.ask(router, prompt(TURN))
        assert (first.tokens_computed, first.tokens_by_tier) == (TURN, {})
        await router.until(lambda: _kept(router, "dram") >= 40, WITHIN_S)
        await s.evict(router)
        again = await s.ask(router, prompt(TURN + 100))
        assert again.tokens_by_tier == {"dram": TURN}
        assert (again.tokens_computed, again.tokens_pulled) == (100, 0)
        pull = next(span for span in again.spans if span.name == "kv.pull")
        assert (pull.attributes["kind"], pull.attributes["blocks"]) == ("dram", 40)
        # Found whole: the last token is computed all the same.
        assert (await s.ask(router, prompt(TURN))).tokens_by_tier == {"hbm": TURN - 1}
        await s.evict(router)
        whole = await s.ask(router, prompt(TURN))
        assert (whole.tokens_by_tier, whole.tokens_computed) == ({"dram": TURN - 1}, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_what_is_on_nvme_survives_the_worker(tmp_path: Path, number: int) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    flags = ("--tiers.dram_bytes", str(1 << 18), "--tiers.nvme_dir", str(disk), "--tiers.nvme_bytes", str(64 << 20))
    flags += ("--tiers.segment_bytes", str(1 << 20), "--tiers.write_through", "true")
    async with stage(tmp_path) as s:
        worker, router = await s.start("u-0", *flags)
        await s.ask(router, prompt(TURN))
        await router.until(lambda: _kept(router, "nvme") >= 40, WITHIN_S)
        worker.process.send_signal(number)
        await asyncio.wait_for(worker.process.wait(), WITHIN_S)
        _, router = await s.start("u-0", *flags)
        await router.until(lambda: _kept(router, "nvme") >= 40, WITHIN_S)
        again = await s.ask(router, prompt(TURN + 100))
        assert again.tokens_by_tier == {"nvme": TURN}
        assert again.tokens_computed == 100


async def test_a_peer_brings_what_it_has_and_the_rest_is_computed(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        _, holder = await s.start("u-0")
        _, router = await s.start("u-1", "--tiers.dram_bytes", str(1 << 20))
        await s.ask(holder, prompt(TURN))
        source = s.source(_hello(holder), _hello(router), 45)
        report = await s.ask(router, prompt(TURN + 100), sources=(source,))
        assert report.tokens_by_tier == {"peer": TURN}
        assert report.tokens_computed == 100
        # What came from the peer is kept below this pool, too.
        await router.until(lambda: _kept(router, "dram") >= 40, WITHIN_S)
        await s.evict(router)
        assert (await s.ask(router, prompt(TURN))).tokens_by_tier == {"dram": TURN - 1}
        # The holder has let go: it can use its whole pool.
        await s.ask(holder, prompt(2000, 7), stopping=Stopping(max_tokens=20))


async def test_a_source_that_is_gone_costs_no_more_than_computing(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        lost, holder = await s.start("u-0")
        _, router = await s.start("u-1")
        await s.ask(holder, prompt(TURN))
        lost.kill()
        await lost.process.wait()
        source = s.source(_hello(holder), _hello(router), 40)
        began = SystemClock().now()
        report = await s.ask(router, prompt(TURN), sources=(source,))
        assert SystemClock().now() - began < 3.0
        assert (report.tokens_by_tier, report.tokens_computed) == ({}, TURN)
