"""The worker host over a memory link with a simulated engine, on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import pytest

from kv_transfer.transport.memory import MemoryNetwork
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.kv import NAME_BYTES, chain_names, tenant_root
from tandem.core.messages import (
    AttemptFailed,
    AttemptReport,
    Cancel,
    Drain,
    Draining,
    KvDelta,
    KvSnapshot,
    Load,
    Pong,
    ProvideFirst,
    SampleFirst,
    SnapshotRequest,
    Submit,
)
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.core.simple_tokenizer import decode
from tandem.engine.local import LocalEngine
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.reference import reference_tokens
from tandem.link.memory_link import MemoryLinks
from tandem.worker.service import WorkerService
from tests.worlds.worker_stage import (
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
    """One prefill and one decode worker, and links to both."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.clock = LoopClock(loop)
        self.links = MemoryLinks()
        fabric = MemoryNetwork()
        self.prefill_parts = parts(self.clock, "p")
        self.decode_parts = parts(self.clock, "d")
        self.prefill_worker = build_prefill(
            self.prefill_parts, self.links.server("p"), [memory_transport(fabric, "p")]
        )
        self.decode_worker = build_decode(self.decode_parts, self.links.server("d"), [memory_transport(fabric, "d")])

    async def connect(self, name: str = "router") -> tuple[Router, Router]:
        dialer = self.links.dialer(name)
        return await dial(dialer, "p"), await dial(dialer, "d")

    @property
    def engine(self) -> LocalEngine:
        assert isinstance(self.decode_parts.engine, LocalEngine)
        return self.decode_parts.engine


