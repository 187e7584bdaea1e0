"""When a worker is expected to have KV blocks for a request, and how often requests end: by hand-worked figures."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from router.dispatch.kv_memory import KvMemory
from router.fleet.peer import Peer
from router.generation import Generation
from router.placement import Breakdown, Candidate, Placement
from router.settings import PlacementSettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.entropy import SeededEntropy, below
from tandem.core.errors import TandemError
from tandem.core.messages import Load
from tests.worlds.golden import assert_as_written, digest
from tests.worlds.router_world import World

BLOCK = 16
STEP_S = 0.1
"""More than the cost model expects, so it is what counts."""
NOTHING = Breakdown(0.0, 0.0, 0.0, 0.0, 0.0)


def scenario(body: Callable[["Pool"], Awaitable[None]], workers: str = "d1", *, expected_tokens: int = 128) -> None:
    """Decode workers that compute their prompts themselves, and generate nothing unless they are asked to, where no
    prefill worker computes 800 tokens a second for them."""

    async def main(loop: VirtualLoop) -> None:
        prefer = "disaggregated" if "p1" in workers else "local"
        placement = PlacementSettings(prefer=prefer, expected_output_tokens=expected_tokens)
        world = World(loop, RouterSettings(placement=placement))
        for name in workers.split():
            worker = world.worker(name, "decode" if name[0] == "d" else "prefill")
            worker.prefill_s = 1000.0
            worker.load = Load(0, 0, 0, 1000, 0, 0, 0.0, 800.0, 0.0, 0) if worker.role == "prefill" else None
        await world.start()
        await body(Pool(world))

    run(main, limit_s=3000.0)


class Pool:
    """The world, and what its router knows of the memory of `d1`, which has 1000 blocks."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def memory(self) -> KvMemory:
        return self.world.dispatcher._memory

    def peer(self, name: str = "d1") -> Peer:
        peer = self.world.fleet.peer(name)
        assert peer is not None
        return peer

    def loaded(self, *, running: int, free: int, waiting: int = 0, name: str = "d1") -> None:
        """The worker's figures, which show everything that was sent there."""
        view = self.peer(name).view
        view.loaded(Load(running, waiting, 0, free, 0, 0, STEP_S, 0.0, 0.0, 0), self.world.clock.now(), 0.0)
        view.steps_ms = 1e3 * STEP_S

    def generation(self, blocks: int, max_tokens: int = 64, n: int = 1) -> Generation:
        return self.world.generation(tokens=blocks * BLOCK, max_tokens=max_tokens, n=n)

    def wait_s(self, blocks: int, *, cached: int = 0, n: int = 1) -> float:
        """For a request whose prompt has so many blocks, `cached` of which the worker has."""
        generation = self.generation(blocks, n=n)
        placement = Placement(
            "local",
            "d1",
            None,
            generation.prompt_tokens,
            cached * BLOCK,
            ((Candidate("d1"), NOTHING),),
            (),
            decode_cached_tokens=cached * BLOCK,
        )
        return self.memory.wait_s(generation, placement)

    def check_needs(self, blocks: int, free: int, *, running: int, waiting: int = 0) -> None:
        """Such a request waits with fewer than `free` free blocks, and not with so many."""
        self.loaded(running=running, free=free - 1, waiting=waiting)
        assert self.wait_s(blocks) > 0.0
        self.loaded(running=running, free=free, waiting=waiting)
        assert self.wait_s(blocks) == 0.0


def test_requests_of_other_routers_are_taken_to_be_half_done_and_to_share_what_is_used() -> None:
    """Answers of 128 tokens are expected: each ends in 6.4 s and gives a hundred blocks back."""

    async def body(pool: Pool) -> None:
        pool.loaded(running=10, free=0)
        assert pool.wait_s(100) == pytest.approx(64 * STEP_S)
        pool.loaded(running=10, free=100)
        assert pool.wait_s(100) == 0.0
        assert pool.wait_s(101) == pytest.approx(64 * STEP_S)
        assert pool.wait_s(200, cached=100) == 0.0, "it needs blocks for what is not there"
        assert pool.wait_s(100, n=2) == pytest.approx(64 * STEP_S), "each sequence more needs a block of its own"

    scenario(body)


