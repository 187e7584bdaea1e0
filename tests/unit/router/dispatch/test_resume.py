"""A router takes over what another one began: real routers and workers over memory links, on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from kv_transfer.tickets import Keyring, TicketKey
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.failover import Failover, RecoveredAttempt
from router.dispatch.recovery import Recovery, RecoveryStream
from router.dispatch.resume_token import decode_resume_token, encode_resume_token, resume_key, resume_keys
from router.fleet.peer import Peer
from router.generation import Generation, Resumed, Usage
from router.placement import Candidate
from router.settings import AdmissionSettings, PlacementSettings, RouterSettings
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.apps.simulation.network import NetworkProfile
from tandem.apps.simulation.platform import Platform, Shape, named_workers
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.messages import (
    AttemptFailed,
    AttemptResumed,
    Cancel,
    SampleFirst,
    SequenceOutput,
    TokenLogprob,
    WorkerCommand,
)
from tandem.core.request import Sampling, Stopping
from tandem.core.spans import TraceContext
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tests.worlds.router_world import Client, Spans
from tests.worlds.router_world import World as ScriptedWorld

MODEL = SimulatedModel(blocks=160, token_s=0.0001, base_s=0.008)
KEYRING = Keyring(TicketKey("a", b"0123456789abcdef"))
LEASE_S = 15.0
ORPHAN_LEASE_S = Deadlines().orphan_lease_s


@dataclass
class Sink:
    """Keeps what it hears."""

    outputs: list[tuple[int, int, tuple[int, ...], str, tuple[TokenLogprob, ...]]] = field(default_factory=list)
    finish: dict[int, str] = field(default_factory=dict)
    usage: Usage | None = None
    error: TandemError | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def output(self, output: SequenceOutput) -> None:
        assert not self.ended.is_set(), "output after the end"
        self.outputs.append((output.sequence, output.position, output.tokens, output.text, output.logprobs))
        if output.finish is not None:
            self.finish[output.sequence] = output.finish

    def done(self, usage: Usage) -> None:
        self.usage = usage
        self.ended.set()

    def failed(self, error: TandemError) -> None:
        self.error = error
        self.ended.set()

    def place(self, n: int) -> tuple[int, ...]:
        """How many tokens of each sequence have come."""
        return tuple(sum(len(one[2]) for one in self.outputs if one[0] == sequence) for sequence in range(n))

    def said(self, sequence: int) -> tuple[tuple[int, ...], str, tuple[TokenLogprob, ...]]:
        mine = [one for one in self.outputs if one[0] == sequence]
        tokens = tuple(token for one in mine for token in one[2])
        return tokens, "".join(one[3] for one in mine), tuple(drawn for one in mine for drawn in one[4])


def joined(*sinks: Sink, n: int = 1) -> list[tuple[object, ...]]:
    """What several connections brought, put together."""
    parts = [[sink.said(sequence) for sink in sinks] for sequence in range(n)]
    return [
        (
            tuple(token for part in parts_ for token in part[0]),
            "".join(part[1] for part in parts_),
            tuple(drawn for part in parts_ for drawn in part[2]),
        )
        for parts_ in parts
    ]


class World:
    """A platform whose router dies when a test says so."""

    def __init__(self, loop: VirtualLoop, settings: RouterSettings, prefill: int, decode: int) -> None:
        workers = named_workers(prefill, decode)
        shape = Shape(workers, MODEL, SchedulerSettings(), settings, NetworkProfile())
        self.recorder = Spans()
        self.platform = Platform(shape, 3, loop, self.recorder, None, lambda violation: None)
        self.clock = self.platform.clock

    @property
    def dispatcher(self) -> Dispatcher:
        life = self.platform.router.life
        assert life is not None
        return life.dispatcher

    def generation(
        self, name: str = "req", n: int = 1, max_tokens: int = 60, logprobs: int | None = None
    ) -> Generation:
        return Generation(
            request_id=name,
            model=MODEL.name,
            tenant="tenant",
            tenant_salt="",
            prompt=pack_tokens(range(300, 400)),
            n=n,
            seed=5,
            sampling=Sampling(logprobs=logprobs),
            stopping=Stopping(max_tokens=max_tokens, ignore_eos=True),
            timeout_s=100.0,
            received=self.clock.now(),
            received_wall=self.clock.wall(),
            trace=TraceContext("ab" * 16, "cd" * 8),
            resume=b"facts",
        )

    async def whole(self, generation: Generation) -> Sink:
        """The undisturbed answer."""
        sink = Sink()
        self.dispatcher.start(generation, sink)
        await sink.ended.wait()
        return sink

    async def restart(self, after_s: float = 0.1) -> None:
        """Kill the router and start another, which knows nothing."""
        self.platform.router.kill()
        await asyncio.sleep(after_s)
        self.platform.router.start()
        while not self.platform.router.can_be_asked():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def resume(self, name: str = "req", tenant: str = "tenant") -> Resumed:
        found = await self.dispatcher.resume(name, tenant)
        self.dispatcher.check()
        return found

    async def free(self, within_s: float) -> None:
        await self.platform.until(lambda: not self.platform.held(), within_s, "something is held")


PAIRED = RouterSettings(placement=PlacementSettings(prefer="disaggregated"))


def scenario(
    test: Callable[[World], Awaitable[None]], settings: RouterSettings = PAIRED, prefill: int = 2, decode: int = 2
) -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, settings, prefill, decode)
        world.platform.start()
        await world.platform.until(world.platform.ready, 30.0, "not ready")
        await test(world)

    run(main, limit_s=2000.0)


def heard(sink: Sink) -> Sink:
    """A copy: what the client had when its connection broke."""
    return Sink(list(sink.outputs))


@pytest.mark.parametrize(("n", "logprobs"), [(1, None), (2, 1)])
@pytest.mark.parametrize("after_s", [0.0005, 0.004, 0.02, 0.4, 3.0])
def test_whenever_the_router_dies_the_answer_is_whole(after_s: float, n: int, logprobs: int | None) -> None:
    async def test(world: World) -> None:
        whole = await world.whole(world.generation("whole", n, logprobs=logprobs))
        first, second = Sink(), Sink()
        world.dispatcher.start(world.generation("req", n, logprobs=logprobs), first)
        await asyncio.sleep(after_s)
        had = heard(first)
        await world.restart()
        found = await world.resume()
        assert found.generation.resume == b"facts"
        found.listen(second, had.place(n))
        await second.ended.wait()
        assert joined(had, second, n=n) == joined(whole, n=n)
        assert second.usage is not None
        assert second.usage.completion_tokens == n * 60
        assert second.usage.by_tier == {"hbm": 96}, "as prefill found and told the router before"
        await world.free(1.0)

    scenario(test)


def test_a_router_that_takes_a_request_over_knows_what_its_workers_still_have_to_compute() -> None:
    """Else it sends more prompts to a worker that is busy with those of the router before it."""

    async def test(world: World) -> None:
        world.dispatcher.start(
            msgspec.structs.replace(world.generation(max_tokens=4), prompt=pack_tokens(range(2000))), Sink()
        )
        await asyncio.sleep(0.02)
        await world.restart(0.01)
        resumed, sink = await world.resume(), Sink()
        resumed.listen(sink, (0,))
        computing = [peer.view.prompt_tokens_in_flight for peer in world.dispatcher._fleet.peers()]
        assert not sink.outputs
        assert sorted(computing) == [0, 0, 0, 2000]
        await sink.ended.wait()
        assert {peer.view.prompt_tokens_in_flight for peer in world.dispatcher._fleet.peers()} == {0}

    scenario(test)


def test_the_trace_of_an_answer_that_was_taken_over_says_where_it_goes_on() -> None:
    async def test(world: World) -> None:
        running = world.dispatcher.start(world.generation(), Sink())
        await asyncio.sleep(0.2)
        had = running.standing()
        await world.restart()
        sink = Sink()
        (await world.resume()).listen(sink, (0,))
        await sink.ended.wait()
        *_, place = (span for span in world.recorder.spans("req") if span.name == "place")
        assert (place.attributes["prefill"], place.attributes["decode"]) == (had.prefill, had.decode)
        assert str(place.attributes["costs"]).startswith(
            f"{Candidate(had.decode or '', had.prefill or '')}: 0.0 ms = "
        )
        assert place.attributes["reasons"] == "taken over from another router"

    scenario(test)


def test_a_prefill_that_is_all_that_is_left_is_enough() -> None:
    async def test(world: World) -> None:
        whole = await world.whole(world.generation("whole"))
        first, second = Sink(), Sink()
        world.dispatcher.start(world.generation(), first)
        await asyncio.sleep(0.2)
        had = heard(first)
        world.platform.router.kill()
        for name, node in world.platform.nodes.items():
            if name.startswith("d"):
                node.kill()
        await asyncio.sleep(0.5)
        for name, node in world.platform.nodes.items():
            if name.startswith("d"):
                node.start()
        world.platform.router.start()
        await world.platform.until(world.platform.ready, 30.0, "not ready")
        found = await world.resume()
        with pytest.raises(TandemError, match="not 61"):
            found.chars((61,))
        found.listen(second, had.place(1))
        await second.ended.wait()
        assert joined(had, second) == joined(whole)

    scenario(test)


def test_a_decode_that_is_all_that_is_left_is_enough() -> None:
    async def test(world: World) -> None:
        whole = await world.whole(world.generation("whole"))
        first, second = Sink(), Sink()
        world.dispatcher.start(world.generation(), first)
        await asyncio.sleep(0.2)
        had = heard(first)
        assert had.outputs
        world.platform.router.kill()
        prefills = [node for name, node in world.platform.nodes.items() if name.startswith("p")]
        for node in prefills:
            node.kill()
        await asyncio.sleep(0.5)
        for node in prefills:
            node.start()
        world.platform.router.start()
        await world.platform.until(world.platform.ready, 30.0, "not ready")
        found = await world.resume()
        running = found.listen(second, had.place(1))
        assert running.standing().attempts == 1, "it goes on with the attempt that it had"
        await second.ended.wait()
        assert joined(had, second) == joined(whole)

    scenario(test)


def test_an_answer_outlives_a_router_whose_restart_takes_long() -> None:
    async def test(world: World) -> None:
        whole = await world.whole(world.generation("whole", max_tokens=200))
        first, second = Sink(), Sink()
        world.dispatcher.start(world.generation(max_tokens=200), first)
        await asyncio.sleep(0.2)
        had = heard(first)
        await world.restart(Deadlines().router_restart_s)
        await asyncio.sleep(LEASE_S / 2)
        (await world.resume()).listen(second, had.place(1))
        await second.ended.wait()
        assert joined(had, second) == joined(whole)

    scenario(test)


def test_a_decode_worker_that_dies_after_the_takeover_is_replaced() -> None:
    async def test(world: World) -> None:
        whole = await world.whole(world.generation("whole", max_tokens=200))
        first, second = Sink(), Sink()
        running = world.dispatcher.start(world.generation(max_tokens=200), first)
        await asyncio.sleep(0.2)
        decode = running.standing().decode
        assert decode is not None
        had = heard(first)
        await world.restart()
        (await world.resume()).listen(second, had.place(1))
        await asyncio.sleep(0.2)
        world.platform.nodes[decode].kill()
        await second.ended.wait()
        assert joined(had, second) == joined(whole)

    scenario(test)


def test_others_find_nothing() -> None:
    async def test(world: World) -> None:
        first = Sink()
        world.dispatcher.start(world.generation(max_tokens=200), first)
        await asyncio.sleep(0.2)
        messages = []
        for name, tenant in (("req", "other"), ("unknown", "tenant")):
            with pytest.raises(TandemError) as refused:
                await world.resume(name, tenant)
            assert refused.value.code == "not_found"
            messages.append(refused.value.message.replace(f"'{name}'", ""))
        assert messages[0] == messages[1]
        await first.ended.wait()
        assert first.usage is not None

    scenario(test)


def test_who_asks_for_what_nobody_has_takes_no_place_of_those_who_come_later() -> None:
    async def test(world: World) -> None:
        for number in range(5):
            with pytest.raises(TandemError, match="cannot be resumed"):
                await world.resume(f"unknown-{number}")
        assert world.dispatcher.held == 0
        assert (await world.whole(world.generation())).place(1) == (60,)

    scenario(test, RouterSettings(admission=AdmissionSettings(requests_max=2)))


def test_nobody_comes_back() -> None:
    async def test(world: World) -> None:
        world.dispatcher.start(world.generation(n=2, max_tokens=900), Sink())
        await asyncio.sleep(0.2)
        await world.restart()
        await asyncio.sleep(5.0)
        assert world.platform.held()
        await world.free(ORPHAN_LEASE_S - 4.0)
        await asyncio.sleep(ORPHAN_LEASE_S - 5.0)
        with pytest.raises(TandemError, match="cannot be resumed"):
            await world.resume()

    scenario(test)


def test_a_client_leaves_and_comes_back_to_its_router_and_later_does_not() -> None:
    async def test(world: World) -> None:
        whole = await world.whole(world.generation("whole", max_tokens=100))
        first, second = Sink(), Sink()
        listening = world.dispatcher.start(world.generation(max_tokens=100), first)
        await asyncio.sleep(0.2)
        had = heard(first)
        listening.cancel("its connection broke")
        await asyncio.sleep(0.2)
        assert len(first.outputs) == len(had.outputs)
        (await world.resume()).listen(second, had.place(1))
        await second.ended.wait()
        assert joined(had, second) == joined(whole)
        again = Sink()
        (await world.resume()).listen(again, (98,))
        assert again.usage == second.usage
        assert again.place(1) == (2,)
        await asyncio.sleep(LEASE_S + 1.0)
        with pytest.raises(TandemError, match="cannot be resumed"):
            await world.resume()
        world.dispatcher.start(world.generation("gone", max_tokens=900), Sink()).cancel("left")
        await asyncio.sleep(LEASE_S / 3)
        assert world.platform.held()
        await world.free(LEASE_S)

    scenario(test)


def test_a_newer_connection_ends_the_older_one_and_two_at_once_find_the_same() -> None:
    async def test(world: World) -> None:
        world.dispatcher.start(world.generation(max_tokens=100), Sink())
        await asyncio.sleep(0.2)
        await world.restart()
        one, other = await asyncio.gather(world.resume(), world.resume())
        assert one is other
        first, second = Sink(), Sink()
        older = one.listen(first, (0,))
        other.listen(second, (0,))
        assert first.error is not None
        assert first.error.code == "taken_over"
        older.cancel("its exchange has ended")
        await second.ended.wait()
        assert second.place(1) == (100,)

    scenario(test)


def test_a_place_that_the_stream_does_not_have_is_refused() -> None:
    async def test(world: World) -> None:
        world.dispatcher.start(world.generation(max_tokens=100), Sink())
        await asyncio.sleep(0.2)
        await world.restart()
        found = await world.resume()
        for place, problem in (((1, 1), "1 positions are needed"), ((90,), "not 90")):
            with pytest.raises(TandemError, match=problem) as refused:
                found.listen(Sink(), place)
            assert refused.value.code == "invalid_request"

    scenario(test)


def test_a_full_router_takes_nothing_over_and_the_client_may_try_again() -> None:
    settings = RouterSettings(admission=AdmissionSettings(requests_max=1))

    async def test(world: World) -> None:
        world.dispatcher.start(world.generation(max_tokens=300), Sink())
        await asyncio.sleep(0.1)
        await world.restart()
        other = Sink()
        world.dispatcher.start(world.generation("other", max_tokens=20), other)
        with pytest.raises(TandemError) as refused:
            await world.resume()
        assert refused.value.code == "queue_full"
        await other.ended.wait()
        sink = Sink()
        (await world.resume()).listen(sink, (0,))
        await sink.ended.wait()
        assert sink.place(1) == (300,)

    scenario(test, settings)


def test_a_router_that_stops_leaves_resumable_requests_with_the_workers() -> None:
    async def test(world: World) -> None:
        sink = Sink()
        world.dispatcher.start(world.generation(max_tokens=100), sink)
        await asyncio.sleep(0.2)
        world.dispatcher.close(TandemError("draining", "it stops"))
        assert sink.error is not None
        assert sink.error.code == "draining"
        had = heard(sink)
        await world.restart()
        rest = Sink()
        (await world.resume()).listen(rest, had.place(1))
        await rest.ended.wait()
        assert len(joined(had, rest)[0][0]) == 100  # type: ignore[arg-type]

    scenario(test)


def test_what_was_held_for_a_broken_link_is_let_go_when_the_router_is_back() -> None:
    async def test(world: World) -> None:
        sink = Sink()
        running = world.dispatcher.start(world.generation(max_tokens=1500), sink)
        await asyncio.sleep(0.2)
        decode = running.standing().decode
        assert decode is not None
        life = world.platform.router.life
        assert life is not None
        world.platform.links.cut(life.name, decode, "a test cut it")
        await asyncio.sleep(0.5)
        assert running.standing().decode != decode
        service = world.platform.nodes[decode].incarnation
        assert service is not None
        assert service.service.host.attempts == 0
        await sink.ended.wait()
        assert sink.place(1) == (1500,)

    scenario(test)


def test_a_seal_is_believed_only_whole_and_from_a_known_key() -> None:
    generation = Generation(
        request_id="req",
        model="m",
        tenant="t",
        tenant_salt="",
        prompt=b"abcd",
        n=1,
        seed=2,
        sampling=Sampling(),
        stopping=Stopping(3),
        timeout_s=4.0,
        received=5.0,
        received_wall=6.0,
        trace=TraceContext("a", "b"),
        priority=0,
        resume=b"f",
    )
    sealed = encode_resume_token(KEYRING, generation, 7)
    opened = decode_resume_token(KEYRING, sealed)
    assert opened is not None
    assert opened.generation(5.0) == generation
    assert opened.cached_tokens == 7
    for at in range(0, len(sealed), 7):
        assert decode_resume_token(KEYRING, sealed[:at] + bytes((sealed[at] ^ 1,)) + sealed[at + 1 :]) is None
        assert decode_resume_token(KEYRING, sealed[:at]) is None
    other = Keyring(TicketKey("b", b"x" * 16))
    assert decode_resume_token(other, sealed) is None
    rotated = Keyring(other.current, KEYRING.current)
    assert decode_resume_token(rotated, sealed) == opened
    assert resume_key(KEYRING, generation) in resume_keys(rotated, "t", "req")
    assert resume_key(KEYRING, generation) not in resume_keys(rotated, "treq", "")


class Asked:
    """A worker that is asked for a request: what it is told, and who listens to its answer."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.told: list[WorkerCommand] = []
        self.recovery_stream: Any = None
        self.closed = False

    def open(self, target: object) -> int:
        self.recovery_stream = target
        return 7

    def send(self, command: WorkerCommand) -> None:
        self.told.append(command)

    def close(self, handle: int) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("decode", "prefill", "taken"),
    [(2, 2, "dp"), (2, 1, "d"), (1, 2, "d"), (2, None, "d"), (None, 2, "p"), (None, None, "")],
)
def test_only_what_is_of_one_attempt_is_taken_over_and_the_rest_is_let_go(
    decode: int | None, prefill: int | None, taken: str
) -> None:
    """A prefill of another attempt brings decode no blocks, and would keep its own."""

    async def main(loop: VirtualLoop) -> None:
        generation = World(loop, PAIRED, 1, 1).generation()
        claims = Recovery("req", "tenant", (b"key",), KEYRING)
        workers = {"d": Asked("d0"), "p": Asked("p0")}
        for (name, worker), attempt in zip(workers.items(), (decode, prefill), strict=True):
            claims.ask(cast(Peer, worker))
            mode, sealed = {"d": "decode", "p": "prefill"}[name], encode_resume_token(KEYRING, generation, 0)
            said = None if attempt is None else AttemptResumed(7, sealed, attempt, mode, 10.0, ((0, 1),))
            worker.recovery_stream.on_claimed(said)
        found = claims.take(LoopClock(loop), 600.0)
        assert (found is None) == (not taken)
        shares = (None, None) if found is None else (found.decode, found.prefill)
        for name, share, had in zip("dp", shares, (decode, prefill), strict=True):
            assert (share is not None) == (name in taken) == (not workers[name].closed)
            let_go = had is not None and name not in taken
            assert any(isinstance(command, Cancel) for command in workers[name].told) == let_go
        if found is not None:
            assert found.number == (decode or prefill)

    run(main)


