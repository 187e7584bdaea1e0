"""Dispatch over scripted workers on virtual time: hand-off, failures, deadlines, and what is left afterwards."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import pytest

from router.placement import Placement, PlacementRequest, Policy
from router.settings import PlacementSettings, RetrySettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.core.messages import Cancel, Load, ProvideFirst, SampleFirst
from tests.worlds.router_world import Client, World

PAIRED = RouterSettings(placement=PlacementSettings(prefer="disaggregated"))


def scenario(
    body: Callable[[World], Awaitable[None]], *, workers: str = "p1 d1 d2", settings: RouterSettings = PAIRED
) -> World:
    """Run `body` in a fresh world of workers named by role, and check that nothing is left."""
    roles = {"p": "prefill", "d": "decode", "u": "unified"}

    async def main(loop: VirtualLoop) -> World:
        world = World(loop, settings)
        for worker_id in workers.split():
            world.worker(worker_id, roles[worker_id[0]])
        await world.start()
        await body(world)
        await world.stop()
        return world

    return run(main, limit_s=3000.0)


async def ended(client: Client) -> Client:
    await asyncio.wait_for(client.ended.wait(), 1000.0)
    return client


def test_a_request_goes_through_prefill_and_decode_and_arrives_whole() -> None:
    async def body(world: World) -> None:
        world.workers["p1"].reused = 16
        client = await ended(world.ask(tokens=200))
        client.check_whole()
        assert client.usage is not None
        assert client.usage.cached_tokens == 16
        p1 = world.workers["p1"]
        decode = next(world.workers[name] for name in ("d1", "d2") if world.workers[name].submits)
        assert [submit.mode for submit in p1.submits] == ["prefill"]
        assert [submit.mode for submit in decode.submits] == ["decode"]
        assert sum(isinstance(command, ProvideFirst) for command in decode.commands) == 1
        assert p1.submits[0].export is not None
        assert decode.submits[0].remote is not None
        assert p1.submits[0].export.lease_id == decode.submits[0].remote.lease_id
        assert len([command for command in p1.commands if isinstance(command, Cancel)]) <= 1, "it lets go once"

    world = scenario(body)
    assert world.recorder.tenants == {"req-1": {"t"}}
    names = [span.name for span in world.recorder.kept["req-1"]]
    assert sorted(names) == ["attempt", "decode", "dispatch", "place", "prefill", "queue"]
    place = next(span for span in world.recorder.kept["req-1"] if span.name == "place")
    assert "p1→d1" in str(place.attributes["costs"])
    assert str(place.attributes["reasons"])


def test_a_request_whose_books_are_wrong_is_found() -> None:
    """Simulations ask after every step: what this does not find they do not."""

    async def body(world: World) -> None:
        client = world.ask()
        (request,) = world.dispatcher._requests.values()
        request._unfinished += 1
        with pytest.raises(AssertionError, match="2 counted, 1 unfinished"):
            world.dispatcher.check()
        request._unfinished -= 1
        world.dispatcher.check()
        (await ended(client)).check_whole()

    scenario(body)


def test_branches_share_one_prefill_and_finish_together() -> None:
    async def body(world: World) -> None:
        client = await ended(world.ask(n=3, tokens=100))
        client.check_whole()
        assert len(world.workers["p1"].submits) == 1

    scenario(body)


def test_a_first_token_relayed_by_decode_is_not_delivered_twice() -> None:
    async def body(world: World) -> None:
        for name in ("d1", "d2"):
            world.workers[name].relay = True
        (await ended(world.ask(n=2, tokens=100))).check_whole()

    scenario(body)


def test_a_finish_at_the_first_position_leaves_nothing_on_decode_or_prefill() -> None:
    async def body(world: World) -> None:
        (await ended(world.ask(max_tokens=1, tokens=100))).check_whole()
        await asyncio.sleep(0.1)
        assert all(not worker.jobs for worker in world.workers.values())
        assert any(isinstance(command, Cancel) for command in world.workers["p1"].commands)

    scenario(body)


def test_a_branch_that_ends_at_its_first_position_is_cancelled_on_decode_and_the_others_go_on() -> None:
    async def body(world: World) -> None:
        world.ends = {0: 1, 2: 4}
        client = await ended(world.ask(n=3, tokens=100))
        client.check_whole()
        decode = next(worker for worker in world.workers.values() if worker.role == "decode" and worker.submits)
        (submit,) = decode.submits
        assert Cancel(submit.handle, 0) in decode.commands
        assert [type(each) for each in decode.commands].count(ProvideFirst) == 2

    scenario(body)


def test_what_a_fenced_attempt_still_sends_is_nobodys() -> None:
    async def body(world: World) -> None:
        for name in ("d1", "d2"):
            world.workers[name].step_s = 0.05
        client = world.ask(tokens=100, max_tokens=400)
        await asyncio.sleep(0.4)
        stuck = next(worker for worker in world.workers.values() if worker.role == "decode" and worker.submits)
        stuck.mute = stuck.deaf = True
        other = next(w for w in world.workers.values() if w.role == "decode" and w is not stuck)
        await asyncio.sleep(13.5)
        assert other.submits
        assert stuck.jobs
        stuck.mute = False
        await ended(client)
        client.check_whole()
        assert len(other.submits) == 1

    scenario(body)


def test_prefill_lost_before_the_first_token_decode_samples_it() -> None:
    async def body(world: World) -> None:
        world.workers["p1"].prefill_s = 5.0
        for name in ("d1", "d2"):
            world.workers[name].reused = 16
        client = world.ask(tokens=100)
        await asyncio.sleep(0.5)
        world.workers["p1"].die()
        (await ended(client)).check_whole()
        assert client.usage is not None
        assert client.usage.cached_tokens == 16, "decode has computed the prompt: what it found is billed as cached"
        decode = next(worker for worker in world.workers.values() if worker.role == "decode" and worker.submits)
        assert [type(command) for command in decode.commands if not isinstance(command, Cancel)][1:] == [SampleFirst]

    scenario(body)


def test_decode_whose_blocks_did_not_come_waits_for_nobody() -> None:
    async def body(world: World) -> None:
        world.workers["p1"].prefill_s = 5.0
        for worker in world.workers.values():
            worker.transfer_of_requests = lambda holder: ("tcp", "transfer_failed")
        client = world.ask(tokens=100)
        began = world.clock.now()
        (await ended(client)).check_whole()
        assert world.clock.now() - began < 4.0
        decode = next(worker for worker in world.workers.values() if worker.role == "decode" and worker.submits)
        assert any(isinstance(command, SampleFirst) for command in decode.commands)
        assert any(isinstance(command, Cancel) for command in world.workers["p1"].commands)

    scenario(body)


def test_prefill_keeps_no_blocks_for_an_answer_that_has_ended_whatever_decode_says_of_its_fetch() -> None:
    async def body(world: World) -> None:
        for name in ("d1", "d2"):
            world.workers[name].transfer_of_requests = lambda _holder: None
        (await ended(world.ask(tokens=100))).check_whole()
        await asyncio.sleep(0.01)
        (submit,) = world.workers["p1"].submits
        assert Cancel(submit.handle) in world.workers["p1"].commands

    scenario(body)


def test_prefill_that_refuses_is_replaced_by_decode() -> None:
    async def body(world: World) -> None:
        world.workers["p1"].fail_with = ("out_of_blocks", "exports are full")
        (await ended(world.ask(tokens=100))).check_whole()

    scenario(body)


def test_a_prefill_worker_that_has_failed_a_request_is_not_asked_again_for_it() -> None:
    """Not even when decode is lost later and the prompt has to be computed once more."""

    async def body(world: World) -> None:
        for name in ("p1", "p2"):
            world.workers[name].fail_with = ("out_of_blocks", "exports are full")
        client = world.ask(tokens=100, max_tokens=50)
        while not client.tokens[0]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (failed,) = [name for name in ("p1", "p2") if world.workers[name].submits]
        (lost,) = [name for name in ("d1", "d2") if world.workers[name].submits]
        for name in ("p1", "p2"):
            world.workers[name].fail_with = None
        world.workers[lost].die()
        (await ended(client)).check_whole()
        assert len(world.workers[failed].submits) == 1

    scenario(body, workers="p1 p2 d1 d2")


@pytest.mark.parametrize("code", ["ticket_refused", "engine_failed", "out_of_blocks"])
def test_what_another_worker_may_do_better_is_tried_there(code: str) -> None:
    """A ticket may be refused by a worker that does not have the newest key yet."""

    async def body(world: World) -> None:
        world.workers["d1"].fail_with = (code, "not here")
        clients = [await ended(world.ask()) for _ in range(3)]
        for client in clients:
            client.check_whole()
        assert world.workers["d1"].submits

    scenario(body, workers="d1 d2", settings=RouterSettings(placement=PlacementSettings(prefer="local")))


def test_prefill_lost_after_the_first_token_changes_nothing() -> None:
    async def body(world: World) -> None:
        client = world.ask(tokens=100, max_tokens=50)
        await asyncio.sleep(0.2)
        assert client.tokens[0]
        world.workers["p1"].die()
        (await ended(client)).check_whole()
        assert not any(isinstance(c, SampleFirst) for w in world.workers.values() for c in w.commands)

    scenario(body)


def test_an_answer_does_not_wait_for_a_report_that_cannot_come() -> None:
    """The worker that computed the prompt is gone."""

    async def body(world: World) -> None:
        world.workers["p1"].report = False
        client, last = world.ask(tokens=100, max_tokens=50), [0.0]
        client.on_output = lambda: last.__setitem__(0, world.clock.now())
        await asyncio.sleep(0.2)
        assert client.tokens[0]
        world.workers["p1"].die()
        (await ended(client)).check_whole()
        assert world.clock.now() - last[0] < 0.01

    scenario(body)


def test_an_answer_does_not_wait_for_a_report_that_would_say_nothing_new() -> None:
    """How much was cached is told by the worker that was tried first."""

    async def body(world: World) -> None:
        for worker in world.workers.values():
            worker.prefill_s = 60.0
        client, last = world.ask(tokens=200), [0.0]
        client.on_output = lambda: last.__setitem__(0, world.clock.now())
        await asyncio.sleep(5.0)
        for worker in world.workers.values():
            if not worker.submits:
                worker.prefill_s, worker.report = 0.1, False
        (await ended(client)).check_whole()
        assert len([worker for worker in world.workers.values() if worker.submits]) == 2
        assert world.clock.now() - last[0] < 0.01

    scenario(body, workers="u1 u2", settings=RouterSettings())


@pytest.mark.parametrize("transferred", [False, True])
def test_a_pair_that_breaks_is_nothing_to_requests_that_need_it_no_more_or_not_yet(transferred: bool) -> None:
    """One waits in line, one has tokens from decode itself: they go on as if nothing had been told."""

    async def body(world: World) -> None:
        world.workers["d1"].step_s = 0.5
        if not transferred:
            world.workers["d1"].transfer_of_requests = lambda _holder: None
        running, waiting = world.ask(tokens=100), world.ask(tokens=100)
        while len(running.tokens[0]) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        world.dispatcher.pair_opened("p1", "d1", "broken")
        assert not waiting.tokens[0]
        for client in (running, waiting):
            (await ended(client)).check_whole()
            spans = world.recorder.spans(client.generation.request_id)
            assert "nothing gets through" not in str([span.attributes for span in spans])
        assert not any(isinstance(command, SampleFirst) for command in world.workers["d1"].commands)

    placement = PlacementSettings(prefer="disaggregated", sequences_per_worker_max=1)
    scenario(body, workers="p1 d1", settings=RouterSettings(placement=placement))


@pytest.mark.parametrize("n", [1, 3])
def test_decode_lost_in_mid_stream_is_resumed_elsewhere(n: int) -> None:
    async def body(world: World) -> None:
        client = world.ask(tokens=100, max_tokens=50, n=n)
        await asyncio.sleep(0.3)
        lost = next(worker for worker in world.workers.values() if worker.role == "decode" and worker.submits)
        before = sum(len(tokens) for tokens in client.tokens.values())
        assert before > 1
        lost.die()
        (await ended(client)).check_whole()
        other = next(w for w in world.workers.values() if w.role == "decode" and w is not lost)
        assert sum(len(branch.forced) for branch in other.submits[0].branches) >= before
        assert other.submits[0].branches[0].sent_chars > 0
        assert other.submits[0].mode == ("local" if n > 1 else "decode")

    scenario(body)


def test_decode_that_contradicts_what_was_accepted_is_cancelled_and_replaced() -> None:
    async def body(world: World) -> None:
        for name in ("d1", "d2"):
            world.workers[name].relay = True
        world.workers["d1"].lie_at = 1
        world.workers["d1"].prefill_s = 0.0
        (await ended(world.ask(tokens=100))).check_whole()
        assert any(isinstance(command, Cancel) for command in world.workers["d1"].commands)
        assert world.workers["d2"].submits

    async def late_relay(world: World) -> None:
        """The lie must come second, or it would be the accepted one."""
        world.links.policy = SlowFrom("d1")
        await body(world)

    scenario(late_relay)


class SlowFrom:
    def __init__(self, name: str) -> None:
        self.name = name

    def delay_s(self, source: str, target: str) -> float:
        return 0.05 if source == self.name else 0.0

    def repeats(self, source: str, target: str) -> bool:
        return False


def test_the_only_decode_worker_comes_back_and_the_stream_goes_on() -> None:
    async def body(world: World) -> None:
        client = world.ask(tokens=100, max_tokens=50)
        await asyncio.sleep(0.3)
        world.workers["d1"].die()
        await asyncio.sleep(8.0)
        assert not client.ended.is_set()
        await world.workers["d1"].revive()
        (await ended(client)).check_whole()

    scenario(body, workers="p1 d1")


def test_a_started_request_does_not_wait_for_ever() -> None:
    async def body(world: World) -> None:
        client = world.ask(tokens=100, max_tokens=50)
        await asyncio.sleep(0.3)
        world.workers["d1"].die()
        await ended(client)
        assert client.error is not None
        assert client.error.code == "no_workers"
        client.check_prefix()

    scenario(body, workers="p1 d1")


def test_a_new_request_waits_for_a_worker_and_then_for_no_longer_than_the_queue_allows() -> None:
    async def body(world: World) -> None:
        world.workers["d1"].die()
        await asyncio.sleep(0.1)
        first, began = world.ask(), world.clock.now()
        await ended(first)
        assert first.error is not None
        assert first.error.code == "no_workers"
        assert first.error.retry_after_s is not None
        assert world.clock.now() - began == pytest.approx(10.0, abs=0.1)
        second = world.ask()
        await asyncio.sleep(3.0)
        await world.workers["d1"].revive()
        (await ended(second)).check_whole()

    scenario(body, workers="d1")


@pytest.mark.parametrize("timeout_s", [0.5, 2.0, 3.0])
def test_the_total_deadline_ends_a_request_typed_and_not_before_it(timeout_s: float) -> None:
    async def body(world: World) -> None:
        for worker in world.workers.values():
            worker.step_s = 0.1
        client = world.ask(max_tokens=1000, timeout_s=timeout_s)
        began = world.clock.now()
        await ended(client)
        assert world.clock.now() - began == pytest.approx(timeout_s, abs=0.01)
        assert client.error is not None
        assert client.error.code == "deadline_exceeded"
        client.check_prefix()
        await asyncio.sleep(0.1)
        assert all(not worker.jobs for worker in world.workers.values())

    scenario(body)


def test_a_silent_decode_worker_is_left_after_the_token_deadline() -> None:
    async def body(world: World) -> None:
        client = world.ask(tokens=100, max_tokens=100)
        await asyncio.sleep(0.4)
        stuck = next(worker for worker in world.workers.values() if worker.role == "decode" and worker.submits)
        stuck.mute = True
        (await ended(client)).check_whole()
        assert world.clock.now() < 15.0

    scenario(body)


def test_a_silent_prefill_worker_is_left_and_decode_samples() -> None:
    async def body(world: World) -> None:
        world.workers["p1"].mute = True
        client = await ended(world.ask(tokens=100))
        client.check_whole()
        assert any(isinstance(c, SampleFirst) for w in world.workers.values() for c in w.commands)

    scenario(body)


def test_failures_everywhere_end_in_a_typed_error_after_bounded_attempts() -> None:
    async def body(world: World) -> None:
        for worker in world.workers.values():
            worker.fail_with = ("engine_failed", "it broke")
        client = await ended(world.ask(tokens=100))
        assert client.error is not None
        assert client.error.code == "engine_failed"
        assert "gave up after 4 attempts" in client.error.message

    scenario(body)


def test_a_fault_of_the_request_itself_is_not_retried() -> None:
    async def body(world: World) -> None:
        for name in ("d1", "d2"):
            world.workers[name].fail_with = ("context_length_exceeded", "too long", "prompt")
        client = await ended(world.ask(tokens=100))
        assert client.error is not None
        assert (client.error.code, client.error.param) == ("context_length_exceeded", "prompt")
        assert sum(len(world.workers[name].submits) for name in ("d1", "d2")) == 1

    scenario(body)


def test_retries_after_failures_are_bounded_as_a_share_of_traffic() -> None:
    async def body(world: World) -> None:
        for worker in world.workers.values():
            worker.fail_with = ("engine_failed", "it broke")
        clients = [world.ask(tokens=100) for _ in range(40)]
        for client in clients:
            await ended(client)
            assert client.error is not None
        submits = sum(len(world.workers[name].submits) for name in ("d1", "d2"))
        assert submits <= 40 + 4 + 40 * 0.2 + 1

    settings = replace(PAIRED, retry=RetrySettings(burst=4))
    scenario(body, settings=settings)


def test_requests_beyond_the_workers_room_wait_in_the_router_and_all_finish() -> None:
    async def body(world: World) -> None:
        clients = [world.ask(max_tokens=20) for _ in range(20)]
        await asyncio.sleep(0.01)
        assert len(world.workers["d1"].submits) == 3
        for client in clients:
            (await ended(client)).check_whole()

    settings = RouterSettings(placement=PlacementSettings(prefer="local", sequences_per_worker_max=3))
    scenario(body, workers="d1", settings=settings)


def test_who_waits_for_the_place_of_a_prompt_has_it_as_soon_as_that_is_computed() -> None:
    """Not when the answer to it has ended, which another worker generates, nor with the next figures of some worker:
    while `d1` drains, `u1` is all that is left, and has one place."""

    async def body(world: World) -> None:
        for peer in world.fleet.peers():
            peer.view.take_prompts(peer.worker_id == "u1")
        first, computed = world.ask(tokens=100, max_tokens=500), list[float]()
        first.on_output = lambda: computed.append(world.clock.now())
        for peer in world.fleet.peers():
            peer.view.draining = peer.worker_id == "d1"
        waits = world.ask(tokens=100, max_tokens=2)
        await asyncio.sleep(0.01)
        assert [submit.mode for submit in world.workers["u1"].submits] == ["prefill"]
        while len(world.workers["u1"].submits) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert world.clock.now() - computed[0] < 0.01
        for client in (first, waits):
            (await ended(client)).check_whole()

    placement = PlacementSettings(prefer="disaggregated", sequences_per_worker_max=1)
    scenario(body, workers="u1 d1", settings=RouterSettings(placement=placement))


def test_who_would_wait_too_long_in_a_line_that_has_been_seen_to_move_is_refused_and_holds_nothing() -> None:
    async def body(world: World) -> None:
        clients = [world.ask(max_tokens=20) for _ in range(20)]
        for client in clients[:12]:
            await ended(client)
        held = world.dispatcher.held

        def ask_many() -> None:
            clients.extend(world.ask(max_tokens=20) for _ in range(500))

        with pytest.raises(TandemError, match="before it it waits for") as refused:
            ask_many()
        assert refused.value.code == "queue_full"
        assert refused.value.retry_after_s is not None
        assert refused.value.retry_after_s >= 1.0
        assert world.dispatcher.held - held == len(clients) - 20
        for client in clients:
            await ended(client)

    placement = PlacementSettings(prefer="local", sequences_per_worker_max=3)
    settings = RouterSettings(placement=placement, deadlines=Deadlines(queue_s=2.0))
    scenario(body, workers="d1", settings=settings)


def test_cancel_reaches_both_workers_and_the_sink_hears_no_more() -> None:
    async def body(world: World) -> None:
        client = Client(world, world.generation(tokens=100, max_tokens=100))
        running = world.dispatcher.start(client.generation, client)
        world.workers["p1"].prefill_s = 1.0
        await asyncio.sleep(0.1)
        assert sum(len(worker.jobs) for worker in world.workers.values()) == 2
        running.cancel("client disconnected")
        running.cancel("twice does no harm")
        await asyncio.sleep(0.1)
        assert all(not worker.jobs for worker in world.workers.values())
        assert not client.ended.is_set()

    scenario(body)


def test_a_sink_may_cancel_from_within_an_output() -> None:
    async def body(world: World) -> None:
        client = Client(world, world.generation(tokens=100, max_tokens=100))
        running = world.dispatcher.start(client.generation, client)
        client.on_output = lambda: running.cancel("slow client") if len(client.tokens[0]) == 5 else None
        await asyncio.sleep(5.0)
        assert len(client.tokens[0]) == 5
        assert all(not worker.jobs for worker in world.workers.values())

    scenario(body)


def test_a_missing_report_delays_the_end_only_briefly() -> None:
    async def body(world: World) -> None:
        for worker in world.workers.values():
            worker.report = False
        client = world.ask(max_tokens=5)
        last = [0.0]
        client.on_output = lambda: last.__setitem__(0, world.clock.now())
        await ended(client)
        client.check_whole()
        assert 0.0 < world.clock.now() - last[0] <= 0.06

    scenario(body)


def test_unknown_models_drains_and_prompts_that_never_fit_are_refused_at_once() -> None:
    async def body(world: World) -> None:
        good = world.generation()
        with pytest.raises(TandemError, match="does not exist") as unknown:
            world.dispatcher.start(msgspec.structs.replace(good, model="nope"), Client(world, good))
        assert unknown.value.code == "model_not_found"
        long = world.generation(tokens=5000)
        with pytest.raises(TandemError) as too_long:
            world.dispatcher.start(long, Client(world, long))
        assert too_long.value.code == "context_length_exceeded"
        assert world.dispatcher.ready() is None
        running = world.ask()
        world.dispatcher.drain()
        with pytest.raises(TandemError) as draining:
            world.ask()
        assert draining.value.code == "draining"
        assert await world.dispatcher.idle(60.0) == 0
        running.check_whole()
        assert world.dispatcher.ready() == "the router is draining"

    scenario(body)


def test_a_router_that_drains_is_done_as_soon_as_its_last_request_is() -> None:
    """Else every rollout of routers takes as long as its bound allows."""

    async def body(world: World) -> None:
        clients = [world.ask(max_tokens=tokens) for tokens in (5, 50)]
        world.dispatcher.drain()
        idle = asyncio.ensure_future(world.dispatcher.idle(60.0))
        for client in clients:
            assert not idle.done()
            (await ended(client)).check_whole()
        began = world.clock.now()
        assert await idle == 0
        assert world.clock.now() - began < 0.01

    scenario(body)


def test_a_request_that_waited_tells_in_its_trace_for_how_long_and_for_what() -> None:
    async def body(world: World) -> None:
        began = world.clock.now()
        first, second = world.ask(max_tokens=50), world.ask()
        await asyncio.sleep(0.1)
        world.dispatcher.services_changed()
        await ended(first)
        waited_s = world.clock.now() - began
        (await ended(second)).check_whole()
        spans = world.recorder.spans(second.generation.request_id)
        (queue,) = [span for span in spans if span.name == "queue"]
        assert queue.end_s - queue.start_s == pytest.approx(waited_s, abs=0.02)
        assert "it has 1 sequences or nearly" in str(queue.attributes["reasons"])
        assert "local" in {span.name for span in spans}, "what the worker tells of its part"
        own = [span.span_id for span in spans if span.service == "router"]
        assert [len(each) for each in own] == [16] * len(own), "what reads traces takes no other ids"

    placement = PlacementSettings(prefer="local", sequences_per_worker_max=1)
    scenario(body, workers="d1", settings=RouterSettings(placement=placement))


class Recorded:
    """A policy that keeps what it is told."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.choose = policy.choose
        self.told: list[tuple[str, str, int]] = []
        self.lost: list[str] = []

    def placed(self, request: PlacementRequest, placement: Placement, now: float) -> None:
        self.told.append(("placed", placement.decode, request.prompt_tokens))
        self._policy.placed(request, placement, now)

    def ended(self, request: PlacementRequest, placement: Placement, output_tokens: int, now: float) -> None:
        self.told.append(("ended", placement.decode, output_tokens))
        self._policy.ended(request, placement, output_tokens, now)

    def gone(self, worker_id: str) -> None:
        self.lost.append(worker_id)
        self._policy.gone(worker_id)


