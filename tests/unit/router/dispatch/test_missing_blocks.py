"""Decode could not fetch its prompt: the router decides when it is computed again, and by whose leave."""

import asyncio
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.attempt import WorkerStream
from router.dispatch.missing import MissingBlocks, decide_recompute
from router.dispatch.recovery import RecoveryStream
from router.fleet.peer import Peer
from router.settings import RetrySettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.messages import AttemptResumed, Cancel, SampleFirst
from tests.unit.router.dispatch.test_prefill_given_up import (
    PAIRED,
    STANDSTILL_S,
    Stuck,
    ended,
    scenario,
    told,
    unwilling,
)
from tests.worlds.router_world import World

SETTINGS = RetrySettings()
BOUND_S = 5.0
ONE_RETRY = replace(PAIRED, retry=RetrySettings(share=0.0, burst=1))


def test_a_retry_that_is_granted_computes_at_once() -> None:
    verdict = decide_recompute(MissingBlocks("kv_gone", 10.0, 10.0), 10.0, True, SETTINGS, BOUND_S)
    assert verdict.compute
    assert verdict.reason == "its blocks did not come: kv_gone"


@given(st.floats(0.0, 1e6), st.floats(0.1, 60.0), st.floats(0.0, 2.0), st.floats(0.0, 5.0))
def test_a_budget_that_never_grants_one_is_asked_for_its_bound_and_no_longer(
    since: float, bound_s: float, first_s: float, most_s: float
) -> None:
    """Whatever the back-off: each question comes later than the one before, and the last at the bound."""
    settings = RetrySettings(backoff_first_s=first_s, backoff_max_s=most_s)
    missing, asked = MissingBlocks("transfer_failed", since, since), 0
    while not (verdict := decide_recompute(missing, missing.ask_at, False, settings, bound_s)).compute:
        assert missing.ask_at < verdict.ask_at <= since + bound_s
        missing, asked = missing.again(verdict.ask_at), asked + 1
        assert asked <= 60.0 / 0.02 + 1
    assert missing.ask_at == since + bound_s
    assert "no retry was granted" in verdict.reason
    assert asked == missing.refused > 0


def test_the_pauses_between_questions_double() -> None:
    missing, asked = MissingBlocks("kv_gone", 0.0, 0.0), list[float]()
    while not (verdict := decide_recompute(missing, missing.ask_at, False, SETTINGS, BOUND_S)).compute:
        missing = missing.again(verdict.ask_at)
        asked.append(round(verdict.ask_at, 3))
    assert asked == [0.05, 0.15, 0.35, 0.75, 1.55, 2.55, 3.55, 4.55, 5.0]


def fails(stuck: Stuck) -> None:
    """No block gets from one worker to the other, but canaries do."""
    stuck.d1.transfer_of_requests = lambda _holder: ("tcp", "transfer_failed")


def budget(stuck: Stuck) -> bool:
    """Whether a retry is left."""
    return stuck.world.dispatcher.may_retry()


def test_prefill_is_cancelled_and_has_ended_before_decode_computes() -> None:
    async def body(stuck: Stuck) -> None:
        fails(stuck)
        stuck.p1.end_s = 0.4
        client = stuck.ask()
        cancelled = await stuck.comes(stuck.p1, Cancel)
        assert cancelled < 0.1
        assert not told(stuck.d1, SampleFirst)
        assert 0.35 <= await stuck.comes(stuck.d1, SampleFirst) - cancelled <= 0.5
        (await ended(client)).check_whole()
        assert stuck.twice == 10, "what the report of the cancelled prefill says"
        assert not budget(stuck), "the retry was charged"

    scenario(body, ONE_RETRY)


def test_only_a_decode_submit_asks_its_worker_to_wait_for_the_word() -> None:
    async def body(stuck: Stuck) -> None:
        fails(stuck)
        (await ended(stuck.ask())).check_whole()
        assert [(each.mode, each.confirm_recompute) for each in stuck.d1.submits] == [("decode", True)]
        assert [(each.mode, each.confirm_recompute) for each in stuck.p1.submits] == [("prefill", False)]

    scenario(body)