@pytest.mark.parametrize(
    ("request_id", "tenant", "given"),
    [("req", "tenant", True), ("other", "tenant", False), ("req", "other", False)],
)
def test_nobody_is_given_the_stream_of_another_request_or_tenant_that_a_worker_hands_over(
    request_id: str, tenant: str, given: bool
) -> None:
    """A worker that is asked by a key of one request, and answers with another, has a fault, or wants somebody to
    read what is not theirs."""

    async def main(loop: VirtualLoop) -> None:
        sealed = encode_resume_token(KEYRING, World(loop, PAIRED, 1, 1).generation(), 0)
        claims, worker = Recovery(request_id, tenant, (b"key",), KEYRING), Asked("d0")
        claims.ask(cast(Peer, worker))
        worker.recovery_stream.on_claimed(AttemptResumed(7, sealed, 1, "decode", 10.0, ((0, 1),)))
        assert (claims.take(LoopClock(loop), 600.0) is not None) == given
        assert worker.closed != given

    run(main)


@pytest.mark.parametrize(
    ("moved", "prefill", "waits"), [(True, None, False), (False, None, True), (False, 1, True), (False, 2, False)]
)
def test_a_router_waits_for_more_workers_until_it_has_all_that_the_request_goes_on_with(
    moved: bool, prefill: int | None, waits: bool
) -> None:
    """A client that comes back is answered at once where decode needs nobody, or has the prefill of its attempt."""

    async def main(loop: VirtualLoop) -> None:
        sealed = encode_resume_token(KEYRING, World(loop, PAIRED, 1, 1).generation(), 0)
        claims, asked = Recovery("req", "tenant", (b"key",), KEYRING), (Asked("d0"), Asked("p0"))
        for worker in asked:
            claims.ask(cast(Peer, worker))
        d0, p0 = (worker.recovery_stream for worker in asked)
        if moved:
            d0.on_output(SequenceOutput(7, 0, 1, (5,), "", 0), loop.time())
        d0.on_claimed(AttemptResumed(7, sealed, 2, "decode", 10.0, ((0, 1),)))
        p0.on_claimed(prefill and AttemptResumed(7, sealed, prefill, "prefill", 10.0, ((0, 1),)))
        for more, took_s in ((False, 0.0), (True, 5.0 if waits else 0.0)):
            began = loop.time()
            await claims.settled(lambda more=more: more, 5.0)  # type: ignore[misc]
            assert loop.time() - began == pytest.approx(took_s, abs=0.01)

    run(main)