def test_a_policy_hears_of_every_attempt_that_it_is_over_with_the_tokens_that_it_brought() -> None:
    """Else it takes workers for busy that are not, and knows of ever more requests that have ended long ago."""

    async def body(world: World) -> None:
        policies = world.dispatcher._placing._policies
        policies._common = told = Recorded(policies._common)
        client = world.ask(tokens=100, max_tokens=30)
        await asyncio.sleep(0.2)
        lost = next(name for name in ("d1", "d2") if world.workers[name].jobs)
        other, had = {"d1": "d2", "d2": "d1"}[lost], len(client.tokens[0])
        assert had
        world.workers[lost].die()
        (await ended(client)).check_whole()
        assert told.told == [
            ("placed", lost, 100),
            ("ended", lost, had),
            ("placed", other, 100 + had),
            ("ended", other, 30 - had),
        ]
        assert told.lost == [lost]

    scenario(body)


@pytest.mark.parametrize(
    ("change", "takes"),
    [
        ({}, True),
        ({"draining": True}, False),
        ({"ready": False}, False),
        ({"sequences": 3}, False),
        ({"sequences": 2}, True),
        ({"role": "prefill"}, False),
        ({"role": "store"}, False),
        # Where there is nobody else these generate too.
        ({"overdue": True}, True),
        ({"takes_prompts": True}, True),
    ],
)
def test_a_router_is_in_use_while_its_only_worker_could_take_a_request(
    change: dict[str, object], takes: bool
) -> None:
    """Else clients are sent to a router that lets them wait, or none is sent to one that could serve them."""

    async def body(world: World) -> None:
        peer = world.fleet.peer("d1")
        assert peer is not None
        for name, value in change.items():
            setattr(peer.view, name, value)
        assert (world.dispatcher.ready() is None) == takes
        assert world.dispatcher._serving.has_room("demo") == takes

    placement = PlacementSettings(prefer="local", sequences_per_worker_max=3)
    scenario(body, workers="d1", settings=RouterSettings(placement=placement))


