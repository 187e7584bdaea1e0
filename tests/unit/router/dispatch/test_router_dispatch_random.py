"""Random schedules of delays, losses, refusals and repeats: clients get the truth once, one end, nothing is left."""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.settings import PlacementSettings, RetrySettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.entropy import SeededEntropy, below, unit
from tests.worlds.router_world import Client, ScriptedWorker, World

_FAILURES = ("out_of_blocks", "engine_failed", "draining", "kv_corrupt")


class JitterPolicy:
    """Every frame takes its own time."""

    def __init__(self, entropy: SeededEntropy) -> None:
        self._entropy = entropy

    def delay_s(self, source: str, target: str) -> float:
        return unit(self._entropy) * 0.02

    def repeats(self, source: str, target: str) -> bool:
        return False


async def misbehave(worker: ScriptedWorker, entropy: SeededEntropy) -> None:
    """One worker's bad minute: a death, a loss of voice, refusals; then it is well again."""
    await asyncio.sleep(unit(entropy) * 1.5)
    match below(entropy, 5):
        case 0 | 1:
            worker.die()
            await asyncio.sleep(0.1 + unit(entropy) * 3.0)
            await worker.revive()
        case 2:
            worker.pongs = False
            worker.mute = True
            await asyncio.sleep(4.0)
            worker.pongs, worker.mute = True, False
        case 3:
            worker.fail_with = (_FAILURES[below(entropy, len(_FAILURES))], "drawn")
            await asyncio.sleep(0.2)
            worker.fail_with = None
        case _:
            worker.world.links.cut("router", worker.worker_id, "drawn")


async def ask(world: World, entropy: SeededEntropy) -> Client | None:
    """One client; some leave early."""
    await asyncio.sleep(unit(entropy) * 1.5)
    client = Client(
        world,
        world.generation(
            tokens=1 + below(entropy, 150), max_tokens=1 + below(entropy, 40), n=1 + below(entropy, 5) // 3
        ),
    )
    running = world.dispatcher.start(client.generation, client)
    if unit(entropy) < 0.15:
        await asyncio.sleep(unit(entropy))
        if not client.ended.is_set():
            running.cancel("drawn")
            return None
    await asyncio.wait_for(client.ended.wait(), 700.0)
    return client


async def drama(loop: VirtualLoop, seed: int) -> None:
    entropy = SeededEntropy(seed, "drama")
    prefer = ("auto", "disaggregated", "local")[below(entropy, 3)]
    # Three workers that refuse everything at one time are more than the usual number of attempts can outlast.
    retry = RetrySettings(fruitless_attempts_max=8, hedge_after_s=(None, 0.05)[below(entropy.fork("hedging"), 2)])
    world = World(loop, RouterSettings(placement=PlacementSettings(prefer=prefer), retry=retry), seed)
    world.links.policy = JitterPolicy(entropy.fork("network"))
    for worker_id, role in (
        ("p1", "prefill"),
        ("p2", "prefill"),
        ("d1", "decode"),
        ("d2", "decode"),
        ("u1", "unified"),
    ):
        worker = world.worker(worker_id, role)
        worker.relay = unit(entropy) < 0.5
        worker.prefill_s = unit(entropy) * 0.3
        worker.report = unit(entropy) < 0.9
    world.ends = {0: 1 + below(entropy, 40), 1: 1 + below(entropy, 4)} if unit(entropy) < 0.5 else {}
    await world.start()
    workers = list(world.workers.values())
    troubled = [workers[below(entropy, len(workers))] for _ in range(1 + below(entropy, 3))]
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(world, entropy.fork(f"client {index}"))) for index in range(12)]
        for index, worker in enumerate({worker.worker_id: worker for worker in troubled}.values()):
            group.create_task(misbehave(worker, entropy.fork(f"trouble {index}")))
    for task in asked:
        client = task.result()
        if client is not None:
            client.check_whole()
    await world.stop()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 32))
def test_clients_get_the_truth_once_whatever_happens(seed: int) -> None:
    run(lambda loop: drama(loop, seed), limit_s=3000.0)
