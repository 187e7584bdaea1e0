"""A decode worker whose hand-off fails tells its router first, and computes nothing before it hears its word."""

import asyncio

import msgspec
import pytest

from tandem.core.messages import AttemptResumed, Cancel, ProvideFirst, SampleFirst, Submit, Transferred
from tests.unit.tandem.worker import test_damaged_blocks as damaged
from tests.unit.tandem.worker.test_worker_holding import claimed, resumable
from tests.unit.tandem.worker.test_worker_host import Stage, on_stage, reference
from tests.worlds.worker_stage import Router, hand_off, prompt


def stale(stage: Stage, p: Router, d: Router, *, asks: bool = True) -> tuple[Submit, Submit]:
    """A hand-off that cannot come, as its holder is another incarnation now."""
    assert p.hello is not None
    assert d.hello is not None
    old = msgspec.structs.replace(p.hello, epoch=p.hello.epoch ^ 1)
    to_p, to_d = hand_off(1, old, d.hello, prompt(64), stage.clock.wall())
    return to_p, msgspec.structs.replace(to_d, confirm_recompute=asks)


def said(router: Router) -> list[str]:
    return [one.code for one in router.heard if isinstance(one, Transferred)]


def computed(stage: Stage) -> int:
    """Prompt tokens that the decode worker's works have computed."""
    return sum(job.root.computed for job in stage.engine.scheduler._jobs.values())


async def failed(d: Router) -> None:
    await d.until(lambda: bool(said(d)))


@pytest.mark.parametrize("first", [False, True])
def test_nothing_is_computed_before_the_word(first: bool) -> None:
    """Also where the first token is known: it says nothing of the blocks."""

    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        _, to_d = stale(stage, p, d)
        d.link.tokens.send(to_d)
        await failed(d)
        if first:
            d.link.tokens.send(ProvideFirst(1, 0, reference(to_d)[0]))
        await asyncio.sleep(20.0)
        assert said(d) == ["stale_epoch"]
        assert computed(stage) == 0
        assert not d.outputs
        d.link.tokens.send(SampleFirst(1))
        report = await d.ended(1)
        assert d.tokens(1) == reference(to_d)[int(first) :]
        assert report.tokens_computed == 64
        pull = next(span for span in report.spans if span.name == "kv.pull")
        assert "stale_epoch" in str(pull.attributes["failed"])
        assert said(d) == ["stale_epoch"], "told once"

    on_stage(test)


def test_a_router_that_does_not_ask_for_it_is_told_and_not_waited_for() -> None:
    """One of the protocol before."""

    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        _, to_d = stale(stage, p, d, asks=False)
        d.link.tokens.send(to_d)
        d.link.tokens.send(ProvideFirst(1, 0, reference(to_d)[0]))
        began = stage.clock.now()
        await d.ended(1)
        assert stage.clock.now() - began < 10.0
        assert said(d) == ["stale_epoch"]
        assert d.tokens(1) == reference(to_d)[1:]

    on_stage(test)


def test_without_a_word_it_goes_on_when_its_router_should_have_judged() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        _, to_d = stale(stage, p, d)
        d.link.tokens.send(msgspec.structs.replace(to_d, deadline_s=600.0))
        await failed(d)
        d.link.tokens.send(ProvideFirst(1, 0, reference(to_d)[0]))
        began, unjudged_s = stage.clock.now(), stage.decode_parts.deadlines.unjudged_s
        await d.ended(1)
        assert unjudged_s - 0.1 <= stage.clock.now() - began <= unjudged_s + 5.0
        assert d.tokens(1) == reference(to_d)[1:]

    on_stage(test)


def test_a_word_that_comes_before_the_fetch_has_failed_holds() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        _, to_d = stale(stage, p, d)
        d.link.tokens.send(to_d)
        d.link.tokens.send(SampleFirst(1))
        began = stage.clock.now()
        await d.ended(1)
        assert stage.clock.now() - began < 10.0
        assert d.tokens(1) == reference(to_d)

    on_stage(test)


def test_a_cancel_while_it_waits_frees_everything() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        _, to_d = stale(stage, p, d)
        d.link.tokens.send(to_d)
        await failed(d)
        d.link.tokens.send(Cancel(1))
        await d.ended(1)
        await asyncio.sleep(0.1)
        assert stage.engine.scheduler.kv_cache.pool.used == 0
        assert stage.engine.scheduler.kv_cache.pool.quarantined == 0

    on_stage(test)


def test_a_router_that_is_lost_while_it_waits_takes_the_attempt_with_it() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        _, to_d = stale(stage, p, d)
        d.link.tokens.send(to_d)
        await failed(d)
        d.link.close("it died")
        await asyncio.sleep(0.5)
        assert stage.decode_worker.host.attempts == 0
        assert stage.engine.scheduler.kv_cache.pool.used == 0

    on_stage(test)


def test_whoever_claims_it_is_asked_in_turn() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        _, other = await stage.connect("other")
        _, to_d = stale(stage, p, d)
        d.link.tokens.send(resumable(to_d))
        await failed(d)
        d.link.close("it died")
        await asyncio.sleep(0.2)
        answer = await claimed(other, 7)
        assert isinstance(answer, AttemptResumed)
        assert answer.transferred
        assert said(other) == ["stale_epoch"]
        assert other.heard.index(answer) > next(
            place for place, one in enumerate(other.heard) if isinstance(one, Transferred)
        )
        other.link.tokens.send(SampleFirst(7))
        await other.ended(7)
        assert other.tokens(7) == reference(to_d)

    on_stage(test)


def test_of_a_hand_off_that_waits_for_nobody_a_claimant_is_told_nothing_to_judge() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        _, other = await stage.connect("other")
        _, to_d = stale(stage, p, d, asks=False)
        d.link.tokens.send(resumable(to_d))
        await failed(d)
        d.link.close("it died")
        await asyncio.sleep(0.2)
        answer = await claimed(other, 7)
        assert isinstance(answer, AttemptResumed)
        assert answer.transferred
        assert not said(other)

    on_stage(test)


def test_the_word_also_ends_the_waiting_for_blocks_of_which_some_have_come() -> None:
    """Then the engine does not stop the fetch by itself."""

    async def test(stage: damaged.Stage) -> None:
        p, d = await stage.linked()
        assert p.hello is not None
        assert d.hello is not None
        to_p, to_d = hand_off(1, p.hello, d.hello, prompt(100), stage.clock.wall())
        p.link.tokens.send(to_p)
        await p.ended(1)
        stage.engine("p").memory.block(stage.exported()[3].slot)[9] ^= 4
        d.link.tokens.send(msgspec.structs.replace(to_d, confirm_recompute=True))
        d.link.tokens.send(ProvideFirst(1, 0, p.outputs[0].tokens[0]))
        await failed(d)
        assert said(d) == ["kv_corrupt"]
        await asyncio.sleep(5.0)
        assert not d.outputs
        d.link.tokens.send(SampleFirst(1))
        began = stage.clock.now()
        report = await d.ended(1)
        assert stage.clock.now() - began < 5.0
        assert 0 < report.tokens_computed < 100
        p.link.tokens.send(Cancel(1))

    damaged.on_stage(test)
