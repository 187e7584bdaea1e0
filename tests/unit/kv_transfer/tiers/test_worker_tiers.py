"""A worker with tiers of its own, on virtual time: what it keeps, tells, brings back, shares, pins and gives up."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from kv_transfer.tickets import Claims, issue
from kv_transfer.tiers.local import LocalTiers
from kv_transfer.tiers.memory_backend import MemoryDisk
from kv_transfer.tiers.memory_tiers import memory_tiers
from kv_transfer.tiers.protocol import OffloadCandidate, Tiers
from kv_transfer.tiers.settings import TierSettings
from kv_transfer.transport.memory import MemoryNetwork
from kv_transfer.transport.protocol import reuse_lease
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.kv import chain_names, quota_tenant, tenant_root
from tandem.core.messages import AttemptReport, Hello, KvDelta, KvSnapshot, Pin, Source, Submit, Tune, Unpin
from tandem.core.metrics import NullMeter
from tandem.engine.protocol import NO_CHANGE, BlockSpace, EngineInfo, KvChange, Listener, StepReport
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.reference import reference_tokens
from tandem.link.memory_link import MemoryLinks
from tandem.worker.attempts import Attempt, AttemptTable
from tandem.worker.deps import WorkerDeps
from tandem.worker.identity import root_name
from tandem.worker.service import WorkerService
from tests.worlds.worker_stage import (
    KEYRING,
    Router,
    build_decode,
    dial,
    memory_transport,
    parts,
    prompt,
    running,
    submit,
)

MODEL = SimulatedModel(blocks=96, context_tokens=4096)
SIZE = MODEL.layout.block_bytes
TIERS = TierSettings(dram_bytes=512 * SIZE)
TURN = 320
"""Tokens of the conversation: 20 blocks."""


@dataclass
class Worker:
    """One worker with its tiers, and a router's end of a link with it."""

    service: WorkerService
    parts: WorkerDeps
    tiers: list[LocalTiers]
    router: Router

    @property
    def hello(self) -> Hello:
        assert self.router.hello is not None
        return self.router.hello


class Stage:
    """Unified workers on one fabric; those with a `+` have tiers."""

    def __init__(self, loop: VirtualLoop, names: str, dram: MemoryDisk) -> None:
        self.clock = LoopClock(loop)
        self.links, self.fabric = MemoryLinks(), MemoryNetwork()
        self.dram = dram
        self.services: dict[str, tuple[WorkerService, WorkerDeps, list[LocalTiers]]] = {}
        for name in names.split():
            self.services[name.rstrip("+")] = self._make(name.rstrip("+"), name.endswith("+"))
        self.workers: dict[str, Worker] = {}
        self.handles = 0

    def _make(self, name: str, tiered: bool) -> tuple[WorkerService, WorkerDeps, list[LocalTiers]]:
        made = parts(self.clock, name, MODEL)
        opened: list[LocalTiers] = []

        def open_tiers(space: BlockSpace, _info: EngineInfo) -> Tiers:
            opened.append(memory_tiers(TIERS, space, self.clock, NullMeter(), dram=self.dram))
            return opened[-1]

        if tiered:
            made = replace(made, open_tiers=open_tiers)
        transport = memory_transport(self.fabric, name)
        server = self.links.server(name)
        service = build_decode(made, server, [transport], name, role="unified", keyring=KEYRING)
        return service, made, opened

    async def meet(self) -> None:
        for name, (service, made, opened) in self.services.items():
            router = await dial(self.links.dialer(f"router of {name}"), name)
            self.workers[name] = Worker(service, made, opened, router)

    async def ask(self, name: str, tokens: bytes, **more: Any) -> AttemptReport:
        """One request; its tokens must be the model's, and nothing may be held afterwards."""
        self.handles += 1
        one = msgspec.structs.replace(submit(self.handles, tokens=tokens), **more)
        worker = self.workers[name]
        worker.router.link.tokens.send(one)
        report = await worker.router.ended(one.handle)
        assert worker.router.tokens(one.handle) == reference(one)
        return report

    async def settle(self, name: str) -> None:
        """Until everything offered is copied."""
        for tiers in self.workers[name].tiers:
            await tiers.settle()

    async def evict(self, name: str) -> None:
        for salt in (31, 32):
            await self.ask(name, prompt(1300, salt))

    def source(self, holder: str, receiver: str, blocks: int) -> Source:
        self.handles += 1
        lease = reuse_lease(str(self.handles))
        epochs = self.workers[holder].hello.epoch, self.workers[receiver].hello.epoch
        ticket = issue(KEYRING, Claims("t", epochs[0], lease, epochs[1], self.clock.wall() + 60.0))
        return Source(holder, epochs[0], (f"mem://{holder}",), lease, ticket, blocks)


def split(packed: bytes) -> list[bytes]:
    return sorted(packed[at : at + 16] for at in range(0, len(packed), 16))


