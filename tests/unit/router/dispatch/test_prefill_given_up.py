"""A prefill that stands still is cancelled where it is before decode computes the prompt, and counts as a retry."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from router.settings import PlacementSettings, RetrySettings, RouterSettings
from tandem.apps.simulation.counting import CountingMeter
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.messages import Cancel, Load, SampleFirst, WorkerCommand
from tests.worlds.router_world import Client, ScriptedWorker, World

PAIRED = RouterSettings(placement=PlacementSettings(prefer="disaggregated"))
STANDSTILL_S = PAIRED.deadlines.prefill_progress_s
CALL_OFF_S = 1.0
TOLD_S = PAIRED.deadlines.heartbeat_every_s
TWICE = "tandem_tokens_computed_twice_total"


def load(step_s: float) -> Load:
    return Load(0, 0, 0, 900, 0, 0, 0.0, 0.0, 0.0, 0, longest_step_s=step_s)


def scenario(
    body: Callable[["Stuck"], Awaitable[None]], settings: RouterSettings = PAIRED, *, step_s: float = 0.05
) -> None:
    """A request whose prefill stands still on `p1`, which has told how long its steps take."""

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, settings, meter=CountingMeter())
        for name, role in (("p1", "prefill"), ("d1", "decode")):
            world.worker(name, role).load = load(step_s)
        world.workers["p1"].prefill_s = 1000.0
        await world.start()
        await body(Stuck(world))
        await world.stop()

    run(main, limit_s=3000.0)


class Stuck:
    """The world, and when which command has come."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.p1, self.d1 = world.workers["p1"], world.workers["d1"]
        self.began = world.clock.now()

    def ask(self, timeout_s: float = 600.0) -> Client:
        self.began = self.world.clock.now()
        return self.world.ask(tokens=100, timeout_s=timeout_s)

    @property
    def twice(self) -> int:
        meter = self.world.tools.meter
        assert isinstance(meter, CountingMeter)
        return meter.sum(TWICE)

    async def comes(self, worker: ScriptedWorker, kind: type[WorkerCommand], within_s: float = 60.0) -> float:
        """When a worker has been told something, in seconds since the request came."""
        while not told(worker, kind):
            await asyncio.sleep(0.01)
            assert self.world.clock.now() - self.began < within_s, f"no {kind.__name__} for {worker.worker_id}"
        return self.world.clock.now() - self.began


def told(worker: ScriptedWorker, kind: type[WorkerCommand]) -> int:
    return sum(isinstance(command, kind) for command in worker.commands)


async def ended(client: Client) -> Client:
    await asyncio.wait_for(client.ended.wait(), 1000.0)
    return client


def unwilling() -> RouterSettings:
    """No retry is left."""
    return replace(PAIRED, retry=RetrySettings(share=0.0, burst=0))


def test_decode_is_told_to_compute_when_prefill_has_ended() -> None:
    async def body(stuck: Stuck) -> None:
        stuck.p1.end_s = 0.4
        client = stuck.ask()
        cancelled = await stuck.comes(stuck.p1, Cancel)
        assert STANDSTILL_S <= cancelled <= STANDSTILL_S + TOLD_S + 0.1
        assert not told(stuck.d1, SampleFirst)
        assert 0.35 <= await stuck.comes(stuck.d1, SampleFirst) - cancelled <= 0.5
        (await ended(client)).check_whole()
        assert stuck.twice == 10, "what the report of the cancelled prefill says"

    scenario(body)


def test_of_an_answer_without_a_failure_nothing_counts_as_computed_twice() -> None:
    async def body(stuck: Stuck) -> None:
        stuck.p1.prefill_s = 0.05
        (await ended(stuck.ask())).check_whole()
        await asyncio.sleep(1.0)
        assert stuck.twice == 0

    scenario(body)


def test_a_prefill_that_does_not_say_that_it_has_ended_is_waited_for_no_longer_than_its_bound() -> None:
    """As where the cancel overtakes the submit: then there is no attempt to report of."""

    async def body(stuck: Stuck) -> None:
        stuck.p1.report = False
        client = stuck.ask()
        cancelled = await stuck.comes(stuck.p1, Cancel)
        sampled = await stuck.comes(stuck.d1, SampleFirst)
        assert CALL_OFF_S - 0.05 <= sampled - cancelled <= CALL_OFF_S + 0.05
        (await ended(client)).check_whole()

    scenario(body)


def test_of_a_prefill_worker_that_is_lost_meanwhile_nothing_is_waited_for() -> None:
    async def body(stuck: Stuck) -> None:
        stuck.p1.end_s = 0.8
        client = stuck.ask()
        cancelled = await stuck.comes(stuck.p1, Cancel)
        await asyncio.sleep(0.2)
        stuck.p1.die()
        assert await stuck.comes(stuck.d1, SampleFirst) - cancelled < 0.7
        (await ended(client)).check_whole()

    scenario(body)


