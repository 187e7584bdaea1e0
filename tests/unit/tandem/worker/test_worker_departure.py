"""How a worker leaves: bounds that only shrink, what became of its work, and blocks handed over on the way."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from kv_transfer.transport.memory import MemoryNetwork
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.messages import Cancel, Drain, Draining
from tandem.core.request import ChildRequest, Stopping
from tandem.engine.simulated.reference import reference_tokens
from tandem.link.memory_link import MemoryLinks
from tandem.worker.drain_state import DrainResult, DrainState
from tests.worlds.worker_stage import (
    KEYRING,
    MODEL,
    Router,
    build_decode,
    build_prefill,
    dial,
    hand_off,
    memory_transport,
    parts,
    prompt,
    running,
    submit,
)


class Stage:
    """A prefill worker and two that decode, which hold the keys of the service, and a router's link to each."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.clock = LoopClock(loop)
        links, fabric = MemoryLinks(), MemoryNetwork()
        self.prefill_worker = build_prefill(
            parts(self.clock, "p"), links.server("p"), [memory_transport(fabric, "p")]
        )
        self.decode_worker, self.other_worker = (
            build_decode(
                parts(self.clock, name), links.server(name), [memory_transport(fabric, name)], name, keyring=KEYRING
            )
            for name in ("d", "e")
        )
        self._dialer = links.dialer("router")

    async def connect(self, *names: str) -> list[Router]:
        return [await dial(self._dialer, name) for name in names]


def on_stage(test: Callable[[Stage], Awaitable[None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        stage = Stage(loop)
        async with running(stage.prefill_worker, stage.decode_worker, stage.other_worker):
            await test(stage)

    run(main, limit_s=600.0)


def test_an_earlier_bound_counts_and_a_later_one_does_not() -> None:
    async def main(loop: VirtualLoop) -> None:
        drain_state = DrainState("d0", LoopClock(loop))
        assert drain_state.left_s is None
        assert drain_state.refusal() is None
        assert drain_state.begin(20.0)
        await asyncio.sleep(1.0)
        assert not drain_state.begin(60.0)
        assert drain_state.left_s == pytest.approx(19.0)
        assert drain_state.begin(2.0)
        await asyncio.sleep(5.0)
        assert drain_state.left_s == 0.0
        refusal = drain_state.refusal()
        assert refusal is not None
        assert (refusal.code, refusal.retryable) == ("draining", True)
        assert drain_state.refusal(hands_over=True) is None

    run(main)


def test_only_what_ends_after_the_beginning_is_counted() -> None:
    async def main(loop: VirtualLoop) -> None:
        drain_state = DrainState("d0", LoopClock(loop))
        drain_state.attempt_ended(taken=False)
        drain_state.begin(1.0)
        drain_state.attempt_ended(taken=False)
        drain_state.attempt_ended(taken=True)
        drain_state.attempt_ended(taken=True)
        drain_state.cut_off(4)
        drain_state.attempt_ended(taken=True)
        assert drain_state.farewell == DrainResult(finished=1, taken=2, cut=4)

    run(main)


def test_a_farewell_says_what_finished_what_was_taken_and_what_was_cut_off() -> None:
    async def test(stage: Stage) -> None:
        (router,) = await stage.connect("d")
        for handle, tokens in ((1, 50), (2, 3900), (3, 3900)):
            router.link.tokens.send(submit(handle, stopping=Stopping(max_tokens=tokens)))
        await router.until(lambda: all(router.tokens(handle) for handle in (1, 2, 3)))
        router.link.tokens.send(Drain(3.0))
        router.link.tokens.send(Cancel(2))
        host = stage.decode_worker.host
        await asyncio.sleep(0.1)
        assert stage.decode_worker.held()["attempts"] <= 3
        await stage.decode_worker.drain(30.0)
        assert host.drain_state.farewell == DrainResult(finished=1, taken=1, cut=1)
        assert [message.within_s for message in router.heard if isinstance(message, Draining)] == [3.0]
        assert [(failed.handle, failed.code) for failed in router.failed] == [(3, "draining")]
        await router.until(lambda: router.lost is not None)
        assert stage.decode_worker.held() == {}

    on_stage(test)


def test_a_prefill_worker_says_what_it_exports_and_leaves_at_its_bound() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect("p", "d")
        assert p.hello is not None
        assert d.hello is not None
        to_p, _ = hand_off(1, p.hello, d.hello, prompt(100), stage.clock.wall())
        p.link.tokens.send(to_p)
        await p.ended(1)
        draining = asyncio.create_task(stage.prefill_worker.drain(5.0))
        await asyncio.sleep(1.0)
        assert stage.prefill_worker.held() == {"exported_blocks": 7}
        began = stage.clock.now()
        await draining
        assert stage.clock.now() - began == pytest.approx(4.0, abs=0.2)

    on_stage(test)


def test_a_worker_that_leaves_hands_its_blocks_over_and_computes_next_to_nothing() -> None:
    async def test(stage: Stage) -> None:
        d, e = await stage.connect("d", "e")
        assert d.hello is not None
        assert e.hello is not None
        whole = submit(1, tokens=prompt(200), stopping=Stopping(max_tokens=120))
        d.link.tokens.send(whole)
        await d.until(lambda: len(d.tokens(1)) >= 50)
        d.link.tokens.send(Drain(20.0))
        d.link.tokens.send(Cancel(1))
        forced = d.tokens(1)
        to_d, to_e = hand_off(2, d.hello, e.hello, prompt(200), stage.clock.wall())
        branches = (ChildRequest(0, whole.branches[0].seed, forced),)
        for router, one in ((d, to_d), (e, to_e)):
            router.link.tokens.send(msgspec.structs.replace(one, branches=branches, stopping=whole.stopping))
        handed = await d.ended(2)
        went_on = await e.ended(2)
        assert (*forced, *e.tokens(2)) == reference_tokens(
            MODEL, whole.prompt, whole.branches[0], whole.sampling, whole.stopping
        ).tokens
        assert handed.tokens_computed <= MODEL.block_tokens
        assert went_on.tokens_computed == 0
        assert went_on.tokens_pulled >= 200
        assert stage.decode_worker.host.drain_state.farewell == DrainResult(finished=0, taken=1, cut=0)
        d.link.tokens.send(submit(3))
        await d.until(lambda: [failed.code for failed in d.failed] == ["draining"])

    on_stage(test)
