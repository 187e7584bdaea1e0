"""Every deadline in turn: exactly that stage stalls, in the real services on virtual time, and what follows is
bounded, typed or made up for, and leaves nothing behind. Each with its default and with another value."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Final

import pytest

from router.fleet.fleet import Fleet
from router.generation import Generation, Running, Usage
from router.settings import PairSettings, PlacementSettings, RouterSettings
from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.apps.simulation.network import NetworkProfile
from tandem.apps.simulation.platform import Platform, Shape
from tandem.apps.simulation.trace import Trace
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.messages import Export, Ping, SequenceOutput, Submit
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.core.spans import TraceContext
from tandem.engine.scheduler.plan import Step, StepResult
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel

MODEL: Final = SimulatedModel(blocks=400, base_s=0.01, token_s=0.0001)
CALL_OFF_S: Final = 1.0
"""How long a prefill that is called off may take to say that it has ended, before decode computes its prompt."""
LINE_S: Final = 0.6
"""What may be added to a deadline: the wait for the next heartbeat, a few messages and a few steps."""


@dataclass
class Heard:
    """A client that notes when it heard what."""

    now: Callable[[], float]
    began: float
    times: list[float] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    error: TandemError | None = None
    usage: Usage | None = None
    ended_s: float = 0.0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def output(self, output: SequenceOutput) -> None:
        self.times.append(self.now() - self.began)
        self.positions.extend(range(output.position, output.position + len(output.tokens)))

    def done(self, usage: Usage) -> None:
        self.usage = usage
        self._end()

    def failed(self, error: TandemError) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        assert not self.ended.is_set(), "two ends"
        self.ended_s = self.now() - self.began
        self.ended.set()

    @property
    def pause_s(self) -> float:
        """The longest time between two tokens."""
        return max(later - before for before, later in zip(self.times, self.times[1:], strict=False))

    def check_whole(self, tokens: int) -> None:
        assert self.error is None, self.error
        assert self.positions == list(range(1, tokens + 1)), "every position once, in order"


@dataclass(frozen=True)
class More:
    """What some stalls need: slow steps, few places on a worker for the router, few in an engine's batch."""

    step_s: float = 0.01
    places: int = 256
    batch: int = 256


class Stalled:
    """A platform whose stages can be made to stand still."""

    def __init__(
        self,
        loop: VirtualLoop,
        deadlines: Deadlines,
        workers: str,
        more: "More | None" = None,
        prefer: str = "disaggregated",
    ) -> None:
        roles, more = {"p": "prefill", "d": "decode", "u": "unified"}, more or More()
        placement = PlacementSettings(prefer=prefer, sequences_per_worker_max=more.places)
        shape = Shape(
            tuple((name, roles[name[0]]) for name in workers.split()),
            replace(MODEL, base_s=more.step_s),
            SchedulerSettings(max_batched_tokens=256, max_sequences=more.batch),
            RouterSettings(deadlines=deadlines, placement=placement),
            NetworkProfile(),
        )
        self.loop = loop
        self.deadlines = deadlines
        self.platform = Platform(shape, 1, loop, Trace(loop.time), None, _raise)
        self._asked = 0

    @property
    def fleet(self) -> Fleet:
        life = self.platform.router.life
        assert life is not None
        return life.fleet

    def ask(self, *, tokens: int = 200, output: int = 20, timeout_s: float = 3600.0) -> tuple[Heard, Running]:
        """A request whose prompt nobody has seen."""
        self._asked += 1
        clock, life = self.platform.clock, self.platform.router.life
        assert life is not None
        prompt = pack_tokens([300 + (index * 7 + self._asked * 1009) % 5000 for index in range(tokens)])
        generation = Generation(
            request_id=f"req-{self._asked}",
            model=MODEL.name,
            tenant="t",
            tenant_salt="",
            prompt=prompt,
            n=1,
            seed=self._asked,
            sampling=Sampling(),
            stopping=Stopping(max_tokens=output, ignore_eos=True),
            timeout_s=timeout_s,
            received=clock.now(),
            received_wall=clock.wall(),
            trace=TraceContext("a" * 32, "b" * 16),
        )
        heard = Heard(clock.now, clock.now())
        return heard, life.dispatcher.start(generation, heard)

    async def started(self, heard: Heard, tokens: int = 3) -> None:
        await self.platform.until(lambda: len(heard.positions) >= tokens, 60.0, "no tokens")

    def busy(self) -> list[str]:
        """The workers that hold an attempt, decode ones first."""
        nodes = self.platform.nodes.values()
        return sorted(
            node.name for node in nodes if node.incarnation is not None and node.incarnation.service.host.attempts
        )

    def stall(self, name: str) -> Callable[[], None]:
        """From now on no step of this engine ends; everything else of its process goes on. Gives the way back."""
        incarnation = self.platform.nodes[name].incarnation
        assert incarnation is not None
        runner, go_on = incarnation.runner, asyncio.Event()
        execute = runner.execute

        async def stuck(step: Step) -> StepResult:
            await go_on.wait()
            return await execute(step)

        runner.execute = stuck  # type: ignore[method-assign]
        return go_on.set

    async def free(self, within_s: float = 2.0) -> None:
        """Nothing is held on any worker, nor in the router."""
        await self.platform.until(lambda: self.platform.held() is None, within_s, "something is still held")
        life = self.platform.router.life
        assert life is not None
        assert life.dispatcher.held == 0
        life.dispatcher.check()