def test_where_too_much_is_being_retried_decode_waits_for_a_bounded_time_and_goes_on() -> None:
    async def body(stuck: Stuck) -> None:
        fails(stuck)
        stuck.p1.end_s = 0.2
        client = stuck.ask()
        cancelled = await stuck.comes(stuck.p1, Cancel)
        assert STANDSTILL_S - 0.05 <= cancelled <= STANDSTILL_S + 0.2
        assert told(stuck.d1, SampleFirst) == 0
        await stuck.comes(stuck.d1, SampleFirst)
        (await ended(client)).check_whole()

    scenario(body, unwilling())


def test_a_late_prefill_that_nobody_may_race_does_not_keep_decode_from_being_asked_about() -> None:
    """A second attempt is due while decode waits for its word, and there is no retry for either."""

    async def body(stuck: Stuck) -> None:
        fails(stuck)
        client = stuck.ask()
        assert await stuck.comes(stuck.d1, SampleFirst) <= STANDSTILL_S + 0.3
        (await ended(client)).check_whole()

    scenario(body, replace(PAIRED, retry=RetrySettings(share=0.0, burst=0, hedge_after_s=2.0)))


def test_a_retry_that_others_earn_meanwhile_is_taken() -> None:
    async def body(stuck: Stuck) -> None:
        fails(stuck)
        assert budget(stuck), "nothing is left of it"
        client = stuck.ask()
        await asyncio.sleep(1.0)
        assert not told(stuck.p1, Cancel)
        for _ in range(2):
            stuck.world.dispatcher._retries.earn()
        assert await stuck.comes(stuck.p1, Cancel) < 1.8
        (await ended(client)).check_whole()
        assert not budget(stuck)

    scenario(body, replace(PAIRED, retry=RetrySettings(share=0.4, burst=1)))


def test_a_prefill_that_is_lost_while_the_budget_refuses_is_waited_for_no_longer() -> None:
    async def body(stuck: Stuck) -> None:
        fails(stuck)
        client = stuck.ask()
        await asyncio.sleep(1.0)
        stuck.p1.die()
        assert await stuck.comes(stuck.d1, SampleFirst) < 1.2
        (await ended(client)).check_whole()

    scenario(body, unwilling())


@pytest.mark.parametrize("watched", [False, True])
def test_a_prompt_that_prefill_has_computed_is_a_retry_too(watched: bool) -> None:
    """Its first token is known, perhaps from decode; the blocks are not there, and are computed again."""

    async def body(stuck: Stuck) -> None:
        stuck.p1.prefill_s, stuck.d1.step_s = 0.05, 0.5
        stuck.d1.transfer_of_requests = lambda _holder: None
        client = stuck.ask()
        await asyncio.sleep(0.2)
        assert client.tokens[0]
        leg = next(leg for request in stuck.world.dispatcher._requests.values() for leg in request.worker_streams[1:])
        leg.watched = watched
        leg.on_transferred("kv_gone")
        assert await stuck.comes(stuck.d1, SampleFirst) < 0.3
        (await ended(client)).check_whole()
        assert stuck.twice == 10
        assert not budget(stuck)

    scenario(body, ONE_RETRY)


def test_prefill_that_has_ended_keeps_no_blocks_while_the_budget_refuses() -> None:
    """Nobody fetches them any more: they are let go of at once, and decode waits for its word all the same."""

    async def body(stuck: Stuck) -> None:
        stuck.p1.prefill_s, stuck.d1.step_s = 0.05, 1.5
        stuck.d1.transfer_of_requests = lambda _holder: None
        client = stuck.ask()
        await asyncio.sleep(0.2)
        assert client.tokens[0]
        leg = next(leg for request in stuck.world.dispatcher._requests.values() for leg in request.worker_streams[1:])
        leg.on_transferred("kv_gone")
        assert await stuck.comes(stuck.p1, Cancel) < 0.3
        assert not told(stuck.d1, SampleFirst)
        assert await stuck.comes(stuck.d1, SampleFirst) >= STANDSTILL_S
        (await ended(client)).check_whole()

    scenario(body, unwilling())


