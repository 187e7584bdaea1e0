"""Requests that go the way they went when it was written down: every command to a worker, every span, every end.

Workers die, hang, refuse, leave, run out of blocks and say so, are slow or late to report; clients are patient or
not, of several priorities, some with an objective. Whatever happens a client gets the truth once, or a reason. Beyond
that the same request is sent to the same worker at the same time, retried, hedged, moved, called off and explained as
before.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec
import pytest

from router.fleet.services import ServiceFacts, ServiceRegistry
from router.settings import AdmissionSettings, MigrationSettings, PlacementSettings, RetrySettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.apps.simulation.quiet import quiet_logs
from tandem.core.entropy import SeededEntropy, below, unit
from tandem.core.errors import TandemError
from tandem.core.messages import Draining, Load, Pin
from tandem.core.slo import Slo
from tandem.core.spans import Span
from tests.worlds.golden import assert_as_written, digest
from tests.worlds.golden_world import GoldenMeter, figures, spelled
from tests.worlds.router_world import Client, ScriptedWorker, World

BASE = RouterSettings()
SETTINGS = {
    "plain": BASE,
    "hedged": replace(BASE, retry=RetrySettings(hedge_after=1.5, hedge_after_s=0.03, share=0.5)),
    "disaggregated": replace(BASE, placement=PlacementSettings(prefer="disaggregated")),
    "crowded": replace(
        BASE,
        admission=AdmissionSettings(requests_max=10, queued_max=5),
        placement=PlacementSettings(sequences_per_worker_max=2),
        retry=RetrySettings(share=0.1, burst=2, fruitless_attempts_max=2),
    ),
    "patient": replace(
        BASE,
        retry=RetrySettings(fruitless_attempts_max=8, attempts_max=10),
        placement=PlacementSettings(prefer="disaggregated", sequences_per_worker_max=4),
        migration=MigrationSettings(margin=1.0, at_once=1, every_s=0.05),
    ),
    "starved": replace(
        BASE,
        placement=PlacementSettings(prefer="disaggregated"),
        retry=RetrySettings(share=1.0, burst=10_000, fruitless_attempts_max=16),
    ),
}
SEEDS = range(6)
WORKERS = (("p1", "prefill"), ("p2", "prefill"), ("d1", "decode"), ("d2", "decode"), ("u1", "unified"))
CODES = ("out_of_blocks", "engine_failed", "draining", "kv_corrupt", "queue_full")


@dataclass(frozen=True)
class Pace:
    """Of a fleet: the rates in tokens/s that workers tell, the longest time that a prompt takes, and that a client
    with little time has, in seconds."""

    rates: tuple[float, ...] = (0.0, 20.0, 5000.0)
    prefill_s: float = 0.4
    hurry_s: float = 0.4


USUAL, STARVED = Pace(), Pace((10.0, 10.0, 20.0), 12.0, 5.0)


def drawn_load(entropy: SeededEntropy, pace: Pace) -> Load:
    running, free = below(entropy, 9), (900, below(entropy, 60))[below(entropy, 3) == 0]
    queued = (0, below(entropy, 900))[below(entropy, 2)]
    rate = pace.rates[below(entropy, 3)]
    overdue_s = float(below(entropy, 12) == 0)
    return Load(
        running, below(entropy, 3), queued, free, 0, below(entropy, 30), 0.01, rate, 50.0, 0, overdue_s=overdue_s
    )


async def telling(world: World, entropy: SeededEntropy, pace: Pace) -> None:
    """Workers tell of their load, which is another each time."""
    while True:
        await asyncio.sleep(0.15 + unit(entropy) * 0.3)
        for worker in world.workers.values():
            if worker.link is not None and below(entropy, 2):
                with suppress(TandemError):
                    worker.link.state.send(drawn_load(entropy, pace))


async def trouble(worker: ScriptedWorker, entropy: SeededEntropy) -> None:
    """One worker's bad minute."""
    await asyncio.sleep(unit(entropy) * 1.5)
    match below(entropy, 7):
        case 0 | 1:
            worker.die()
            await asyncio.sleep(0.1 + unit(entropy) * 3.0)
            await worker.revive()
        case 2:
            worker.pongs, worker.mute = False, True
            await asyncio.sleep(4.0)
            worker.pongs, worker.mute = True, False
        case 3:
            worker.fail_with = (CODES[below(entropy, len(CODES))], "drawn")
            await asyncio.sleep(0.3)
            worker.fail_with = None
        case 4:
            worker.transfer = lambda _holder: ("", "kv_corrupt")
            await asyncio.sleep(1.0)
            worker.transfer = lambda _holder: ("mem", "")
        case 5:
            worker.draining = True
            worker.send(Draining(0.5 + unit(entropy)))
        case _:
            worker.world.links.cut("router", worker.worker_id, "drawn")


