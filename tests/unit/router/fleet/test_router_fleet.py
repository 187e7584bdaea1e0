"""The fleet over scripted workers: introductions, heartbeats, incarnations, the block index and load figures."""

import asyncio
from collections.abc import Awaitable, Callable

from kv_transfer.index.protocol import Held
from router.placement import Work, WorkerView
from router.settings import FleetSettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.kv import chain_names, pack_tokens
from tandem.core.messages import AttemptFailed, AttemptReport, AttemptResumed, KvDelta, Load, SequenceOutput
from tests.worlds.router_world import LAYOUT, ROOT, World

NAMES = chain_names(ROOT.name(), pack_tokens(tuple(range(16 * 6))), 16)


def load(**figures: float) -> Load:
    return Load(**{**dict.fromkeys(Load.__struct_fields__, 0), "fit": None, **figures})  # type: ignore[arg-type]


def scenario(body: Callable[[World], Awaitable[None]], settings: RouterSettings | None = None) -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, settings)
        world.worker("p1", "prefill")
        world.worker("d1", "decode")
        await body(world)
        assert world.task is not None
        world.task.cancel()
        await asyncio.gather(world.task, return_exceptions=True)

    run(main, limit_s=1000.0)


class Ear:
    """A target that remembers."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.outputs: list[SequenceOutput] = []

    def on_output(self, output: SequenceOutput, now: float) -> None:
        self.outputs.append(output)

    def on_failed(self, failure: AttemptFailed) -> None: ...

    def on_report(self, report: AttemptReport) -> None: ...

    def on_progress(self, now: float, tokens: int) -> None: ...
    def on_transferred(self, code: str) -> None: ...

    def on_claimed(self, claimed: AttemptResumed | None) -> None: ...

    def on_lost(self, reason: str) -> None:
        self.lost.append(reason)


def test_members_are_dialed_until_they_answer_and_forgotten_when_they_leave() -> None:
    async def body(world: World) -> None:
        world.fleet.set_members(["d1", "p1"])
        world.task = world.loop.create_task(world.fleet.run(world.dispatcher))
        await asyncio.sleep(5.0)
        assert world.fleet.views("demo") == ()
        assert "connection refused" in world.fleet.problems()["d1"]
        for worker in world.workers.values():
            await worker.start()
        await asyncio.sleep(2.1)
        assert [view.worker_id for view in world.fleet.views("demo")] == ["d1", "p1"]
        assert world.fleet.problems() == {}
        world.fleet.set_members(["p1"])
        await asyncio.sleep(0.1)
        assert [view.worker_id for view in world.fleet.views("demo")] == ["p1"]
        assert not world.fleet.services.knows("demo")

    scenario(body)


def test_a_silent_worker_is_lost_after_two_seconds_and_its_targets_hear_once() -> None:
    async def body(world: World) -> None:
        await world.start()
        peer, ear = world.fleet.peer("d1"), Ear()
        assert peer is not None
        world.loop.after_step = None
        peer.open(ear)
        silent_from = world.clock.now()
        world.workers["d1"].pongs = False
        while world.fleet.peer("d1") is peer:
            await asyncio.sleep(0.1)
            assert world.clock.now() - silent_from < 3.2
        assert world.clock.now() - silent_from > 1.4
        assert len(ear.lost) == 1
        assert "silent" in ear.lost[0]

    scenario(body)


def test_a_router_that_was_stopped_itself_blames_nobody() -> None:
    async def body(world: World) -> None:
        await world.start()
        before = world.fleet.peer("d1")
        world.loop._now += 1.4
        await asyncio.sleep(3.0)
        assert world.fleet.peer("d1") is before

    scenario(body)


def test_a_router_that_was_stopped_for_too_long_begins_anew_with_every_worker() -> None:
    async def body(world: World) -> None:
        await world.start()
        before, ear = world.fleet.peer("d1"), Ear()
        assert before is not None
        world.loop.after_step = None
        before.open(ear)
        world.loop._now += 10.0
        await asyncio.sleep(3.0)
        now = world.fleet.peer("d1")
        assert now is not None
        assert now is not before
        assert now.epoch == before.epoch
        assert len(ear.lost) == 1
        assert "this router was stopped" in ear.lost[0]

    scenario(body)


def test_a_new_incarnation_behind_an_old_link_replaces_it() -> None:
    async def body(world: World) -> None:
        await world.start()
        peer, ear = world.fleet.peer("d1"), Ear()
        assert peer is not None
        world.loop.after_step = None
        peer.open(ear)
        world.workers["d1"].epoch = 7
        await asyncio.sleep(1.2)
        now = world.fleet.peer("d1")
        assert now is not None
        assert now.epoch == 7
        assert ear.lost == ["d1 is another incarnation now"]

    scenario(body)


def test_workers_that_speak_another_protocol_or_repeat_an_id_are_refused_with_a_sentence() -> None:
    async def body(world: World) -> None:
        world.workers["p1"].protocol = 9
        twin = world.worker("twin", "decode")
        await world.start()
        assert "speaks protocol 9" in world.fleet.problems()["p1"]
        twin.worker_id = "d1"
        world.links.cut("router", "twin", "test")
        await asyncio.sleep(1.0)
        assert "has a link at d1 already" in world.fleet.problems()["twin"]

    scenario(body)


def test_the_index_follows_snapshots_and_deltas_and_is_dropped_on_a_gap() -> None:
    async def body(world: World) -> None:
        worker = world.workers["d1"]
        worker.names = NAMES[:2]
        await world.start()
        assert world.fleet.leading(NAMES) == {"d1": Held(2, 2)}
        assert worker.link is not None
        worker.link.state.send(KvDelta(1, 2, b"".join(NAMES[2:4]), b""))
        await asyncio.sleep(0.01)
        assert world.fleet.leading(NAMES) == {"d1": Held(4, 4)}
        worker.link.state.send(KvDelta(1, 3, b"", NAMES[0]))
        await asyncio.sleep(0.01)
        assert world.fleet.leading(NAMES) == {}
        asked = worker.snapshots_asked
        worker.link.state.send(KvDelta(1, 5, NAMES[5], b""))
        await asyncio.sleep(0.01)
        assert worker.snapshots_asked == asked + 1
        assert world.fleet.leading(NAMES) == {"d1": Held(2, 2)}
        worker.die()
        await asyncio.sleep(0.01)
        assert world.fleet.leading(NAMES) == {}

    scenario(body)


def test_large_snapshots_leave_the_loop_its_turns() -> None:
    async def body(world: World) -> None:
        worker = world.workers["d1"]
        worker.names = tuple(index.to_bytes(16, "big") for index in range(1000))
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while world.fleet.leading(worker.names[-1:]) == {}:
                turns += 1
                await asyncio.sleep(0)

        ticking = world.loop.create_task(tick())
        await world.start()
        await ticking
        assert world.fleet.leading(worker.names) == {"d1": Held(1000, 1000)}
        assert turns > 100

    scenario(body, RouterSettings(fleet=FleetSettings(names_per_slice=10)))


def test_load_figures_reach_the_view_and_the_cost_model() -> None:
    async def body(world: World) -> None:
        world.workers["d1"].load = load(running=3, waiting=1, blocks_free=7, step_s=0.02, prefill_tokens_per_s=500.0)
        await world.start()
        (view,) = [view for view in world.fleet.views("demo") if view.worker_id == "d1"]
        assert view.sequences == 4
        assert view.blocks_free == 7
        assert world.tools.costs.prefill_ms("d1", 500) == 1000.0
        world.workers["d1"].die()
        await asyncio.sleep(0.01)
        assert world.tools.costs.prefill_ms("d1", 500) == 50.0

    scenario(body)


def test_submits_count_until_the_load_figures_show_them() -> None:
    view = WorkerView("d1", 1, "decode", "demo", "r1", 0, ROOT.name(), LAYOUT, 100, 4096)
    view.loaded(load(running=2), 0.0, 0.15)
    view.submitted(1.0, Work(1, 40))
    view.loaded(load(running=2), 1.05, 0.15)
    assert (view.sequences, view.queued_prompt_tokens) == (3, 40)
    view.loaded(load(running=3), 1.2, 0.15)
    assert (view.sequences, view.queued_prompt_tokens) == (3, 0)
    view.released(Work(1, 40))
    assert view.sequences_in_flight == 0
