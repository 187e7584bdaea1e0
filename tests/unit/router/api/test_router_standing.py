"""Where a running request stands: what its router knows at each stage, and who may ask."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from router.api.auth import load_keys
from router.api.status import furthest_behind
from router.generation import RequestStatus, Running
from router.settings import PlacementSettings, RouterSettings
from tandem.apps.cli.explain import status_line
from tandem.apps.cli.router_client import EndedStatus, parse_status
from tandem.apps.cli.router_client import RunningStatus as Told
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.kv import chain_names
from tests.worlds.front_stage import Script, Stage, chat_body, on_stage, silent, until
from tests.worlds.router_world import ROOT, Client, World

PAIRED = RouterSettings(placement=PlacementSettings(prefer="disaggregated"))
STEP_S = 0.01


def in_world(
    body: Callable[[World], Awaitable[None]], settings: RouterSettings = PAIRED, workers: str = "p1 d1"
) -> None:
    roles = {"p": "prefill", "d": "decode", "u": "unified"}

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, settings)
        for worker_id in workers.split():
            world.worker(worker_id, roles[worker_id[0]])
        await world.start()
        await body(world)
        await world.stop()

    run(main, limit_s=3000.0)


def begin(world: World, tokens: int = 64, max_tokens: int = 8, n: int = 1) -> tuple[Client, Running]:
    client = Client(world, world.generation(tokens=tokens, max_tokens=max_tokens, n=n))
    return client, world.dispatcher.start(client.generation, client)


def names_of(client: Client) -> tuple[bytes, ...]:
    return chain_names(ROOT.name(), client.generation.prompt, 16)


async def stages_of(client: Client, running: Running) -> list[str]:
    """The stages a request goes through, each once, looking ten times per step."""
    seen: list[str] = []
    while not client.ended.is_set():
        stage = running.standing().stage
        if seen[-1:] != [stage]:
            seen.append(stage)
        await asyncio.sleep(STEP_S / 10)
    return seen


def test_a_request_goes_through_its_stages_in_order() -> None:
    async def body(world: World) -> None:
        client, running = begin(world)
        assert running.standing() == RequestStatus("prefill", "p1", "d1", 0, 1)
        watching = asyncio.ensure_future(stages_of(client, running))
        await asyncio.sleep(world.workers["p1"].prefill_s / 2)
        assert running.standing().stage == "prefill"
        world.index.stored("p1", names_of(client)[:1])
        assert await watching == ["prefill", "transfer", "first-token", "decode"]

    in_world(body)


def test_tokens_are_those_accepted() -> None:
    async def body(world: World) -> None:
        client, running = begin(world, max_tokens=20)
        while len(client.tokens[0]) < 7:
            await asyncio.sleep(STEP_S / 2)
            assert running.standing().tokens == len(client.tokens[0])
        await client.ended.wait()

    in_world(body)


def test_a_prompt_that_is_cached_on_decode_shows_no_transfer() -> None:
    async def body(world: World) -> None:
        client = Client(world, world.generation(tokens=64))
        world.index.stored("d1", names_of(client))
        running = world.dispatcher.start(client.generation, client)
        assert await stages_of(client, running) == ["prefill", "first-token", "decode"]

    in_world(body)


def test_blocks_that_decode_has_already_are_not_waited_for() -> None:
    async def body(world: World) -> None:
        client = Client(world, world.generation(tokens=64))
        world.index.stored("d1", names_of(client)[:2])
        running = world.dispatcher.start(client.generation, client)
        assert running.standing().stage == "prefill"
        world.index.stored("p1", names_of(client)[:2])
        assert running.standing().stage == "prefill", "decode does not need these"
        world.index.stored("p1", names_of(client)[:3])
        assert running.standing().stage == "transfer"
        world.index.removed("p1", names_of(client))
        assert running.standing().stage == "transfer", "a stage never goes back"
        await client.ended.wait()

    in_world(body)


def test_a_request_that_decode_computes_itself_names_no_prefill_worker() -> None:
    async def body(world: World) -> None:
        client, running = begin(world)
        assert running.standing() == RequestStatus("prefill", None, "u1", 0, 1)
        world.index.stored("u1", names_of(client))
        assert await stages_of(client, running) == ["prefill", "decode"]

    in_world(body, workers="u1")


def test_a_request_that_waits_for_a_worker_is_in_the_queue() -> None:
    async def body(world: World) -> None:
        first, _ = begin(world)
        second, running = begin(world)
        assert running.standing() == RequestStatus("queue", None, None, 0, 0)
        await first.ended.wait()
        await second.ended.wait()

    one_place = RouterSettings(placement=PlacementSettings(prefer="disaggregated", sequences_per_worker_max=1))
    in_world(body, one_place)


def test_after_a_loss_the_stages_begin_again_with_what_was_accepted() -> None:
    async def body(world: World) -> None:
        client, running = begin(world, max_tokens=20)
        await until(lambda: len(client.tokens[0]) >= 5)
        lost = running.standing().decode
        assert lost is not None
        world.workers[lost].die()
        await until(lambda: running.standing().decode != lost)
        standing = running.standing()
        assert (standing.attempts, standing.stage) == (2, "prefill")
        assert standing.tokens >= 5
        await client.ended.wait()
        client.check_whole()

    in_world(body, workers="p1 d1 d2")


# ---- several prompts, tenants, the interface ----


def test_of_several_prompts_the_one_that_is_furthest_behind_counts() -> None:
    each = [RequestStatus("decode", "p", "d", 9, 1), RequestStatus("transfer", "p2", "d2", 0, 2)]
    assert furthest_behind(each, 9) == RequestStatus("transfer", "p2", "d2", 9, 2)
    assert furthest_behind([], 0) == RequestStatus("queue", None, None, 0, 0)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    keys = {"sk-a": "a", "sk-b": "b"}
    path.write_bytes(msgspec.json.encode({"salt_key": "0123456789abcdef" * 2, "keys": keys}))
    return path


def test_a_running_request_tells_where_it_is_to_its_tenant_only(key_file: Path) -> None:
    async def test(stage: Stage) -> None:
        client = stage.client()
        headers = {"authorization": "Bearer sk-a", "x-request-id": "mine"}
        asking = asyncio.ensure_future(
            client.ask("POST", "/v1/chat/completions", msgspec.json.encode(chat_body(stream=True)), headers)
        )
        await until(lambda: stage.script.started)
        told = await stage.get("/v1/requests/mine", authorization="Bearer sk-a")
        assert told.status == 200
        assert told.json() == {
            "id": "mine",
            "status": "running",
            "stage": "transfer",
            "prefill": "p1",
            "decode": "d1",
            "tokens": 0,
            "attempts": 1,
        }
        assert parse_status(told.body) == Told("transfer", "p1", "d1", 0, 1)
        assert (await stage.get("/v1/requests/mine", authorization="Bearer sk-b")).status == 404
        client.leave()
        await asking
        ended = await stage.get("/v1/requests/mine", authorization="Bearer sk-a")
        assert ended.json()["status"] == "ended"
        assert isinstance(parse_status(ended.body), EndedStatus)

    on_stage(test, Script(silent), keys=load_keys(key_file))


def test_a_cache_salt_keeps_blocks_apart_within_a_tenant() -> None:
    async def test(stage: Stage) -> None:
        for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "a"}):
            assert (await stage.chat(**salt)).status == 200
        plain, first, second, again = (one.generation.tenant_salt for one in stage.script.started)
        assert len({plain, first, second}) == 3
        assert first == again
        assert (await stage.chat(cache_salt="")).status == 400

    on_stage(test)


@pytest.mark.parametrize(
    ("standing", "line"),
    [
        (RequestStatus("queue", None, None, 0, 0), "stage queue, waiting for a worker, 0 tokens so far"),
        (
            RequestStatus("prefill", None, "d", 0, 1),
            "stage prefill, on d, which computes the prompt itself, 0 tokens so far",
        ),
        (
            RequestStatus("decode", "p", "d", 7, 2),
            "stage decode, prefill on p, decode on d, 7 tokens so far, attempt 2",
        ),
    ],
)
def test_explain_says_where_a_running_request_is(standing: RequestStatus, line: str) -> None:
    assert status_line(standing) == line
