"""Pairs of workers in a running router: canaries before traffic, breakers fed by transfers, states people can see."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import pytest

from router.fleet.listing import PairListing, WorkerListing
from router.settings import FleetSettings, PairSettings, PlacementSettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.messages import Cancel, Pong, Ready
from tandem.core.metrics import NullMeter
from tests.worlds.router_world import ScriptedWorker, World

PAIRS = PairSettings(canary_s=1.0, failures_max=3, backoff_first_s=0.5, backoff_max_s=4.0)
SETTINGS = RouterSettings(placement=PlacementSettings(prefer="disaggregated"), fleet=FleetSettings(pairs=PAIRS))


class Figures(NullMeter):
    """Keeps counters and gauges."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, name: str, value: float = 1.0, *labels: str) -> None:
        super().add(name, value, *labels)
        self.values[name, *labels] = self.values.get((name, *labels), 0.0) + value

    def set(self, name: str, value: float, *labels: str) -> None:
        super().set(name, value, *labels)
        self.values[name, *labels] = value


class Stage:
    """A router with canaries, two prefill workers and two decode workers."""

    def __init__(self, loop: VirtualLoop, settings: RouterSettings = SETTINGS) -> None:
        self.figures = Figures()
        self.world = World(loop, settings, canaries=True, meter=self.figures)
        self.p0, self.p1 = (self.world.worker(f"p{index}", "prefill") for index in range(2))
        self.d0, self.d1 = (self.world.worker(f"d{index}", "decode") for index in range(2))

    def listed(self, worker_id: str) -> WorkerListing:
        return next(worker for worker in self.world.fleet.listing() if worker.id == worker_id)

    def pair(self, prefill: str, decode: str) -> PairListing:
        return next(pair for pair in self.listed(decode).pairs if pair.worker == prefill)

    async def asked(self, times: int = 1) -> list[tuple[str, str]]:
        """(mode, prefill) of that many requests, one after the other."""
        seen = []
        for _ in range(times):
            before = {worker.worker_id: len(worker.submits) for worker in self.world.workers.values()}
            client = self.world.ask(tokens=100, max_tokens=3)
            await client.ended.wait()
            client.check_whole()
            new = {
                worker.worker_id: submit
                for worker in self.world.workers.values()
                for submit in worker.submits[before[worker.worker_id] :]
            }
            (decode,) = [submit for name, submit in new.items() if name.startswith("d")]
            seen.append((decode.mode, decode.remote.worker_id if decode.remote is not None else ""))
        return seen


def on_stage(main: Callable[[Stage], Awaitable[None]], settings: RouterSettings = SETTINGS) -> None:
    async def whole(loop: VirtualLoop) -> None:
        stage = Stage(loop, settings)
        await main(stage)
        await stage.world.stop()

    run(whole, limit_s=600.0)


def test_every_pair_has_carried_a_canary_before_the_first_request() -> None:
    async def main(stage: Stage) -> None:
        assert stage.world.dispatcher.ready() is not None
        await stage.world.start()
        assert stage.world.dispatcher.ready() is None
        for decode in (stage.d0, stage.d1):
            holders = [submit.remote.worker_id for submit in decode.canaries if submit.remote is not None]
            assert sorted(holders) == ["p0", "p1"]
        assert len(stage.p0.canaries) == len(stage.p1.canaries) == 2
        assert stage.figures.values["tandem_pairs", "closed"] == 4
        assert stage.figures.values["tandem_canaries_total", "pair", "mem", "ok"] == 4
        assert {mode for mode, _ in await stage.asked(3)} == {"decode"}
        place = next(span for span in stage.world.recorder.spans("req-1") if span.name == "place")
        assert place.attributes["path"] == "mem"
        assert len(stage.d0.canaries) + len(stage.d1.canaries) == 4, "a canary for every request"

    on_stage(main)


def test_canaries_have_leases_and_tickets_of_their_own_and_are_cleaned_up() -> None:
    async def main(stage: Stage) -> None:
        await stage.world.start()
        canaries = [*stage.d0.canaries, *stage.d1.canaries]
        leases = [submit.remote.lease_id for submit in canaries if submit.remote is not None]
        exports = [
            submit.export.lease_id for submit in (*stage.p0.canaries, *stage.p1.canaries) if submit.export is not None
        ]
        assert len(set(leases)) == 4
        assert sorted(leases) == sorted(exports)
        assert len({submit.tenant_salt for submit in canaries}) == 4
        for worker in stage.world.workers.values():
            cancelled = [command.handle for command in worker.commands if isinstance(command, Cancel)]
            assert sorted(cancelled) == [submit.handle for submit in worker.canaries]
        assert all(not peer.targets() for peer in stage.world.fleet.peers())

    on_stage(main)