def _raise(violation: Violation) -> None:
    raise violation


Case = Callable[[Deadlines], None]
CASES: dict[str, tuple[float, Case]] = {}
"""By field of `Deadlines`: a value other than the default, and what must hold for any value."""


def case(
    name: str, other: float, workers: str = "p0 d0 d1", more: More | None = None
) -> Callable[[Callable[[Stalled], Awaitable[None]]], None]:
    """Register a stall for a deadline."""

    def register(body: Callable[[Stalled], Awaitable[None]]) -> None:
        def check(deadlines: Deadlines) -> None:
            async def main(loop: VirtualLoop) -> None:
                stalled = Stalled(loop, deadlines, workers, more)
                stalled.platform.start()
                await stalled.platform.until(stalled.platform.ready, 60.0, "the platform is not ready")
                await asyncio.sleep(1.0)
                await body(stalled)

            run(main, limit_s=5000.0)

        CASES[name] = (other, check)

    return register


# ---- the table ----


@case("heartbeat_lost_s", 5.0)
async def a_frozen_decode_worker_is_left_after_its_missing_heartbeats(stalled: Stalled) -> None:
    heard, _ = stalled.ask(output=400)
    await stalled.started(heard)
    (name,) = stalled.busy()
    node = stalled.platform.nodes[name]
    node.freeze()
    await heard.ended.wait()
    heard.check_whole(400)
    lost_s, every_s = stalled.deadlines.heartbeat_lost_s, stalled.deadlines.heartbeat_every_s
    assert lost_s - every_s <= heard.pause_s <= lost_s + every_s + LINE_S
    node.thaw()
    await stalled.platform.until(stalled.platform.ready, 30.0, "the frozen worker does not come back")
    await stalled.free()


@case("heartbeat_every_s", 0.2)
async def a_router_that_cannot_be_heard_is_let_go_of_with_the_next_look(stalled: Stalled) -> None:
    heard, _ = stalled.ask(output=800)
    await stalled.started(heard)
    for name in stalled.platform.nodes:
        stalled.platform.network.block(("router", name))
    began, deadlines = stalled.loop.time(), stalled.deadlines
    await stalled.platform.until(
        lambda: stalled.platform.held() is None,
        deadlines.heartbeat_lost_s + 2 * deadlines.heartbeat_every_s + LINE_S,
        "workers hold on to a silent router",
    )
    assert stalled.loop.time() - began >= deadlines.heartbeat_lost_s - deadlines.heartbeat_every_s
    for name in stalled.platform.nodes:
        stalled.platform.network.unblock(("router", name))
    stalled.platform.links.reconsider()
    await heard.ended.wait()
    heard.check_whole(800)
    await stalled.free()


@case("queue_s", 3.0, "p0 d0", More(places=1))
async def who_finds_no_place_is_refused_when_it_has_waited(stalled: Stalled) -> None:
    first, running = stalled.ask(output=6000)
    await stalled.started(first)
    second, _ = stalled.ask()
    await second.ended.wait()
    assert second.error is not None
    assert (second.error.code, second.positions) == ("queue_full", [])
    assert second.error.retry_after_s is not None
    assert second.ended_s == pytest.approx(stalled.deadlines.queue_s, abs=0.05)
    running.cancel("enough")
    await stalled.free()