def test_close_ends_everything_typed() -> None:
    async def body(world: World) -> None:
        clients = [world.ask(tokens=100, max_tokens=500) for _ in range(5)]
        await asyncio.sleep(0.2)
        world.dispatcher.drain()
        assert await world.dispatcher.idle(0.5) == 5
        world.dispatcher.close(TandemError("draining", "the router is stopping"))
        for client in clients:
            assert client.error is not None
            assert client.error.code == "draining"
            client.check_prefix()

    scenario(body)


def test_models_stay_known_while_their_workers_are_away() -> None:
    async def body(world: World) -> None:
        assert [model.name for model in world.dispatcher.models()] == ["demo"]
        for name in ("d1", "d2"):
            world.workers[name].die()
        await asyncio.sleep(0.1)
        assert [model.name for model in world.dispatcher.models()] == ["demo"]
        assert "no decode or unified worker" in str(world.dispatcher.ready())
        world.fleet.set_members(())
        await asyncio.sleep(0.1)
        assert world.dispatcher.models() == ()

    scenario(body)


def test_short_deadlines_are_settings_too() -> None:
    async def body(world: World) -> None:
        world.workers["d1"].mute = True
        client = await ended(world.ask())
        assert client.error is not None
        assert client.error.code == "deadline_exceeded"
        assert world.clock.now() < 20.0

    deadlines = Deadlines(queue_s=0.5, prefill_progress_s=0.5, inter_token_s=0.5, total_s=10.0)
    scenario(body, workers="d1", settings=RouterSettings(deadlines=deadlines))