def test_a_request_that_comes_before_the_canary_has_ended_is_computed_by_decode_at_once() -> None:
    async def main(stage: Stage) -> None:
        for decode in (stage.d0, stage.d1):
            decode.transfer = lambda _holder: None
        await stage.world.start()
        reason = stage.world.dispatcher.ready()
        assert reason is not None
        assert "none of 4 pairs" in reason
        began = stage.world.clock.now()
        assert await stage.asked() == [("local", "")]
        assert stage.world.clock.now() - began < 0.5
        place = next(span for span in stage.world.recorder.spans("req-1") if span.name == "place")
        assert "left out: not proved yet" in str(place.attributes["reasons"])
        await asyncio.sleep(PAIRS.canary_s)
        assert stage.world.dispatcher.ready() is None, "the router serves without hand-offs rather than not at all"
        assert stage.figures.values["tandem_canaries_total", "pair", "", "deadline_exceeded"] >= 4
        for decode in (stage.d0, stage.d1):
            decode.transfer = lambda _holder: ("mem", "")
        await asyncio.sleep(PAIRS.canary_s + PAIRS.backoff_max_s)
        assert stage.figures.values["tandem_pairs", "closed"] == 4

    on_stage(main)


def test_prefill_workers_that_start_again_do_not_take_a_router_that_serves_out_of_use() -> None:
    """Else every rollout of prefill takes all routers out of the load balancer until the canaries are back."""

    async def main(stage: Stage) -> None:
        await stage.world.start()
        assert stage.world.dispatcher.ready() is None
        for decode in (stage.d0, stage.d1):
            decode.transfer = lambda _holder: None
        for prefill in (stage.p0, stage.p1):
            prefill.die()
            await prefill.revive()
        while stage.world.fleet.unproven() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert stage.world.dispatcher.ready() is None
        for decode in (stage.d0, stage.d1):
            decode.transfer = lambda _holder: ("mem", "")
        await asyncio.sleep(PAIRS.canary_s + PAIRS.backoff_max_s)

    on_stage(main)


def test_a_pair_that_fails_is_opened_and_others_carry_on_until_it_heals() -> None:
    async def main(stage: Stage) -> None:
        broken = True
        stage.d0.transfer = lambda holder: ("mem", "transfer_failed" if broken and holder == "p0" else "")
        stage.d1.transfer = lambda _holder: ("mem", "kv_corrupt")
        await stage.world.start()
        assert (stage.pair("p0", "d0").state, stage.pair("p1", "d0").state) == ("open", "closed")
        assert stage.figures.values["tandem_pairs", "open"] == 3
        modes = await stage.asked(6)
        assert set(modes) <= {("decode", "p1"), ("local", "")}
        assert ("decode", "p1") in modes
        reason = stage.pair("p0", "d0").reason
        assert "transfer_failed" in reason
        broken = False
        await asyncio.sleep(PAIRS.backoff_max_s + 1.0)
        assert stage.pair("p0", "d0").state == "closed"
        assert ("decode", "p0") in await stage.asked(4)

    on_stage(main)


def test_failed_transfers_of_requests_open_a_pair_and_a_canary_closes_it() -> None:
    async def main(stage: Stage) -> None:
        for worker in (stage.p1, stage.d1):
            worker.draining = True
        await stage.world.start()
        stage.d0.transfer_of_requests = lambda _holder: ("mem", "kv_corrupt")
        assert await stage.asked(2) == [("decode", "p0")] * 2
        assert stage.pair("p0", "d0").failures == 2
        assert await stage.asked(3) == [("decode", "p0"), ("local", ""), ("local", "")]
        assert stage.pair("p0", "d0").state == "open"
        assert stage.figures.values["tandem_pair_changes_total", "open"] == 1
        assert len(stage.d0.canaries) == 4, "one at first, and one for each failure"
        stage.d0.transfer_of_requests = None
        await asyncio.sleep(1.0)
        assert stage.pair("p0", "d0").state == "closed"
        assert await stage.asked() == [("decode", "p0")]

    on_stage(main)


def test_a_dead_path_costs_one_request_and_no_more() -> None:
    async def main(stage: Stage) -> None:
        for worker in (stage.p1, stage.d1):
            worker.draining = True
        await stage.world.start()
        stage.d0.transfer = lambda _holder: ("mem", "transfer_failed")
        assert await stage.asked(3) == [("decode", "p0"), ("local", ""), ("local", "")]
        stage.d0.transfer = lambda _holder: ("mem", "")
        await asyncio.sleep(1.0)
        assert await stage.asked() == [("decode", "p0")]

    on_stage(main)


