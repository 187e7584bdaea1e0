"""What a prefill worker exports is let go as soon as nobody can want it, and not only when its lease runs out."""

import asyncio
from collections.abc import Awaitable, Callable

from kv_transfer.transport.memory import MemoryNetwork
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.messages import Cancel, Hello
from tandem.core.request import Stopping
from tandem.engine.local import LocalEngine
from tandem.link.memory_link import MemoryLinks
from tests.worlds.worker_stage import (
    Router,
    build_decode,
    build_prefill,
    dial,
    hand_off,
    memory_transport,
    parts,
    prompt,
    running,
)

TWELVE = Stopping(max_tokens=12)
Test = Callable[["Stage"], Awaitable[None]]


class Stage:
    """A prefill worker with one router, and the name of a decode worker that never comes."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.clock = LoopClock(loop)
        self.links = MemoryLinks()
        fabric = MemoryNetwork()
        self.parts = parts(self.clock, "p")
        decode = parts(self.clock, "d")
        self.workers = (
            build_prefill(self.parts, self.links.server("p"), [memory_transport(fabric, "p")]),
            build_decode(decode, self.links.server("d"), [memory_transport(fabric, "d")]),
        )

    @property
    def engine(self) -> LocalEngine:
        assert isinstance(self.parts.engine, LocalEngine)
        return self.parts.engine

    @property
    def exported(self) -> int:
        return self.engine.scheduler.leases.exported

    async def prefilled(self, stopping: Stopping = TWELVE) -> tuple[Router, Router]:
        """A prompt is computed and exported under handle 1; gives the links to prefill and decode."""
        dialer = self.links.dialer("router")
        p, d = await dial(dialer, "p"), await dial(dialer, "d")
        to_p, _ = hand_off(1, _known(p), _known(d), prompt(100), self.clock.wall(), stopping=stopping)
        p.link.tokens.send(to_p)
        await p.ended(1)
        return p, d


def _known(router: Router) -> Hello:
    assert router.hello is not None
    return router.hello


def on_stage(test: Test) -> None:
    async def main(loop: VirtualLoop) -> None:
        stage = Stage(loop)
        async with running(*stage.workers):
            await test(stage)

    run(main, limit_s=600.0)


def test_an_export_waits_for_its_receiver() -> None:
    async def test(stage: Stage) -> None:
        await stage.prefilled()
        await asyncio.sleep(5.0)
        assert stage.exported == 7

    on_stage(test)


def test_nothing_is_exported_when_the_first_token_was_the_last() -> None:
    async def test(stage: Stage) -> None:
        p, _ = await stage.prefilled(Stopping(max_tokens=1))
        assert [output.finish for output in p.outputs] == ["length"]
        assert stage.exported == 0
        assert stage.engine.lease_ended("lease-1")

    on_stage(test)


def test_cancelling_a_prefill_that_has_ended_ends_its_lease() -> None:
    async def test(stage: Stage) -> None:
        p, _ = await stage.prefilled()
        p.link.tokens.send(Cancel(1, 0))
        await asyncio.sleep(0.1)
        assert stage.exported == 7, "a cancel of one sequence leaves the others their blocks"
        p.link.tokens.send(Cancel(1))
        await asyncio.sleep(0.1)
        assert stage.exported == 0
        p.link.tokens.send(Cancel(1))
        await asyncio.sleep(0.1)
        assert p.lost is None

    on_stage(test)


def test_the_exports_of_a_router_that_is_gone_are_let_go() -> None:
    async def test(stage: Stage) -> None:
        p, _ = await stage.prefilled()
        p.link.close("the router died")
        await asyncio.sleep(2.0)
        assert stage.exported == 0

    on_stage(test)


def test_a_pull_under_an_ended_lease_is_answered_at_once() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.prefilled()
        p.link.tokens.send(Cancel(1))
        await asyncio.sleep(0.1)
        _, to_d = hand_off(1, _known(p), _known(d), prompt(100), stage.clock.wall())
        d.link.tokens.send(to_d)
        await asyncio.sleep(0.1)
        decode = stage.workers[1].host
        assert decode.attempts == 1
        d.link.tokens.send(Cancel(1))
        report = await d.ended(1)
        (pull,) = [span for span in report.spans if span.name == "kv.pull"]
        assert "the lease has ended" in str(pull.attributes["failed"])
        assert pull.end_s - pull.start_s < 0.1

    on_stage(test)