def test_a_decode_that_had_failed_is_not_told_to_compute_the_prompt_of_a_request_that_goes_on_elsewhere() -> None:
    """Its report would pass for that of the worker which does, and its cached tokens for the answer's."""

    async def main(loop: VirtualLoop) -> None:
        world = ScriptedWorld(loop)
        for name in ("u1", "u2"):
            world.worker(name, "unified")
        await world.start()
        peer = world.fleet.peer("u1")
        assert peer is not None
        handle = RecoveryStream(peer, lambda: None).handle
        claimed = AttemptResumed(handle, b"", 1, "decode", 10.0, ((0, 1),))
        failure = AttemptFailed(handle, "engine_failed", "it broke")
        generation = msgspec.structs.replace(world.generation(), resume=b"facts")
        share = RecoveredAttempt(peer, handle, claimed, (), None, failure, None)
        adopted = world.dispatcher.adopt(world.dispatcher.reserve(), Failover(generation, 0, share, None))
        client = Client(world, generation)
        adopted.listen(client, (0,))
        await client.ended.wait()
        client.check_whole()
        assert Cancel(handle) in world.workers["u1"].commands
        assert SampleFirst(handle) not in world.workers["u1"].commands
        await world.stop()

    run(main, limit_s=1000.0)


def test_a_router_that_stops_while_it_looks_for_a_request_says_so_and_leaves_it_to_others() -> None:
    async def test(world: World) -> None:
        world.dispatcher.start(world.generation(max_tokens=400), Sink())
        await asyncio.sleep(0.1)
        await world.restart()
        # A worker that may have it is away: more may come.
        next(node for name, node in world.platform.nodes.items() if name.startswith("d")).kill()
        await asyncio.sleep(3.0)
        looking = asyncio.create_task(world.dispatcher.resume("unknown", "tenant"))
        await asyncio.sleep(0.05)
        assert not looking.done()
        world.dispatcher.close(TandemError("draining", "the router is stopping"))
        with pytest.raises(TandemError, match="stopping") as stopped:
            await asyncio.wait_for(looking, 0.1)
        assert stopped.value.code == "draining"

    scenario(test)


def test_what_another_router_began_is_not_judged_by_when_its_first_token_came_here() -> None:
    async def test(world: World) -> None:
        world.dispatcher.start(world.generation(max_tokens=400), Sink())
        await asyncio.sleep(0.1)
        await world.restart()
        sink = Sink()
        (await world.resume()).listen(sink, (0,))
        ended = list[object]()
        tallies = world.dispatcher._tallies
        tallies.ended = lambda one, facts: ended.append(one.times)  # type: ignore[method-assign]
        await sink.ended.wait()
        await asyncio.sleep(0.1)
        assert ended == [None]

    scenario(test)
