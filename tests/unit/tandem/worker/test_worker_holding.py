"""Resumable attempts on a worker whose router is lost: held, claimed, replayed, freed."""

import asyncio

import msgspec
import pytest

from kv_transfer.transport.memory import MemoryNetwork
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.deadlines import Deadlines
from tandem.core.messages import (
    AttemptFailed,
    AttemptReport,
    AttemptResumed,
    Cancel,
    ResumeAttempt,
    ResumeNotFound,
    RetainOutputs,
    SequenceOutput,
    Submit,
    TokenLogprob,
)
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.core.simple_tokenizer import decode
from tandem.engine.local import LocalEngine
from tandem.link.memory_link import MemoryLinks
from tandem.worker.attempts import Attempt
from tandem.worker.output_log import OutputLog
from tandem.worker.resumable_attempts import ResumableAttempts
from tests.unit.tandem.worker.test_worker_host import Stage, on_stage, reference
from tests.worlds.worker_stage import (
    Router,
    build_decode,
    dial,
    hand_off,
    memory_transport,
    parts,
    prompt,
    running,
    submit,
)

LEASE_S = 15.0
LONG = Stopping(max_tokens=120, ignore_eos=True)


def resumable(one: Submit, key: bytes = b"key", **more: object) -> Submit:
    return msgspec.structs.replace(one, resume=b"sealed", resume_key=key, **more)


async def claimed(router: Router, handle: int, key: bytes = b"key") -> AttemptResumed | ResumeNotFound:
    """What the worker answers."""
    router.link.tokens.send(ResumeAttempt(handle, (b"other", key)))
    await router.until(lambda: bool(answers(router, handle)))
    return answers(router, handle)[0]


def answers(router: Router, handle: int) -> list[AttemptResumed | ResumeNotFound]:
    return [one for one in router.heard if isinstance(one, AttemptResumed | ResumeNotFound) and one.handle == handle]


def test_an_attempt_goes_on_without_its_router_and_the_next_one_hears_all_of_it() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        _, other = await stage.connect("other")
        one = resumable(submit(1, stopping=LONG))
        router.link.tokens.send(one)
        await router.until(lambda: len(router.tokens(1)) >= 5)
        router.link.close("it died")
        await asyncio.sleep(0.2)
        assert stage.decode_worker.host.attempts == 1
        answer = await claimed(other, 7)
        assert isinstance(answer, AttemptResumed)
        assert (answer.resume, answer.mode, answer.attempt, answer.starts) == (b"sealed", "local", 1, ((0, 1),))
        assert 59.0 < answer.left_s < 60.0
        said = other.heard.index(answer)
        before = [output for message in other.heard[:said] for output in getattr(message, "outputs", ())]
        assert len(before) > 5
        await other.ended(7)
        assert other.tokens(7) == reference(one)
        assert other.text(7) == decode(reference(one))

    on_stage(test)


def test_what_is_not_resumable_ends_with_its_router() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        router.link.tokens.send(submit(1, stopping=LONG))
        router.link.tokens.send(resumable(submit(2, stopping=LONG)))
        await router.until(lambda: len(router.tokens(1)) >= 2)
        router.link.close("it died")
        await asyncio.sleep(0.1)
        assert stage.decode_worker.host.attempts == 1

    on_stage(test)