async def ask(world: World, entropy: SeededEntropy, pace: Pace) -> tuple[Client, str]:
    """One client; some leave early, some are refused."""
    await asyncio.sleep(unit(entropy) * 1.5)
    tokens, most, n = 1 + below(entropy, 150), 1 + below(entropy, 40), 1 + below(entropy, 5) // 3
    base = world.generation(
        tokens=tokens,
        max_tokens=most,
        n=n,
        timeout_s=(600.0, pace.hurry_s + unit(entropy))[below(entropy, 5) == 0],
    )
    asked = msgspec.structs.replace(
        base,
        priority=below(entropy, 4) - 1,
        cache_key=("", "k")[below(entropy, 2)],
        beginning=("", "b")[below(entropy, 2)],
        kv_bytes_max=(None, 1 << 16)[below(entropy, 2)],
        pin=Pin(1, 5.0) if below(entropy, 8) == 0 else None,
        resume=b"" if below(entropy, 4) == 0 else None,
    )
    client = Client(world, asked)
    try:
        running = world.dispatcher.start(asked, client)
    except TandemError as error:
        return client, f"refused: {error.code} {error}"
    if unit(entropy) < 0.15:
        await asyncio.sleep(unit(entropy))
        if not client.ended.is_set():
            said = str(running.standing())
            running.cancel("drawn")
            return client, f"left at {said}"
    await asyncio.sleep(unit(entropy) * 0.5)
    said = "" if client.ended.is_set() else str(running.standing())
    await asyncio.wait_for(client.ended.wait(), 700.0)
    client.check_prefix()
    if client.error is None:
        client.check_whole()
    return client, f"{said} {client.usage} {client.error}"


def story_of(world: World, ends: list[tuple[Client, str]], meter: GoldenMeter) -> list[str]:
    lines = [f"{client.generation.request_id} {said}" for client, said in ends]
    for request_id, spans in sorted(world.recorder.kept.items()):
        lines += [f"{request_id} {spelled(span)}" for span in spans if isinstance(span, Span)]
    for worker in world.workers.values():
        lines += [f"{worker.worker_id} {command}" for command in worker.commands]
    return [*lines, *figures(meter)]


async def lived(loop: VirtualLoop, seed: int, settings: RouterSettings, pace: Pace) -> tuple[Counter[str], list[str]]:
    entropy, meter = SeededEntropy(seed, "golden"), GoldenMeter()
    world = World(loop, settings, seed, meter=meter)
    for worker_id, role in WORKERS:
        worker = world.worker(worker_id, role)
        worker.relay, worker.report = unit(entropy) < 0.5, unit(entropy) < 0.9
        worker.prefill_s, worker.gets_on = unit(entropy) * pace.prefill_s, unit(entropy) < (0.5, 0.9)[pace is STARVED]
        worker.reused, worker.end_s = below(entropy, 3) * 16, (0.0, 0.05)[below(entropy, 2)]
    world.ends = {0: 1 + below(entropy, 40), 1: 1 + below(entropy, 4)} if unit(entropy) < 0.5 else {}
    await world.start()
    told = loop.create_task(telling(world, entropy.fork("loads"), pace))
    workers = list(world.workers.values())
    troubled = {
        worker.worker_id: worker for worker in [workers[below(entropy, 5)] for _ in range(1 + below(entropy, 3))]
    }
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(world, entropy.fork(f"client {index}"), pace)) for index in range(14)]
        for index, worker in enumerate(troubled.values()):
            group.create_task(trouble(worker, entropy.fork(f"trouble {index}")))
    told.cancel()
    await asyncio.sleep(5.0)
    ends = [task.result() for task in asked]
    await world.stop()
    codes = Counter("done" if client.usage else client.error.code if client.error else "gone" for client, _ in ends)
    return codes, story_of(world, ends, meter)


@pytest.mark.parametrize("name", SETTINGS)
def test_requests_go_the_way_they_went_when_it_was_written_down(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stories, pace = {}, STARVED if name == "starved" else USUAL
    for seed in SEEDS:
        slo = (None, Slo(1.0, 0.05), Slo(0.3, 0.02))[seed % 3]
        facts = None if slo is None else ServiceFacts("ns/demo", "demo", queue_s=1.0, slo=slo)
        monkeypatch.setattr(ServiceRegistry, "of", lambda _self, _model, facts=facts: facts)
        with quiet_logs():
            codes, story = run(lambda loop, seed=seed: lived(loop, seed, SETTINGS[name], pace), limit_s=3000.0)  # type: ignore[misc]
        told = ", ".join(f"{count} {code}" for code, count in sorted(codes.items()))
        stories[f"{seed}: {digest(story)}, {told}, {len(story)} lines"] = story
    assert_as_written(f"requests_{name}", list(stories), stories)