@pytest.mark.parametrize(("workers", "mode"), [("p1 d1 d2", "disaggregated"), ("u1 u2", "auto")])
@pytest.mark.parametrize("gets_on", [True, False])
def test_a_prompt_that_computes_long_is_retried_only_when_nobody_says_that_it_gets_on(
    workers: str, mode: str, gets_on: bool
) -> None:
    async def body(world: World) -> None:
        for worker in world.workers.values():
            worker.prefill_s, worker.gets_on = 120.0, gets_on
        client = await ended(world.ask())
        sent = [submit for worker in world.workers.values() for submit in worker.submits]
        if gets_on:
            client.check_whole()
            assert len(sent) == len(workers.split()[:-1])
            assert not any(isinstance(each, SampleFirst) for w in world.workers.values() for each in w.commands)
        else:
            first = min(sent, key=lambda submit: submit.attempt)
            lost = [isinstance(each, SampleFirst) for w in world.workers.values() for each in w.commands]
            assert any(lost) or any(submit.attempt > first.attempt for submit in sent)

    scenario(body, workers=workers, settings=RouterSettings(placement=PlacementSettings(prefer=mode)))


def test_a_stream_whose_step_takes_long_goes_on_where_it_is() -> None:
    async def body(world: World) -> None:
        for worker in world.workers.values():
            worker.step_s, worker.gets_on = 15.0, True
        client = await ended(world.ask())
        client.check_whole()
        assert sum(len(worker.submits) for worker in world.workers.values()) == 1

    scenario(body, workers="u1 u2", settings=RouterSettings())