def reference(one: Submit) -> tuple[int, ...]:
    return reference_tokens(MODEL, one.prompt, one.branches[0], one.sampling, one.stopping).tokens


def on_stage(
    names: str, body: Callable[[Stage], Awaitable[None]], heard: Callable[[Listener], Listener] = lambda plain: plain
) -> None:
    async def main(loop: VirtualLoop) -> None:
        stage = Stage(loop, names, MemoryDisk())
        for _, made, _ in stage.services.values():
            run_engine = made.engine.run
            made.engine.run = lambda listener, run_engine=run_engine: run_engine(heard(listener))  # type: ignore[method-assign]
        async with running(*(service for service, _, _ in stage.services.values())):
            await stage.meet()
            await body(stage)
            for worker in stage.workers.values():
                pool = worker.parts.engine.scheduler.kv_cache.pool  # type: ignore[attr-defined]
                assert (pool.used, pool.quarantined, worker.service.host.attempts) == (0, 0, 0)

    run(main, limit_s=600.0)


def test_what_was_evicted_comes_back_and_the_report_says_from_where() -> None:
    async def body(s: Stage) -> None:
        await s.ask("u", prompt(TURN))
        await s.settle("u")
        await s.evict("u")
        report = await s.ask("u", prompt(TURN + 40))
        assert (report.tokens_by_tier, report.tokens_computed) == ({"dram": TURN}, 40)
        (pull,) = (span for span in report.spans if span.name == "kv.pull")
        assert pull.attributes["kind"] == pull.attributes["path"] == "dram"
        assert pull.attributes["bytes"] == 20 * SIZE
        (prefill,) = (span for span in report.spans if span.name == "prefill")
        assert prefill.start_s >= pull.end_s, "computing begins when the blocks are there"
        assert str(prefill.attributes["reuse"]).startswith("brings 20 blocks, the last from dram")
        mixed = await s.ask("u", prompt(TURN + 60))
        assert mixed.tokens_by_tier == {"hbm": TURN + 32}

    on_stage("u+", body)


def late(listener: Listener) -> Listener:
    """As an engine reports whose own cache has blocks at once, and its block space when their work has ended."""
    waiting = list[KvChange]()

    def hear(report: StepReport) -> None:
        waiting.append(report.kv)
        listener(msgspec.structs.replace(report, space=NO_CHANGE))
        if report.ended:
            for change in waiting:
                listener(StepReport(space=change))
            waiting.clear()

    return hear


def test_blocks_that_the_space_has_after_the_end_of_their_work_are_kept_for_its_tenant() -> None:
    offered = list[OffloadCandidate]()

    async def body(s: Stage) -> None:
        (tiers,) = s.workers["u"].tiers
        offer = tiers.offer

        def ended(offers: Sequence[OffloadCandidate]) -> None:
            assert not offers or s.workers["u"].service.host.attempts == 0, "the space has them only now"
            offered.extend(offers)
            offer(offers)

        tiers.offer = ended  # type: ignore[method-assign]
        await s.ask("u", prompt(TURN), tenant_salt="acme")
        await s.settle("u")
        names = chain_names(tenant_root(root_name(s.services["u"][1].engine.info), "acme"), prompt(TURN), 16)
        assert {one.name for one in offered} >= {*names}
        assert {one.tenant for one in offered} == {quota_tenant("acme")}
        await s.evict("u")
        report = await s.ask("u", prompt(TURN + 40), tenant_salt="acme")
        assert report.tokens_by_tier == {"dram": TURN}

    on_stage("u+", body, late)


def test_tenants_of_ended_works_are_known_within_bounds() -> None:
    table = AttemptTable()
    for work in range(1, 9001):
        table.add(Attempt(1, work, msgspec.structs.replace(submit(work), tenant_salt=f"t{work}"), 0.0))
        assert table.tenant_of(work) == f"t{work}"
        table.remove(work)
    table.check()
    assert table.tenant_of(9000) == "t9000"
    assert table.tenant_of(1) is None, "not for ever"
    assert table.tenant_of(-5) is None


def test_damaged_copies_are_computed_again() -> None:
    async def body(s: Stage) -> None:
        await s.ask("u", prompt(TURN))
        await s.settle("u")
        await s.evict("u")
        assert s.dram.damage(3) == 3
        report = await s.ask("u", prompt(TURN))
        assert report.tokens_by_tier == {"dram": TURN - 3 * 16 - 1}
        assert report.tokens_computed == 3 * 16 + 1

    on_stage("u+", body)


