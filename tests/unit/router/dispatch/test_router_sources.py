"""Where placement names other holders of a prompt's blocks, whoever computes it gets the right to ask them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kv_transfer.tickets import check
from kv_transfer.transport.protocol import is_reuse
from router.settings import PlacementSettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.kv import chain_names, pack_tokens
from tandem.core.messages import Load, Source, Submit
from tests.worlds.router_world import KEYRING, LAYOUT, ROOT, ScriptedWorker, World

BUSY = Load(8, 8, 200_000, 1000, 0, 0, 0.01, 10_000.0, 1_000.0, 0)
IDLE = Load(0, 0, 0, 1000, 0, 0, 0.01, 10_000.0, 1_000.0, 0)
TOKENS = 1600


def scenario(body: Callable[[World], Awaitable[None]], workers: str, prefer: str) -> None:
    roles = {"p": "prefill", "d": "decode", "u": "unified"}

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, RouterSettings(placement=PlacementSettings(prefer=prefer)))
        prompt = pack_tokens(tuple(range(1, 1 + TOKENS)))
        for worker_id in workers.split():
            world.worker(worker_id, roles[worker_id[0]]).load = IDLE
        holder = world.workers[workers.split()[0]]
        holder.names, holder.load = chain_names(ROOT.name(), prompt, LAYOUT.block_tokens), BUSY
        await world.start()
        await body(world)
        await world.stop()

    run(main, limit_s=3000.0)


async def submitted(world: World) -> None:
    """One request whose prompt the first worker has, from start to end."""
    client = world.ask(tokens=TOKENS)
    await asyncio.wait_for(client.ended.wait(), 1000.0)
    client.check_whole()


def only(worker: ScriptedWorker) -> Submit:
    (submit,) = worker.submits
    return submit


def right(world: World, source: Source, holder: str, receiver: str) -> None:
    """The ticket lets this receiver ask this holder, under this lease."""
    assert (source.holder, source.kind) == (holder, "peer")
    assert source.addresses == (f"mem://{holder}",)
    assert is_reuse(source.lease_id)
    claims = check(
        KEYRING,
        source.ticket,
        holder_epoch=world.workers[holder].epoch,
        lease_id=source.lease_id,
        receiver_epoch=world.workers[receiver].epoch,
        wall=world.clock.wall(),
    )
    assert claims.tenant == "t"


def test_a_worker_that_computes_alone_is_told_who_has_what() -> None:
    async def body(world: World) -> None:
        await submitted(world)
        (source,) = only(world.workers["u2"]).sources
        right(world, source, "u1", "u2")
        assert source.blocks == TOKENS // LAYOUT.block_tokens

    scenario(body, "u1 u2", "auto")


def test_of_a_hand_off_the_prefill_worker_is_told() -> None:
    async def body(world: World) -> None:
        await submitted(world)
        (source,) = only(world.workers["p2"]).sources
        right(world, source, "p1", "p2")
        assert only(world.workers["d1"]).sources == ()

    scenario(body, "p1 p2 d1", "disaggregated")


def test_who_has_the_blocks_itself_is_told_of_nobody() -> None:
    async def body(world: World) -> None:
        await submitted(world)
        assert only(world.workers["u1"]).sources == ()

    scenario(body, "u1", "auto")


def test_a_holder_that_has_gone_since_is_left_out_and_the_request_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World) -> None:
        monkeypatch.setattr(world.dispatcher, "peer", lambda *_: None)
        await submitted(world)
        assert only(world.workers["u2"]).sources == ()

    scenario(body, "u1 u2", "auto")