def test_what_a_failed_attempt_has_computed_is_not_billed_as_cached() -> None:
    async def body(world: World) -> None:
        for worker in world.workers.values():
            worker.prefill_s, worker.reused = 60.0, 0
        asked = world.ask(tokens=200)
        await asyncio.sleep(5.0)
        (first,) = [worker for worker in world.workers.values() if worker.submits]
        for worker in world.workers.values():
            if worker is not first:
                worker.prefill_s, worker.reused = 0.1, 192
        client = await ended(asked)
        client.check_whole()
        assert len([worker for worker in world.workers.values() if worker.submits]) == 2
        assert client.usage is not None
        assert client.usage.cached_tokens == 0

    scenario(body, workers="u1 u2", settings=RouterSettings())


def test_a_worker_whose_step_is_overdue_gets_nothing_new_until_it_is_over() -> None:
    async def body(world: World) -> None:
        load = Load(0, 0, 0, 900, 0, 0, 0.0, 0.0, 0.0, 0)
        u1 = world.workers["u1"]
        assert u1.link is not None
        for overdue_s, taken in ((4.0, False), (0.0, True)):
            for worker in world.workers.values():
                worker.submits.clear()
            u1.link.state.send(msgspec.structs.replace(load, overdue_s=overdue_s))
            await asyncio.sleep(0.1)
            for client in [world.ask() for _ in range(8)]:
                await ended(client)
            assert bool(u1.submits) == taken

    scenario(body, workers="u1 u2", settings=RouterSettings())