def test_routers_hear_what_lies_in_which_tier() -> None:
    async def body(s: Stage) -> None:
        router = s.workers["u"].router
        assert [(tier.name, tier.blocks) for tier in s.workers["u"].hello.tiers] == [("dram", 512)]
        await s.ask("u", prompt(TURN))
        await s.settle("u")
        deltas = [one for one in router.state if isinstance(one, KvDelta)]
        assert [one.count for one in deltas] == list(range(1, len(deltas) + 1)), "one count for all tiers"
        info = s.services["u"][1].engine.info
        names = chain_names(root_name(info), prompt(TURN), 16)
        told = b"".join(one.stored for one in deltas if one.tier == "dram")
        assert split(told) == sorted(names)
        again = await dial(s.links.dialer("another router"), "u")
        pieces = [one for one in again.state if isinstance(one, KvSnapshot)]
        assert [piece.tier for piece in pieces] == ["hbm", "dram"]
        assert [piece.last for piece in pieces] == [False, True]
        assert split(pieces[1].names) == sorted(names)

    on_stage("u+", body)


def test_a_peers_lower_tiers_are_read_for_who_asks() -> None:
    async def body(s: Stage) -> None:
        await s.ask("u", prompt(TURN))
        await s.settle("u")
        await s.evict("u")
        assert s.workers["u"].parts.engine.kv is not None
        source = s.source("u", "v", 20)
        report = await s.ask("v", prompt(TURN + 16), sources=(source,))
        assert report.tokens_by_tier == {"peer": TURN}
        assert (await s.ask("u", prompt(TURN))).tokens_by_tier == {"hbm": TURN - 1}, "now it is in the pool again"

    on_stage("u+ v", body)


def test_a_source_of_another_incarnation_or_with_a_foreign_ticket_brings_nothing() -> None:
    async def body(s: Stage) -> None:
        await s.ask("u", prompt(TURN))
        good = s.source("u", "v", 20)
        stale = msgspec.structs.replace(good, epoch=good.epoch + 1)
        foreign = msgspec.structs.replace(good, ticket=good.ticket[:-1] + bytes((good.ticket[-1] ^ 1,)))
        report = await s.ask("v", prompt(TURN), sources=(stale, foreign))
        assert (report.tokens_by_tier, report.tokens_computed) == ({}, TURN)
        failed = [str(span.attributes["failed"]) for span in report.spans if span.name == "kv.pull"]
        assert [reason.partition(":")[0] for reason in failed] == ["ticket_refused", "ticket_refused"]

    on_stage("u v", body)


def test_a_tenant_finds_nothing_of_another_one() -> None:
    async def body(s: Stage) -> None:
        await s.ask("u", prompt(TURN), tenant_salt="one")
        await s.settle("u")
        await s.evict("u")
        other = await s.ask("u", prompt(TURN), tenant_salt="two", sources=())
        assert (other.tokens_by_tier, other.tokens_computed) == ({}, TURN)
        elsewhere = await s.ask("v", prompt(TURN), tenant_salt="two", sources=(s.source("u", "v", 20),))
        assert elsewhere.tokens_by_tier == {"peer": TURN - 1}, "its own, computed just before"
        same = await s.ask("u", prompt(TURN + 8), tenant_salt="one")
        assert same.tokens_by_tier == {"dram": TURN}

    on_stage("u+ v", body)


def test_a_pinned_prefix_stays_until_it_is_unpinned() -> None:
    async def body(s: Stage) -> None:
        report = await s.ask("u", prompt(TURN), pin=Pin(1, 3600.0))
        assert report.pinned_blocks == 20
        await s.settle("u")
        for salt in range(40, 48):
            await s.ask("u", prompt(1400, salt))
            await s.settle("u")
        assert (await s.ask("u", prompt(TURN + 8))).tokens_by_tier == {"dram": TURN}
        info = s.services["u"][1].engine.info
        names = b"".join(chain_names(root_name(info), prompt(TURN), 16))
        s.workers["u"].router.link.tokens.send(Unpin(names))
        for salt in range(50, 58):
            await s.ask("u", prompt(1400, salt))
            await s.settle("u")
        assert (await s.ask("u", prompt(TURN + 8))).tokens_by_tier == {}

    on_stage("u+", body)


def test_what_a_step_may_take_is_told_while_the_worker_runs() -> None:
    async def body(s: Stage) -> None:
        engine = s.services["u"][1].engine
        tell = s.workers["u"].router.link.tokens.send
        bounds = []
        for target_s in (0.012, None):
            tell(Tune(target_s))
            await s.ask("u", prompt(20))
            bounds.append(engine.scheduler._budget._bounds.itl_target_s)
        assert bounds == [0.012, engine.scheduler.settings.itl_target_s]

    on_stage("u", body)


def test_a_tenant_keeps_no_more_than_it_may() -> None:
    async def body(s: Stage) -> None:
        await s.ask("u", prompt(TURN), tenant_salt="one", kv_bytes_max=5 * SIZE)
        await s.settle("u")
        assert len(s.workers["u"].tiers[0].snapshot()["dram"]) == 5

    on_stage("u+", body)