@case("prefill_progress_s", 6.0)
async def a_prefill_that_stands_still_is_computed_elsewhere(stalled: Stalled) -> None:
    # How long its steps take is known from here on; they are short.
    before, _ = stalled.ask()
    await before.ended.wait()
    go_on = stalled.stall("p0")
    heard, _ = stalled.ask()
    await heard.ended.wait()
    heard.check_whole(20)
    bound_s = stalled.deadlines.prefill_progress_s
    assert bound_s - LINE_S <= heard.times[0] <= bound_s + LINE_S
    # The pair is in doubt now, and its canary stands still as long as it may; the request itself is freed at once.
    await stalled.free(within_s=PairSettings().canary_s + LINE_S)
    go_on()
    await stalled.free()


@case("transfer_progress_s", 0.7)
async def a_transfer_that_stands_still_is_made_up_for_by_computing(stalled: Stalled) -> None:
    heard, _ = stalled.ask(tokens=600)
    names = [name for name in stalled.platform.nodes if name != "p0"]
    await stalled.platform.until(lambda: bool(stalled.busy()), 5.0, "nobody works on it")
    for name in names:
        stalled.platform.network.block(("p0", name))
    await heard.ended.wait()
    heard.check_whole(20)
    assert heard.pause_s <= stalled.deadlines.transfer_progress_s + LINE_S
    assert heard.pause_s >= stalled.deadlines.transfer_progress_s - LINE_S
    for name in names:
        stalled.platform.network.unblock(("p0", name))
    stalled.platform.links.reconsider()
    await stalled.free(stalled.deadlines.lease_s + 1.0)


@case("inter_token_s", 3.0)
async def a_decode_that_stands_still_goes_on_elsewhere(stalled: Stalled) -> None:
    heard, _ = stalled.ask(output=60)
    await stalled.started(heard)
    (name,) = stalled.busy()
    go_on = stalled.stall(name)
    await heard.ended.wait()
    heard.check_whole(60)
    inter_token_s = stalled.deadlines.inter_token_s
    assert inter_token_s - LINE_S <= heard.pause_s <= 1.25 * inter_token_s + LINE_S
    await stalled.free()
    go_on()
    await stalled.free()


@case("total_s", 5.0, more=More(step_s=1.0))
async def a_request_without_end_ends_typed(stalled: Stalled) -> None:
    patient, _ = stalled.ask(output=5000)
    hasty, _ = stalled.ask(output=5000, timeout_s=4.0)
    for heard, bound_s in ((hasty, 4.0), (patient, stalled.deadlines.total_s)):
        await heard.ended.wait()
        assert heard.error is not None
        assert heard.error.code == "deadline_exceeded"
        assert heard.ended_s == pytest.approx(min(bound_s, stalled.deadlines.total_s), abs=0.05)
        assert heard.positions == list(range(1, len(heard.positions) + 1))
    await stalled.free()


@case("unknown_name_s", 0.5)
async def a_hand_off_that_prefill_never_hears_of_is_given_up(stalled: Stalled) -> None:
    stalled.platform.network.block(("router", "p0"))
    heard, _ = stalled.ask(tokens=600)
    decode = stalled.platform.nodes["d0"], stalled.platform.nodes["d1"]
    found_s = stalled.deadlines.unknown_name_s + CALL_OFF_S
    await asyncio.sleep(found_s + LINE_S)
    for node in decode:
        assert node.incarnation is not None
        fetches = node.incarnation.service.host._fetches._running
        assert not fetches, "its fetch still waits for a lease that nobody knows"
    await heard.ended.wait()
    heard.check_whole(20)
    assert stalled.deadlines.unknown_name_s <= heard.times[0] <= found_s + 2 * LINE_S
    stalled.platform.network.unblock(("router", "p0"))
    stalled.platform.links.reconsider()
    await stalled.free()


@case("lease_s", 4.0, "p0 d0")
async def an_export_that_nobody_fetches_ends_by_itself(stalled: Stalled) -> None:
    link = await stalled.platform.links.dialer("router-9").dial("p0", 5.0)
    submit = Submit(
        handle=1,
        request_id="x",
        attempt=1,
        mode="prefill",
        prompt=pack_tokens(list(range(300, 500))),
        branches=(ChildRequest(0, 1),),
        sampling=Sampling(),
        stopping=Stopping(max_tokens=5),
        deadline_s=60.0,
        export=Export("lease", 1, stalled.deadlines.lease_s),
    )
    link.tokens.send(submit)
    began = stalled.loop.time()
    await asyncio.sleep(1.0)
    while stalled.platform.held() is not None:
        link.tokens.send(Ping(1))
        await asyncio.sleep(0.25)
    assert stalled.loop.time() - began == pytest.approx(stalled.deadlines.lease_s, abs=1.0)
    link.close("enough")
    await stalled.free()