def test_the_only_worker_is_asked_while_its_step_is_overdue() -> None:
    async def body(world: World) -> None:
        load = Load(0, 0, 0, 900, 0, 0, 0.0, 0.0, 0.0, 0)
        u1 = world.workers["u1"]
        assert u1.link is not None
        u1.link.state.send(msgspec.structs.replace(load, overdue_s=4.0))
        await asyncio.sleep(0.1)
        await ended(world.ask())
        assert u1.submits

    scenario(body, workers="u1", settings=RouterSettings())


def test_a_worker_is_told_the_time_that_is_left_not_when_it_is_over() -> None:
    """It ends the work by itself then, should its router be lost. Clocks of machines do not begin at zero."""

    async def body(world: World) -> None:
        await asyncio.sleep(60.0)
        client = await ended(world.ask(tokens=5))
        client.check_whole()
        sent = [submit for worker in world.workers.values() for submit in worker.submits]
        total_s = world.settings.deadlines.total_s
        assert len(sent) == 2
        assert all(total_s - 1.0 <= submit.deadline_s <= total_s for submit in sent)

    deadlines = replace(PAIRED.deadlines, total_s=20.0)
    scenario(body, workers="p1 d1", settings=replace(PAIRED, deadlines=deadlines))


def test_requests_that_waited_in_line_earn_retries_too() -> None:
    """On a busy router nearly all have waited: a worker that fails then would otherwise cost every answer."""

    async def body(world: World) -> None:
        assert world.dispatcher.may_retry()
        assert not world.dispatcher.may_retry()
        clients = [world.ask(max_tokens=20) for _ in range(20)]
        for client in clients:
            (await ended(client)).check_whole()
        assert world.dispatcher.may_retry()

    placement = PlacementSettings(prefer="local", sequences_per_worker_max=3)
    settings = RouterSettings(placement=placement, retry=RetrySettings(share=0.1, burst=1))
    scenario(body, workers="d1", settings=settings)


def test_decode_that_begins_anew_has_its_own_time() -> None:
    """Prefill took long, and was lost. Decode is not given up for the time that went by before."""

    async def body(world: World) -> None:
        prefill, decode, other = (world.workers[name] for name in ("p1", "d1", "d2"))
        prefill.prefill_s, prefill.gets_on = 1000.0, True
        decode.prefill_s = other.prefill_s = 10.0
        client = world.ask()
        await asyncio.sleep(world.settings.deadlines.standstill_max_s - 2.0)
        prefill.die()
        (await ended(client)).check_whole()
        assert len(decode.submits) + len(other.submits) == 1

    scenario(body)