def test_who_waits_there_for_another_router_goes_first() -> None:
    """It takes what the first who end give back, as much as each of them has, and keeps it for a whole answer."""

    async def body(pool: Pool) -> None:
        pool.loaded(running=1, free=0, waiting=1)
        assert pool.wait_s(100) == pytest.approx((64 + 128) * STEP_S)
        pool.loaded(running=10, free=0, waiting=1)
        assert pool.wait_s(100) == pytest.approx(64 * STEP_S), "nine more end as soon"

    scenario(body)


def test_who_waits_there_for_another_router_takes_as_much_as_one_who_runs() -> None:
    """Ten use 800 blocks: 80 of the 200 free ones are for the one that waits."""

    async def body(pool: Pool) -> None:
        pool.loaded(running=10, free=200, waiting=1)
        assert pool.wait_s(120) == 0.0
        assert pool.wait_s(121) == pytest.approx(64 * STEP_S)

    scenario(body)


def test_half_of_what_a_running_answer_is_expected_to_grow_by_is_not_free() -> None:
    """It has a block and is expected to have a hundred more: 50 of the 300 free ones. Ten use 700, so that 70 are for
    the one that waits."""

    async def body(pool: Pool) -> None:
        pool.world.workers["d1"].prefill_s = 0.0
        pool.world.workers["d1"].step_s = 0.2
        client = pool.world.ask(tokens=100 * BLOCK, max_tokens=1600)
        while not client.tokens[0]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        pool.loaded(running=10, free=300, waiting=1)
        assert pool.wait_s(180) == 0.0
        assert pool.wait_s(181) > 0.0

    scenario(body, expected_tokens=1600)


def test_a_request_of_this_router_has_its_blocks_until_its_answer_is_expected_to_end() -> None:
    """One token of 64 is there, and 63 are left."""

    async def body(pool: Pool) -> None:
        pool.world.workers["d1"].prefill_s = 0.0
        pool.world.workers["d1"].step_s = 0.2
        client = pool.world.ask(tokens=100 * BLOCK, max_tokens=64)
        while not client.tokens[0]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        pool.loaded(running=1, free=0)
        assert pool.wait_s(50) == pytest.approx(63 * STEP_S)
        assert pool.wait_s(200) == pytest.approx(63 * STEP_S), "then nobody is left to wait for"
        pool.loaded(running=3, free=0)
        assert pool.wait_s(200) == pytest.approx(64 * STEP_S), "two more have the rest of what is used"
        pool.check_needs(50, 50, running=1)

    scenario(body)


@pytest.mark.parametrize("seen", [True, False])
def test_a_request_without_a_token_counts_with_its_prompt_and_one_block_more_until_the_worker_shows_it(
    seen: bool,
) -> None:
    """101 blocks for the one that was asked before, if the worker's figures cannot have it yet."""

    async def body(pool: Pool) -> None:
        pool.world.workers["d1"].prefill_s = 0.0
        pool.world.workers["d1"].step_s = 1000.0
        pool.world.ask(tokens=100 * BLOCK)
        if seen:
            await asyncio.sleep(5.0)
        pool.check_needs(50, 50 if seen else 151, running=1)

    scenario(body)


def test_of_a_worker_that_has_told_nothing_yet_the_blocks_are_free_that_were_promised_to_nobody() -> None:
    """It has 300, 201 of which are for the request before."""

    async def body(pool: Pool) -> None:
        pool.peer().view.blocks = 300
        pool.world.ask(tokens=200 * BLOCK)
        assert pool.peer().view.load is None
        assert pool.wait_s(99) == 0.0
        assert pool.wait_s(100) > 0.0

    scenario(body)


def test_a_request_that_the_worker_lets_wait_gets_its_blocks_before_a_new_one() -> None:
    """Figures are late by less than the sleep."""

    async def body(pool: Pool) -> None:
        pool.world.ask(tokens=100 * BLOCK + 8)
        await asyncio.sleep(5.0)
        pool.check_needs(50, 151, running=3, waiting=1)

    scenario(body)