def test_a_transport_that_carried_last_is_tried_first() -> None:
    async def main(stage: Stage) -> None:
        stage.d0.transfer = stage.d1.transfer = lambda _holder: ("tcp", "")
        await stage.world.start()
        for peer in stage.world.fleet.peers():
            peer.hello = msgspec.structs.replace(peer.hello, addresses=("mem://a", "tcp://b"))
        await stage.asked()
        (submit,) = [*stage.d0.submits, *stage.d1.submits]
        assert submit.remote is not None
        assert submit.remote.addresses == ("tcp://b", "mem://a")

    on_stage(main)


def test_an_unready_worker_is_alive_gets_no_work_and_no_canary_until_it_says_ready() -> None:
    async def main(stage: Stage) -> None:
        stage.d0.unready = stage.d1.unready = True
        await stage.world.start()
        assert stage.listed("d0").state == "alive"
        assert stage.figures.values["tandem_workers", "decode", "alive"] == 2
        assert stage.world.dispatcher.ready() is not None
        assert not stage.p0.canaries
        client = stage.world.ask()
        await asyncio.sleep(0.3)
        assert not client.ended.is_set()
        stage.d0.send(Ready(("mem://d0",), "self", ("tcp: refused",)))
        await client.ended.wait()
        client.check_whole()
        assert (stage.listed("d0").state, stage.listed("d0").canary) == ("ready", "self")
        assert stage.listed("d0").problems == ("tcp: refused",)
        assert stage.figures.values["tandem_workers", "decode", "ready"] == 1

    on_stage(main)


@pytest.mark.parametrize("how", ["silent", "another epoch"])
def test_a_worker_whose_word_counts_for_nothing_is_fenced_until_it_is_admitted_again(how: str) -> None:
    async def main(stage: Stage) -> None:
        await stage.world.start()
        if how == "silent":
            stage.d0.pongs = False
            del stage.world.links._servers["d0"]  # frozen: its connections stay, and nobody answers new ones
            await asyncio.sleep(3.0)
        else:
            stage.d0.send(Pong(4711, 1))
            await asyncio.sleep(0.01)
        listed = stage.listed("d0")
        assert listed.state == "fenced"
        assert listed.reason
        assert stage.figures.values["tandem_workers", "decode", "fenced"] == 1
        assert {mode for mode, _ in await stage.asked(2)} == {"decode"}
        stage.d0.pongs = True
        if how == "silent":
            await stage.d0.revive()
        await asyncio.sleep(3.0)
        assert stage.listed("d0").state == "ready"
        assert stage.figures.values["tandem_workers", "decode", "fenced"] == 0

    on_stage(main)


def test_a_worker_that_drains_or_dies_takes_its_pairs_with_it() -> None:
    async def main(stage: Stage) -> None:
        await stage.world.start()
        stage.p0.die()
        await asyncio.sleep(0.1)
        assert [(pair.worker, pair.role) for pair in stage.listed("d0").pairs] == [("p1", "prefill")]
        assert {(pair.worker, pair.role) for pair in stage.listed("p1").pairs} == {("d0", "decode"), ("d1", "decode")}
        await stage.p0.revive()
        await asyncio.sleep(3.0)
        assert stage.pair("p0", "d0").state == "closed"
        assert len(canaries_of(stage.d0, "p0")) == 2, "a new incarnation has to prove itself again"

    on_stage(main)


def canaries_of(decode: ScriptedWorker, holder: str) -> list[str]:
    return [
        submit.remote.worker_id
        for submit in decode.canaries
        if submit.remote is not None and submit.remote.worker_id == holder
    ]


def test_pairs_beyond_the_first_partners_are_proved_when_placement_looks_at_them() -> None:
    few = replace(SETTINGS, fleet=FleetSettings(pairs=replace(PAIRS, partners_max=1)))

    async def main(stage: Stage) -> None:
        await stage.world.start()
        assert stage.figures.values["tandem_pairs", "closed"] < 4
        await stage.asked(4)
        assert stage.figures.values["tandem_pairs", "closed"] == 4

    on_stage(main, few)


def test_without_canaries_every_pair_is_trusted() -> None:
    async def whole(loop: VirtualLoop) -> None:
        world = World(loop, SETTINGS)
        prefill, decode = world.worker("p0", "prefill"), world.worker("d0", "decode")
        await world.start()
        client = world.ask(tokens=100)
        await client.ended.wait()
        assert [submit.mode for submit in (*prefill.submits, *decode.submits)] == ["prefill", "decode"]
        assert (prefill.canaries, world.fleet.listing()[0].pairs) == ([], ())
        await world.stop()

    run(whole, limit_s=100.0)