def test_a_client_that_goes_away_meanwhile_leaves_nothing() -> None:
    async def body(stuck: Stuck) -> None:
        stuck.p1.end_s = 0.8
        client = Client(stuck.world, stuck.world.generation(tokens=100))
        running = stuck.world.dispatcher.start(client.generation, client)
        await stuck.comes(stuck.p1, Cancel)
        running.cancel("enough")
        await asyncio.sleep(2.0)
        assert not told(stuck.d1, SampleFirst)
        assert not stuck.d1.jobs
        assert stuck.twice == 0, "nobody computes its prompt again"

    scenario(body)


def test_a_prefill_with_long_steps_has_one_of_them_to_end_in() -> None:
    async def body(stuck: Stuck) -> None:
        stuck.p1.end_s = 2.5
        client = stuck.ask()
        cancelled = await stuck.comes(stuck.p1, Cancel)
        assert 2.4 <= await stuck.comes(stuck.d1, SampleFirst) - cancelled <= 2.6
        (await ended(client)).check_whole()

    scenario(body, step_s=3.0)


def test_a_prefill_that_is_given_up_is_not_tried_again_even_if_decode_is_lost_before_it_has_ended() -> None:
    async def body(stuck: Stuck) -> None:
        stuck.p1.end_s = 0.8
        client = stuck.ask()
        await stuck.comes(stuck.p1, Cancel)
        (request,) = stuck.world.dispatcher._requests.values()
        peers = {leg.peer.worker_id: leg.peer for leg in request.worker_streams}
        assert request.failed_on(peers["p1"])
        stuck.d1.die()
        await asyncio.sleep(0.1)
        await stuck.d1.revive()
        await ended(client)
        assert len(stuck.p1.submits) == 1

    scenario(body)


def test_a_broken_pair_is_left_whatever_is_left_of_the_retries() -> None:
    """Nobody chose it: requests that wait on it are not to use up what others need."""

    async def body(stuck: Stuck) -> None:
        stuck.d1.transfer_of_requests = lambda _holder: None
        stuck.p1.end_s = 0.4
        client = stuck.ask()
        await asyncio.sleep(0.5)
        stuck.world.dispatcher.pair_opened("p1", "d1", "as told")
        cancelled = await stuck.comes(stuck.p1, Cancel)
        assert cancelled <= 0.6
        assert 0.35 <= await stuck.comes(stuck.d1, SampleFirst) - cancelled <= 0.5
        (await ended(client)).check_whole()

    scenario(body, unwilling())


def test_where_too_much_is_being_retried_prefill_is_waited_for() -> None:
    async def body(stuck: Stuck) -> None:
        stuck.p1.prefill_s = 4 * STANDSTILL_S
        client = await ended(stuck.ask())
        client.check_whole()
        assert not told(stuck.d1, SampleFirst)
        assert stuck.twice == 0

    scenario(body, unwilling())


def test_a_request_that_waits_on_ends_with_its_deadline() -> None:
    async def body(stuck: Stuck) -> None:
        client = await ended(stuck.ask(timeout_s=2.5 * STANDSTILL_S))
        assert client.error is not None
        assert client.error.code == "deadline_exceeded"
        assert not told(stuck.d1, SampleFirst)

    scenario(body, unwilling())


def test_giving_up_takes_one_retry_of_the_budget() -> None:
    async def body(stuck: Stuck) -> None:
        first = stuck.ask()
        await stuck.comes(stuck.d1, SampleFirst)
        (await ended(first)).check_whole()
        second = await ended(stuck.ask(timeout_s=3 * STANDSTILL_S))
        assert second.error is not None
        assert told(stuck.d1, SampleFirst) == 1

    scenario(body, replace(PAIRED, retry=RetrySettings(share=0.0, burst=1)))


def test_a_worker_with_long_steps_has_ten_of_them() -> None:
    async def body(stuck: Stuck) -> None:
        client = stuck.ask()
        assert 20.0 <= await stuck.comes(stuck.d1, SampleFirst) <= 20.0 + TOLD_S + 0.1
        (await ended(client)).check_whole()

    scenario(body, step_s=2.0)


def test_what_a_lost_worker_had_told_to_have_computed_counts_as_computed_twice() -> None:
    async def body(stuck: Stuck) -> None:
        client = stuck.ask()
        await asyncio.sleep(0.5)
        (leg,) = [leg for request in stuck.world.dispatcher._requests.values() for leg in request.worker_streams][:1]
        leg.on_progress(stuck.world.clock.now(), 48)
        stuck.p1.die()
        (await ended(client)).check_whole()
        assert stuck.twice == 48

    scenario(body)