@pytest.mark.parametrize("silent", [False, True])
def test_nobody_claims_it_and_everything_is_free_at_the_end_of_the_lease(silent: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        links, clock = MemoryLinks(), LoopClock(loop)
        made = parts(clock, "d", deadlines=Deadlines(resumable_lease_s=1.0, router_restart_s=3.0))
        worker = build_decode(made, links.server("d"), [memory_transport(MemoryNetwork(), "d")])
        async with running(worker):
            router, other = await dial(links.dialer("router"), "d"), await dial(links.dialer("other"), "d")
            router.link.tokens.send(resumable(submit(1, stopping=Stopping(max_tokens=3000, ignore_eos=True))))
            await router.until(lambda: len(router.tokens(1)) >= 2)
            router.silent = silent
            if not silent:
                router.link.close("it died")
            lost_s = 2.5 if silent else 0.0
            await asyncio.sleep(3.5 + lost_s)
            assert worker.host.attempts == 1
            await asyncio.sleep(1.5)
            assert worker.host.attempts == 0
            assert isinstance(made.engine, LocalEngine)
            assert made.engine.scheduler.kv_cache.pool.used == 0
            assert isinstance(await claimed(other, 1), ResumeNotFound)

    run(main, limit_s=100.0)


def test_a_living_router_is_told_that_its_request_was_taken_over() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        _, other = await stage.connect("other")
        router.link.tokens.send(resumable(submit(3, stopping=LONG)))
        await router.until(lambda: len(router.tokens(3)) >= 4)
        assert isinstance(await claimed(other, 9), AttemptResumed)
        await router.until(lambda: bool(router.failed))
        assert (router.failed[0].handle, router.failed[0].code) == (3, "taken_over")
        heard = len(router.outputs)
        router.link.tokens.send(Cancel(3))
        router.link.close("it leaves")
        await other.ended(9)
        assert other.tokens(9) == reference(submit(3, stopping=LONG))
        assert len(router.outputs) == heard

    on_stage(test)


def test_prefill_and_decode_are_both_claimed_and_what_prefill_said_has_its_logprobs() -> None:
    async def test(stage: Stage) -> None:
        p, d = await stage.connect()
        other_p, other_d = await stage.connect("other")
        assert p.hello is not None
        assert d.hello is not None
        pair = hand_off(1, p.hello, d.hello, prompt(300), stage.clock.wall(), sampling=Sampling(logprobs=1))
        to_p, to_d = (resumable(one) for one in pair)
        d.link.tokens.send(to_d)
        p.link.tokens.send(to_p)
        p.link.close("it died")
        d.link.close("it died")
        await asyncio.sleep(3.0)
        on_p, on_d = await claimed(other_p, 5), await claimed(other_d, 6)
        assert isinstance(on_p, AttemptResumed)
        assert isinstance(on_d, AttemptResumed)
        assert (on_p.mode, on_d.mode) == ("prefill", "decode")
        assert [output.position for output in other_p.outputs] == [1]
        assert other_p.outputs[0].logprobs
        assert not other_d.outputs

    on_stage(test)


def test_a_whole_answer_stays_for_a_while_after_its_end_and_a_cancelled_one_does_not() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        _, other = await stage.connect("other")
        router.link.tokens.send(resumable(submit(1), b"whole"))
        router.link.tokens.send(resumable(submit(2, stopping=LONG), b"part"))
        await router.ended(1)
        router.link.tokens.send(Cancel(1))
        router.link.tokens.send(Cancel(2))
        await router.ended(2)
        assert isinstance(await claimed(other, 1, b"whole"), AttemptResumed)
        assert other.tokens(1) == reference(submit(1))
        await other.until(lambda: any(isinstance(one, AttemptReport) for one in other.heard))
        assert isinstance(await claimed(other, 2, b"part"), ResumeNotFound)
        await asyncio.sleep(LEASE_S + 1.0)
        assert isinstance(await claimed(other, 3, b"whole"), ResumeNotFound)

    on_stage(test)


def test_what_was_accepted_before_an_attempt_is_said_first() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        _, other = await stage.connect("other")
        whole = reference(submit(1))
        kept = tuple(SequenceOutput(0, 0, at + 1, (whole[at],), f"<{at}>", 3 * at) for at in range(4))
        forced = (ChildRequest(0, 11, whole[:4], 12),)
        router.link.tokens.send(resumable(submit(1, branches=forced), kept=kept))
        await router.ended(1)
        answer = await claimed(other, 1)
        assert isinstance(answer, AttemptResumed)
        assert answer.starts == ((0, 5),)
        assert other.tokens(1) == whole
        assert [output.text for output in other.outputs[:4]] == ["<0>", "<1>", "<2>", "<3>"]

    on_stage(test)


def test_a_failure_that_nobody_heard_is_told_to_the_claimer() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        _, other = await stage.connect("other")
        router.link.tokens.send(resumable(submit(1, stopping=Stopping(max_tokens=3000), deadline_s=1.0)))
        await router.until(lambda: len(router.tokens(1)) >= 2)
        router.link.close("it died")
        await asyncio.sleep(3.0)
        assert isinstance(await claimed(other, 4), AttemptResumed)
        await other.ended(4)
        assert other.failed == [AttemptFailed(4, "deadline_exceeded", other.failed[0].message)]

    on_stage(test)


def test_a_frozen_worker_holds_nothing_for_anybody() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        router.link.tokens.send(resumable(submit(1, stopping=Stopping(max_tokens=3000, ignore_eos=True))))
        await router.until(lambda: len(router.tokens(1)) >= 2)
        router.link.close("it died")
        await asyncio.sleep(0.1)
        host = stage.decode_worker.host
        host.incarnation.beat(stage.clock.now() - 10.0)
        await asyncio.sleep(1.0)
        assert host.attempts == 0

    on_stage(test)


def output(position: int, text: str = "x", logprobs: tuple[TokenLogprob, ...] = ()) -> SequenceOutput:
    return SequenceOutput(0, 0, position, (position,), text, position - 1, None, None, logprobs)


def test_a_log_keeps_each_position_once_and_the_better_of_two() -> None:
    log = OutputLog((output(1),))
    log.add(output(1))
    log.add(output(2))
    log.keep(output(2, "x", (TokenLogprob(-1.0),)))
    log.keep(output(4))
    said = [one for message in log.messages(9) for one in message.outputs]
    assert [(one.handle, one.position, len(one.logprobs)) for one in said] == [(9, 1, 0), (9, 2, 1)]
    assert not log.finished(0)
    log.add(msgspec.structs.replace(output(3), finish="stop"))
    assert log.finished(0)
    assert not log.finished(1)


def test_too_much_to_keep_gives_up_the_oldest_of_what_only_waits() -> None:
    holding = ResumableAttempts(LEASE_S, LEASE_S, bytes_max=3000)
    attempts = []
    for number in range(4):
        one = resumable(submit(number, tokens=prompt(250)), bytes([number]))
        attempts.append(Attempt(1, number, one, 0.0, log=OutputLog()))
        holding.add(attempts[-1])
    holding.ended(attempts[1], AttemptReport(1, 0, 0, 0, 0, ()), now=1.0)
    holding.ended(attempts[0], AttemptReport(0, 0, 0, 0, 0, ()), now=2.0)
    assert holding.expired(3.0) == ()
    holding.lost(1, now=4.0)
    assert [held.attempt.work_id for held in holding.expired(5.0)] == [0, 1]
    assert [holding.find((bytes([number]),), 5.0) is not None for number in range(4)] == [False, False, True, True]
    assert len(holding.expired(4.0 + LEASE_S)) == 2
    assert len(holding) == 0


def test_keep_after_the_end_still_counts() -> None:
    async def test(stage: Stage) -> None:
        _, router = await stage.connect()
        _, other = await stage.connect("other")
        one = resumable(submit(1, stopping=Stopping(max_tokens=1)))
        router.link.tokens.send(one)
        await router.ended(1)
        first = msgspec.structs.replace(router.outputs[0], logprobs=(TokenLogprob(-2.0),))
        router.link.tokens.send(RetainOutputs(1, (first,)))
        assert isinstance(await claimed(other, 1), AttemptResumed)
        assert other.outputs[0].logprobs == (TokenLogprob(-2.0),)

    on_stage(test)