@case("connect_s", 1.0, "p0 d0 d1")
async def a_worker_that_cannot_be_reached_is_given_up_and_tried_again(stalled: Stalled) -> None:
    life = stalled.platform.router.life
    assert life is not None
    stalled.platform.network.block(("d1", "router"))
    stalled.platform.nodes["d1"].kill()
    await stalled.platform.until(lambda: "d1" in life.fleet.problems(), 10.0, "the loss is not noticed")
    stalled.platform.nodes["d1"].start()
    sentence = f"did not answer within {stalled.deadlines.connect_s:g} s"
    await stalled.platform.until(
        lambda: sentence in life.fleet.problems()["d1"],
        2 * stalled.deadlines.connect_s + 4.0,
        "dialing has no bound",
    )
    stalled.platform.network.unblock(("d1", "router"))
    stalled.platform.links.reconsider()
    await stalled.platform.until(stalled.platform.ready, 20.0, "it is not tried again")
    await stalled.free()


ELSEWHERE: Final = frozenset(("drain_s", "kv_wait_s", "resumable_lease_s", "router_restart_s"))
"""Deadlines of leaving and of coming back, and of engines that load KV themselves, which have tests of their own."""


def test_there_is_a_case_for_every_deadline() -> None:
    assert set(CASES) | ELSEWHERE == {each.name for each in fields(Deadlines)}


@pytest.mark.parametrize("changed", [False, True], ids=["default", "another value"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_stage_that_stalls_has_a_bounded_end(name: str, changed: bool) -> None:
    other, check = CASES[name]
    assert other != getattr(Deadlines(), name)
    check(replace(Deadlines(), **{name: other}) if changed else Deadlines())


# ---- the same deadlines on the worker's side ----


@pytest.mark.parametrize(("deadline_s", "total_s"), [(3.0, 600.0), (60.0, 2.0)])
def test_a_worker_ends_what_its_router_does_not(deadline_s: float, total_s: float) -> None:
    async def main(loop: VirtualLoop) -> None:
        stalled = Stalled(loop, Deadlines(total_s=total_s), "u0", More(step_s=0.1))
        stalled.platform.start()
        await stalled.platform.until(stalled.platform.ready, 60.0, "the platform is not ready")
        link = await stalled.platform.links.dialer("router-9").dial("u0", 5.0)
        began = loop.time()
        prompt = pack_tokens(list(range(300, 400)))
        stopping = Stopping(max_tokens=3000, ignore_eos=True)
        link.tokens.send(
            Submit(
                handle=1,
                request_id="x",
                attempt=1,
                mode="local",
                prompt=prompt,
                branches=(ChildRequest(0, 1),),
                sampling=Sampling(),
                stopping=stopping,
                deadline_s=deadline_s,
            )
        )
        await asyncio.sleep(0.5)
        while stalled.platform.held() is not None:
            link.tokens.send(Ping(1))
            await asyncio.sleep(0.1)
        assert loop.time() - began == pytest.approx(min(deadline_s, total_s), abs=0.3)
        link.close("enough")

    run(main, limit_s=600.0)


def test_a_work_waits_for_its_place_on_a_worker_no_longer_than_the_queue_allows() -> None:
    async def main(loop: VirtualLoop) -> None:
        deadlines = Deadlines(queue_s=2.5)
        stalled = Stalled(loop, deadlines, "u0", More(step_s=0.1, batch=1))
        stalled.platform.start()
        await stalled.platform.until(stalled.platform.ready, 60.0, "the platform is not ready")
        first, running = stalled.ask(output=3000)
        await stalled.started(first)
        # As where several routers send at once: this one takes the worker to have another place.
        (view,) = stalled.fleet.views(MODEL.name)
        view.sequences_max = 2
        second, _ = stalled.ask()
        failed = partial(stalled.platform.meter.sum, "tandem_attempts_total", "deadline_exceeded")
        await stalled.platform.until(lambda: failed() == 1, 10.0, "it waits for ever")
        assert loop.time() - second.began == pytest.approx(2.5, abs=0.3)
        running.cancel("enough")
        await second.ended.wait()
        second.check_whole(20)
        await stalled.free()

    run(main, limit_s=600.0)