def on_stage(test: Callable[[Stage], Awaitable[None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        stage = Stage(loop)
        async with running(stage.prefill_worker, stage.decode_worker):
            await test(stage)

    run(main, limit_s=600.0)


def reference(one: Submit, branch: int = 0) -> tuple[int, ...]:
    return reference_tokens(MODEL, one.prompt, one.branches[branch], one.sampling, one.stopping).tokens


def test_a_local_request_is_answered_with_text_and_reported_once() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        one = submit(1)
        router.link.tokens.send(one)
        report = await router.ended(1)
        assert router.tokens(1) == reference(one)
        assert router.text(1) == decode(reference(one))
        assert [output.position for output in router.outputs] == list(range(1, 13))
        assert [output.finish for output in router.outputs] == [None] * 11 + ["length"]
        assert report.tokens_computed >= 40
        assert {span.name for span in report.spans} == {"queue", "prefill", "decode"}
        assert all(span.trace_id == "a" * 32 and span.parent_id == "b" * 16 for span in report.spans)
        await asyncio.sleep(5.0)
        assert len(router.reports) == 1
        assert stage.decode_worker.host.attempts == 0

    on_stage(test)


def test_prefill_transfer_decode_gives_the_reference_tokens() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        assert p.hello is not None
        assert d.hello is not None
        assert p.hello.root == d.hello.root
        for handle, length in enumerate((1, 15, 16, 17, 48, 100, 300), start=1):
            to_p, to_d = hand_off(handle, p.hello, d.hello, prompt(length, handle), stage.clock.wall())
            p.link.tokens.send(to_p)
            d.link.tokens.send(to_d)
            report = await d.ended(handle)
            expected = reference(to_d)
            assert d.tokens(handle) == expected
            assert d.text(handle) == decode(expected)
            assert p.tokens(handle) == expected[:1]
            assert report.tokens_computed == 0
            pull = next(span for span in report.spans if span.name == "kv.pull")
            assert pull.attributes["path"] == "mem"
            assert pull.attributes["bytes"] == report.bytes_pulled > 0
        assert not p.failed
        assert not d.failed

    on_stage(test)


def test_a_provided_first_token_is_not_told_again_and_text_continues() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        assert p.hello is not None
        assert d.hello is not None
        to_p, to_d = hand_off(1, p.hello, d.hello, prompt(50), stage.clock.wall())
        d.link.tokens.send(to_d)
        d.link.tokens.send(ProvideFirst(1, 0, reference(to_d)[0]))
        p.link.tokens.send(to_p)
        await d.ended(1)
        assert d.outputs[0].position == 2
        assert p.tokens(1) + d.tokens(1) == reference(to_d)
        assert p.text(1) + d.text(1) == decode(reference(to_d))
        assert d.outputs[0].offset == len(p.text(1))

    on_stage(test)


def test_sample_first_makes_decode_compute_what_prefill_never_sent() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        assert p.hello is not None
        assert d.hello is not None
        _, to_d = hand_off(1, p.hello, d.hello, prompt(50), stage.clock.wall())
        d.link.tokens.send(to_d)
        d.link.tokens.send(SampleFirst(1))
        report = await d.ended(1)
        assert d.tokens(1) == reference(to_d)
        assert report.tokens_computed == 50
        assert not d.failed

    on_stage(test)


def test_a_resumed_branch_continues_after_its_forced_tokens() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        whole = submit(1)
        tokens = reference(whole)
        sent = decode(tokens[:5])
        branch = ChildRequest(0, 11, tokens[:5], len(sent))
        router.link.tokens.send(submit(2, branches=(branch,)))
        report = await router.ended(2)
        assert router.tokens(2) == tokens[5:]
        assert next(span for span in report.spans if span.name == "decode").attributes["tokens"] == len(tokens) - 5
        assert sent + router.text(2) == decode(tokens)
        assert router.outputs[0].position == 6
        assert router.outputs[0].offset == len(sent)

    on_stage(test)


def test_branches_have_their_own_positions_and_text() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        one = submit(1, branches=(ChildRequest(0, 5), ChildRequest(1, 6), ChildRequest(2, 7)))
        router.link.tokens.send(one)
        await router.ended(1)
        for index in range(3):
            assert router.tokens(1, index) == reference(one, index)
            assert router.text(1, index) == decode(reference(one, index))

    on_stage(test)


def test_a_stop_string_ends_the_sequence_and_frees_it() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        stopping = Stopping(max_tokens=400)
        text = decode(reference(submit(1, stopping=stopping)))
        stop = text[30:36]
        router.link.tokens.send(submit(1, stopping=msgspec.structs.replace(stopping, stop=(stop,))))
        await router.ended(1)
        assert router.text(1) == text[: text.index(stop)]
        assert router.outputs[-1].finish == "stop"
        assert router.outputs[-1].stop_reason == stop
        assert len(router.tokens(1)) < 30

    on_stage(test)


def test_logprobs_come_with_their_tokens() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        router.link.tokens.send(submit(1, sampling=Sampling(logprobs=2)))
        await router.ended(1)
        assert all(len(output.logprobs) == 1 for output in router.outputs)
        assert all(output.logprobs[0].top[0].token == output.tokens[0] for output in router.outputs)

    on_stage(test)


@pytest.mark.parametrize("mode", ["prefill", "decode", "nonsense"])
def test_a_submit_that_cannot_be_taken_fails_once_and_is_reported(mode: str) -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        router.link.tokens.send(submit(1, mode))
        await router.ended(1)
        assert [(failed.handle, failed.code) for failed in router.failed] == [(1, "invalid_request")]
        assert router.failed[0].param
        router.link.tokens.send(submit(2, tokens=prompt(5000)))
        await router.ended(2)
        assert router.failed[-1].code == "context_length_exceeded"
        assert len(router.reports) == 2

    on_stage(test)


def test_cancel_frees_at_once_and_late_messages_find_nobody() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        router.link.tokens.send(submit(1, stopping=Stopping(max_tokens=3000)))
        await router.until(lambda: len(router.outputs) > 3)
        router.link.tokens.send(Cancel(1))
        await router.ended(1)
        assert not router.failed
        count = len(router.outputs)
        await asyncio.sleep(3.0)
        assert len(router.outputs) == count
        assert stage.engine.scheduler.load().blocks_free == MODEL.blocks
        for late in (Cancel(1), ProvideFirst(1, 0, 5), SampleFirst(1), Cancel(1, 0)):
            router.link.tokens.send(late)
        await asyncio.sleep(1.0)
        assert len(router.reports) == 1

    on_stage(test)


def test_a_cancel_before_its_submit_leaves_a_tombstone() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        router.link.tokens.send(Cancel(7))
        router.link.tokens.send(submit(7))
        router.link.tokens.send(submit(8))
        await router.ended(8)
        assert router.tokens(7) == ()
        assert [report.handle for report in router.reports] == [8]

    on_stage(test)


def test_a_lost_link_frees_only_that_routers_works() -> None:
    async def test(stage: Stage) -> None:
        _, one = await stage.connect("one")
        _, two = await stage.connect("two")
        long = Stopping(max_tokens=2000)
        one.link.tokens.send(submit(1, stopping=long))
        two.link.tokens.send(submit(1, tokens=prompt(40, 3), stopping=long))
        await one.until(lambda: len(one.outputs) > 3)
        stage.links.cut("one", "d", "cable pulled")
        await asyncio.sleep(0.1)
        assert stage.decode_worker.host.attempts == 1
        await two.ended(1)
        assert len(two.tokens(1)) == 2000

    on_stage(test)


def test_a_silent_router_is_given_up_within_the_deadline() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        router.link.tokens.send(submit(1, stopping=Stopping(max_tokens=3000)))
        await router.until(lambda: len(router.outputs) > 3)
        router.silent = True
        started = stage.clock.now()
        await router.until(lambda: router.lost is not None)
        assert 1.5 <= stage.clock.now() - started <= 3.0
        assert "silent" in (router.lost or "")
        await asyncio.sleep(0.1)
        assert stage.decode_worker.host.attempts == 0

    on_stage(test)


def test_heartbeats_and_load_come_without_any_work() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        before = len(router.state)
        await asyncio.sleep(5.0)
        pongs = [message.count for message in router.heard if isinstance(message, Pong)]
        assert 9 <= len(pongs) <= 11
        assert pongs == sorted(pongs)
        assert sum(isinstance(update, Load) for update in router.state[before:]) >= 9

    on_stage(test)


def test_deltas_follow_the_snapshot_they_belong_to() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        router.link.tokens.send(submit(1, tokens=prompt(64)))
        await router.ended(1)
        router.link.state.send(SnapshotRequest())
        await asyncio.sleep(1.0)
        late = await dial(stage.links.dialer("late"), "d")
        router.link.tokens.send(submit(2, tokens=prompt(64, 5)))
        await router.ended(2)
        await asyncio.sleep(1.0)
        root = router.hello.root if router.hello is not None else b""
        names = {*chain_names(root, prompt(64), 16), *chain_names(root, prompt(64, 5), 16)}
        for told in (router, late):
            assert names <= _apply(told)
        assert _apply(router) == _apply(late) == set(stage.engine.snapshot())

    on_stage(test)


def _apply(router: Router) -> set[bytes]:
    """What a router knows after all updates; fails on a gap."""
    held: set[bytes] = set()
    count = -1
    for update in router.state:
        if isinstance(update, KvSnapshot):
            assert update.last
            held, count = _names(update.names), update.count
        elif isinstance(update, KvDelta):
            assert update.count == count + 1, "a delta without the one before it"
            count = update.count
            held = (held | _names(update.stored)) - _names(update.removed)
    return held


def _names(packed: bytes) -> set[bytes]:
    return {packed[at : at + NAME_BYTES] for at in range(0, len(packed), NAME_BYTES)}


def test_tenants_do_not_share_block_names() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        router.link.tokens.send(msgspec.structs.replace(submit(1, tokens=prompt(64)), tenant_salt="acme"))
        await router.ended(1)
        root = router.hello.root if router.hello is not None else b""
        known = set(stage.engine.snapshot())
        assert set(chain_names(tenant_root(root, "acme"), prompt(64), 16)) <= known
        assert not set(chain_names(root, prompt(64), 16)) & known

    on_stage(test)


def test_a_draining_worker_refuses_new_work_and_finishes_the_old() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        router.link.tokens.send(submit(1, stopping=Stopping(max_tokens=100)))
        await router.until(lambda: len(router.outputs) > 3)
        router.link.tokens.send(Drain(20.0))
        router.link.tokens.send(submit(2))
        assert await stage.decode_worker.drain_requested() == 20.0
        await stage.decode_worker.drain(20.0)
        assert len(router.tokens(1)) == 100
        assert any(isinstance(message, Draining) for message in router.heard)
        assert [(failed.handle, failed.code) for failed in router.failed] == [(2, "draining")]
        await router.until(lambda: router.lost is not None)

    on_stage(test)


def test_a_drain_that_takes_too_long_cancels_with_a_typed_error() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        router.link.tokens.send(submit(1, stopping=Stopping(max_tokens=3900)))
        await router.until(lambda: len(router.outputs) > 3)
        await stage.decode_worker.drain(1.0)
        await router.until(lambda: router.lost is not None)
        assert [(failed.handle, failed.code) for failed in router.failed] == [(1, "draining")]

    on_stage(test)


def test_prefill_drains_only_after_its_exports_were_fetched() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        assert p.hello is not None
        assert d.hello is not None
        to_p, to_d = hand_off(1, p.hello, d.hello, prompt(100), stage.clock.wall())
        p.link.tokens.send(to_p)
        await p.ended(1)
        draining = asyncio.create_task(stage.prefill_worker.drain(20.0))
        await asyncio.sleep(3.0)
        assert not draining.done()
        d.link.tokens.send(to_d)
        await d.ended(1)
        await draining
        assert d.tokens(1) == reference(to_d)

    on_stage(test)


def test_a_worker_that_was_frozen_is_a_new_incarnation() -> None:
    async def main(loop: VirtualLoop) -> None:
        clock = FrozenClock(loop)
        links = MemoryLinks()
        worker = build_decode(parts(clock, "d"), links.server("d"), [])
        async with running(worker):
            router = await dial(links.dialer("router"), "d")
            assert router.hello is not None
            router.link.tokens.send(submit(1, stopping=Stopping(max_tokens=3000)))
            await router.until(lambda: len(router.outputs) > 3)
            clock.frozen_s += 3.0
            await router.until(lambda: router.lost is not None)
            assert "frozen" in (router.lost or "")
            again = await dial(links.dialer("router"), "d")
            assert again.hello is not None
            assert again.hello.epoch != router.hello.epoch
            assert again.hello.epoch == worker.host.incarnation.epoch
            pieces = [piece for piece in again.state if isinstance(piece, KvSnapshot)]
            assert {piece.epoch for piece in pieces} == {again.hello.epoch}
            one = submit(2)
            again.link.tokens.send(one)
            await again.ended(2)
            assert again.tokens(2) == reference(one)
            assert worker.host.attempts == 0

    run(main, limit_s=600.0)


class FrozenClock(LoopClock):
    """A clock that can jump, as it does for a process that was stopped and continued."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop)
        self.frozen_s = 0.0

    def now(self) -> float:
        return super().now() + self.frozen_s


def test_a_deadline_ends_an_attempt_with_its_code() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        router.link.tokens.send(submit(1, stopping=Stopping(max_tokens=3000), deadline_s=2.0))
        await router.ended(1)
        assert [failed.code for failed in router.failed] == ["deadline_exceeded"]
        kinds = [type(message) for message in router.heard if isinstance(message, AttemptFailed | AttemptReport)]
        assert kinds == [AttemptFailed, AttemptReport]

    on_stage(test)


def test_service_names_and_model_are_in_the_hello() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        assert p.hello is not None
        assert d.hello is not None
        assert (p.hello.worker_id, p.hello.role, p.hello.addresses) == ("prefill-0", "prefill", ("mem://p",))
        assert (d.hello.worker_id, d.hello.role, d.hello.addresses) == ("decode-0", "decode", ())
        assert d.hello.blocks == MODEL.blocks
        assert d.hello.export_blocks == int(SchedulerSettings().export_share * MODEL.blocks) > 0
        assert d.hello.max_sequences == SchedulerSettings().max_sequences
        assert d.hello.layout == replace(MODEL.layout)
        assert isinstance(stage.prefill_worker, WorkerService)

    on_stage(test)


def test_a_prompt_decode_already_holds_still_gets_its_first_token_from_prefill() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        assert p.hello is not None
        assert d.hello is not None
        for handle in (1, 2):
            to_p, to_d = hand_off(handle, p.hello, d.hello, prompt(64), stage.clock.wall())
            p.link.tokens.send(to_p)
            d.link.tokens.send(to_d)
            report = await d.ended(handle)
            await p.ended(handle)
            assert d.tokens(handle) == reference(to_d)
        assert report.tokens_reused > 0
        assert report.tokens_computed <= 1
        await asyncio.sleep(2.0)
        assert isinstance(stage.prefill_parts.engine, LocalEngine)
        assert stage.prefill_parts.engine.scheduler.load().blocks_exported == 0

    on_stage(test)


def test_a_pull_that_never_finds_its_holder_is_computed_once_told_to() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        assert p.hello is not None
        assert d.hello is not None
        stale = msgspec.structs.replace(p.hello, epoch=p.hello.epoch ^ 1)
        to_p, to_d = hand_off(1, stale, d.hello, prompt(64), stage.clock.wall())
        p.link.tokens.send(to_p)
        d.link.tokens.send(to_d)
        await p.ended(1)
        d.link.tokens.send(ProvideFirst(1, 0, p.tokens(1)[0]))
        report = await d.ended(1)
        assert p.tokens(1) + d.tokens(1) == reference(to_d)
        assert report.tokens_computed > 0
        pull = next(span for span in report.spans if span.name == "kv.pull")
        assert "stale_epoch" in str(pull.attributes["failed"])

    on_stage(test)


def test_ending_an_attempt_ends_its_fetch() -> None:
    async def test(stage: Stage) -> None:
        _, d = await stage.connect()
        assert d.hello is not None
        ghost = msgspec.structs.replace(d.hello, addresses=("mem://p",))
        _, to_d = hand_off(1, ghost, d.hello, prompt(64), stage.clock.wall())
        d.link.tokens.send(to_d)
        await asyncio.sleep(0.0)
        d.link.tokens.send(Cancel(1))
        await d.ended(1)
        await asyncio.sleep(5.0)
        load = stage.engine.scheduler.load()
        assert load.blocks_free == MODEL.blocks
        assert stage.engine.scheduler.kv_cache.pool.quarantined == 0

    on_stage(test)