def test_a_client_that_goes_away_while_the_budget_refuses_leaves_nothing() -> None:
    async def body(stuck: Stuck) -> None:
        fails(stuck)
        client = stuck.ask(timeout_s=2.0)
        await ended(client)
        assert client.error is not None
        assert client.error.code == "deadline_exceeded"
        await asyncio.sleep(6.0)
        assert not told(stuck.d1, SampleFirst)
        assert not stuck.d1.jobs

    scenario(body, unwilling())


@pytest.mark.parametrize("code", ["", "kv_gone"])
def test_a_hand_off_whose_prefill_is_lost_already_gets_its_word_again(code: str) -> None:
    """The word and the worker's question may cross."""

    async def body(stuck: Stuck) -> None:
        stuck.d1.transfer_of_requests = lambda _holder: None
        client = stuck.ask()
        await asyncio.sleep(0.1)
        stuck.p1.die()
        first = await stuck.comes(stuck.d1, SampleFirst)
        assert first < 0.3
        leg = next(leg for request in stuck.world.dispatcher._requests.values() for leg in request.worker_streams[1:])
        leg.on_transferred(code)
        await asyncio.sleep(0.005)
        assert told(stuck.d1, SampleFirst) == (2 if code else 1)
        (await ended(client)).check_whole()
        assert budget(stuck), "nobody chose it"

    scenario(body, ONE_RETRY)


def test_an_attempt_that_races_another_goes_on_at_once() -> None:
    """It was charged when it began."""

    async def main(loop: VirtualLoop) -> None:
        retry = RetrySettings(share=0.0, burst=1, hedge_after_s=0.5)
        world = World(loop, replace(PAIRED, retry=retry))
        for name, role in (("p1", "prefill"), ("p2", "prefill"), ("d1", "decode"), ("d2", "decode")):
            world.worker(name, role).prefill_s = 3.0 if role == "prefill" else 0.05
        await world.start()
        client = world.ask(tokens=100)
        await asyncio.sleep(0.3)
        for worker in world.workers.values():
            worker.transfer_of_requests = lambda _holder: ("tcp", "kv_gone")
        (await ended(client)).check_whole()
        racing = [each for each in world.workers.values() if each.role == "decode" and told(each, SampleFirst)]
        assert [[each.attempt for each in worker.submits] for worker in racing] == [[2]]
        await world.stop()

    run(main, limit_s=3000.0)


def test_a_fetch_that_fails_again_does_not_ask_anew() -> None:
    """A fetch that gave its blocks back meanwhile begins once more."""

    async def body(stuck: Stuck) -> None:
        fails(stuck)
        client = stuck.ask()
        await asyncio.sleep(4.0)
        leg = next(leg for request in stuck.world.dispatcher._requests.values() for leg in request.worker_streams[1:])
        leg.on_transferred("kv_gone")
        assert await stuck.comes(stuck.p1, Cancel) <= STANDSTILL_S + 0.2
        (await ended(client)).check_whole()

    scenario(body, unwilling())


class Listener:
    """What a claim and a leg of it need of their surroundings."""

    worker_id = "d1"

    def __init__(self) -> None:
        self.codes: list[str] = []

    def open(self, _target: object) -> int:
        return 7

    def on_transferred(self, code: str) -> None:
        self.codes.append(code)


@pytest.mark.parametrize(
    ("said", "claimed", "heard"), [("kv_gone", True, ["kv_gone"]), (None, True, [""]), (None, False, [])]
)
def test_a_claimant_hears_how_its_fetch_failed(said: str | None, claimed: bool, heard: list[str]) -> None:
    listener = Listener()
    recovery_stream = RecoveryStream(cast(Peer, listener), lambda: None)
    if said is not None:
        recovery_stream.on_transferred(said)
    share = recovery_stream.share(AttemptResumed(7, b"", 1, "decode", 10.0, ((0, 1),), transferred=claimed))
    share.replay(cast(WorkerStream, listener), 0.0)
    assert listener.codes == heard