@pytest.mark.parametrize(("first_ms", "wait_s"), [(1000.0, 5.4), (6000.0, 0.4), (7000.0, 0.0)])
def test_a_prompt_that_is_computed_elsewhere_needs_decodes_memory_when_it_has_been(
    first_ms: float, wait_s: float
) -> None:
    async def body(pool: Pool) -> None:
        pool.loaded(running=10, free=0)
        generation = pool.generation(100)
        cost = Breakdown(0.4 * first_ms, 0.5 * first_ms, 99.0, 99.0, 99.0, fetch_ms=0.1 * first_ms)
        costs = ((Candidate("d1", "p1"), cost),)
        placement = Placement("disaggregated", "d1", "p1", generation.prompt_tokens, 0, costs, ())
        assert pool.memory.wait_s(generation, placement) == pytest.approx(wait_s)

    scenario(body)


def test_a_prompt_that_prefill_still_computes_takes_its_blocks_when_it_is_expected_to_come() -> None:
    """In two seconds, when a hundred are free and it takes 101: the next one has to wait for the first who end."""

    async def body(pool: Pool) -> None:
        pool.world.ask(tokens=100 * BLOCK)
        eta_s = pool.world.dispatcher._prefill_rebalancer.prefill_eta_s(pool.peer("p1"))
        assert list(eta_s.values()) == [pytest.approx(2.0, rel=0.02)]
        pool.loaded(running=10, free=100)
        assert pool.wait_s(101) == pytest.approx(64 * STEP_S - 2.0, rel=0.02)

    scenario(body, "p1 d1")


def test_nothing_is_kept_of_a_worker_that_is_gone() -> None:
    """Workers come and go under new names for as long as a router runs."""

    async def body(pool: Pool) -> None:
        pool.loaded(running=10, free=0)
        assert pool.wait_s(100) > 0.0
        assert set(pool.memory._snapshots) == {"d1"}
        pool.world.workers["d1"].die()
        await asyncio.sleep(5.0)
        assert not pool.memory._snapshots

    scenario(body)


@pytest.mark.parametrize(("wait_s", "sent"), [(0.99, 1), (1.01, 0)])
def test_a_request_goes_to_a_worker_one_second_before_that_has_memory_for_it(wait_s: float, sent: int) -> None:
    """Later, and the worker stands idle; earlier, and it waits there where it could still have gone elsewhere."""

    async def body(pool: Pool) -> None:
        pool.loaded(running=10, free=0)
        pool.peer().view.steps_ms = 1e3 * wait_s / 8
        pool.world.ask(tokens=100 * BLOCK)
        await asyncio.sleep(0.01)
        assert len(pool.world.workers["d1"].submits) == sent
        assert pool.world.dispatcher._admission.queued("demo") == 1 - sent

    scenario(body, expected_tokens=16)


def test_who_waited_for_memory_is_told_so_in_its_trace() -> None:
    """Also where the first look at what waits finds a place for it."""

    async def body(pool: Pool) -> None:
        pool.loaded(running=10, free=0)
        pool.world.workers["d1"].prefill_s = 0.0
        client = pool.world.ask(tokens=100 * BLOCK)
        await asyncio.sleep(1.0)
        load = Load(0, 0, 0, 1000, 0, 0, STEP_S, 0.0, 0.0, 0)
        pool.peer().view.loaded(load, pool.world.clock.now(), 0.0)
        pool.world.dispatcher.loaded(pool.peer(), load)
        await client.ended.wait()
        (queue,) = [span for span in pool.world.recorder.kept["req-1"] if span.name == "queue"]
        assert "d1 is expected to have KV memory for it only 6.4 s after" in str(queue.attributes["reasons"])

    scenario(body)


# ---- how often a request ends ----


def every_s(blocks: int, tokens: int, sequences: float) -> float:
    """Answers of so many tokens end one after the other in each of so many places."""
    return (tokens * STEP_S + 0.5) / sequences


@pytest.mark.parametrize(
    ("blocks", "max_tokens", "n", "running", "sequences"),
    [
        # 1632 tokens in the mean, 102 blocks: four fifths of the pool have room for so many.
        (100, 64, 1, 0, 800 / 102),
        (100, 64, 2, 0, 800 / 204),
        # More run there: requests have a common prefix.
        (100, 64, 1, 50, 50),
        # As many as a worker takes.
        (1, 64, 1, 0, 256),
        # One at least.
        (900, 64, 1, 0, 1.0),
        # An answer that may be long is taken to be of 128 tokens.
        (100, 4096, 1, 0, 800 / 104),
    ],
)
def test_a_line_is_guessed_to_move_as_answers_end_in_the_places_that_pools_have(
    blocks: int, max_tokens: int, n: int, running: int, sequences: float
) -> None:
    async def body(pool: Pool) -> None:
        pool.loaded(running=running, free=0)
        found = pool.memory.interval_s(pool.generation(blocks, max_tokens, n))
        assert found == pytest.approx(every_s(blocks, min(max_tokens, 128), sequences))

    scenario(body)


@pytest.mark.parametrize("one", [True, False])
def test_a_small_pool_has_a_place_for_each_block(one: bool) -> None:
    async def body(pool: Pool) -> None:
        pool.loaded(running=0, free=0)
        pool.peer().view.blocks = 100
        generation = pool.world.generation(tokens=10 if one else 20, max_tokens=4)
        assert pool.memory.interval_s(generation) == pytest.approx(every_s(1, 4, 80 if one else 40))

    scenario(body)


@pytest.mark.parametrize("out", ["ready", "draining", "takes_prompts", "nothing"])
def test_a_line_moves_as_much_faster_as_there_are_more_workers_that_generate(out: str) -> None:
    """One that is not ready, or leaves, or computes prompts for others, takes nobody out of it."""

    async def body(pool: Pool) -> None:
        for name in ("d1", "d2"):
            pool.loaded(running=0, free=0, name=name)
        if out != "nothing":
            setattr(pool.peer("d2").view, out, out != "ready")
        found = pool.memory.interval_s(pool.generation(100))
        assert found == pytest.approx(every_s(100, 64, 800 / 102) / (2 if out == "nothing" else 1))

    scenario(body, "d1 d2")


def test_without_a_worker_nothing_is_guessed() -> None:
    async def body(pool: Pool) -> None:
        pool.world.workers["d1"].die()
        await asyncio.sleep(5.0)
        assert pool.memory.interval_s(pool.generation(100)) == 0.0

    scenario(body)


async def drawn_pool(pool: Pool, entropy: SeededEntropy) -> list[str]:
    """Requests of this router and of others share the memory of `d1`: how long it has several asked for."""
    world, told = pool.world, list[str]()
    pool.peer().view.steps_ms = 1e3 * STEP_S
    for turn in range(5):
        for worker in world.workers.values():
            worker.prefill_s, worker.step_s = (0.2, 1000.0)[below(entropy, 2)], STEP_S
        for _ in range(below(entropy, 5)):
            tokens, most = 1 + below(entropy, 120) * BLOCK, 1 + below(entropy, 200)
            try:
                world.ask(tokens=tokens, max_tokens=most, n=1 + below(entropy, 3) // 2)
            except TandemError as refused:
                told.append(f"{turn}: {refused}")
        await asyncio.sleep((0.0, 0.3, 1.3)[below(entropy, 3)])
        if below(entropy, 4):
            free = (below(entropy, 40), below(entropy, 1001))[below(entropy, 2)]
            pool.loaded(running=below(entropy, 30), free=free, waiting=below(entropy, 6))
        for blocks in (1, 1 + below(entropy, 60), 1 + below(entropy, 900), 1500):
            cached, n = below(entropy, blocks), 1 + below(entropy, 3)
            told.append(f"{turn}: {blocks} {cached} {n}: {pool.wait_s(blocks, cached=cached, n=n):.4f}")
        asked = pool.generation(1 + below(entropy, 100), 1 + below(entropy, 400))
        told.append(f"{turn}: {pool.memory.turn_s(asked):.4f} {pool.memory.interval_s(asked):.5f}")
    return told


@pytest.mark.parametrize("workers", ["d1", "p1 d1"])
def test_requests_wait_for_memory_as_long_as_when_it_was_written_down(workers: str) -> None:
    """Over drawn pools: with and without figures of the worker, with prompts that others compute for it."""
    stories = {}
    for seed in range(24):
        found: list[str] = []

        async def body(pool: Pool, seed: int = seed, found: list[str] = found) -> None:
            found.extend(await drawn_pool(pool, SeededEntropy(seed, "waits")))

        scenario(body, workers)
        waits = sum(not line.endswith(" 0.0000") for line in found)
        stories[f"{seed}: {digest(found)}, {waits} of {len(found)} wait"] = found
    assert_as_written(f"waits_{workers.replace(' ', '_')}", list(stories), stories)
