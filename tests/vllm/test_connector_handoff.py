"""Prefill on one vLLM engine, decode on another, through their stages: the tokens of one engine, whatever happens."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

import pytest

pytest.importorskip("vllm")

import pytest_asyncio

from kv_transfer.export import Exporter
from kv_transfer.fetch import Fetcher
from kv_transfer.transport.memory import MemoryNetwork, MemoryTransport
from tandem.core.deadlines import Deadlines
from tandem.core.kv import Handle, chain_names, pack_tokens
from tandem.core.messages import RemoteKv
from tandem.core.metrics import NullMeter
from tandem.engine.digest import unbind
from tandem.engine.protocol import FirstTokens
from tandem.process.system import SystemClock
from tests.contract.block_space import KEYRING, ticket
from tests.vllm.staged_engine import ROOT, StagedEngine, hand_over, staged_engine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(420)]
Pair = tuple[StagedEngine, StagedEngine]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[Pair]:
    """A prefill engine, and a decode engine whose cache is small enough to preempt."""
    async with (
        staged_engine() as prefill,
        staged_engine(epoch=4, num_gpu_blocks_override=25, max_model_len=768) as decode,
    ):
        yield prefill, decode


def prompt(length: int, seed: int) -> tuple[int, ...]:
    return tuple(7 + (at * (13 + seed) + 31 * seed) % 1400 for at in range(length))


async def handed_over(pair: Pair, tokens: Sequence[int], count: int) -> tuple[int, tuple[int, ...]]:
    """Prefill, hand over and decode; gives the decode work and all tokens."""
    source, target = pair
    received = target.open(tokens, "decode")
    decoding = asyncio.create_task(target.generate(tokens, count, received))
    work, first = await source.prefill(tokens)
    await hand_over(source, work, target, received)
    source.stage.release(f"lease-{work}")
    target.stage.provide_first(received, 0, first)
    got = await decoding
    assert got[0] == first
    return received, got


@pytest.mark.parametrize("length", [1, 31, 32, 33, 63, 64, 65, 257, 500])
async def test_prefill_and_decode_apart_give_the_tokens_of_one_engine(pair: Pair, length: int) -> None:
    source, target = pair
    tokens = prompt(length, length)
    wanted = await source.generate(tokens, 12)
    received, got = await handed_over(pair, tokens, 12)
    assert got == wanted
    sources = target.stage.sources(received)
    assert (sources.fetched, sources.cached, sources.loaded) == (length, 0, -(-length // 32)), "nothing was computed"
    target.stage.close(received)
    await source.settled()
    await target.settled()


async def test_prefixes_that_are_here_are_neither_computed_nor_fetched(pair: Pair) -> None:
    source, target = pair
    short, long = prompt(100, 70), (*prompt(100, 70), *prompt(90, 71))
    for tokens, fetched, cached in ((short, 100, 0), (long, 94, 96), (long, 30, 160)):
        wanted = await source.generate(tokens, 8)
        received, got = await handed_over(pair, tokens, 8)
        assert got == wanted
        sources = target.stage.sources(received)
        assert (sources.fetched, sources.cached) == (fetched, cached)
        target.stage.close(received)
    await source.settled()
    await target.settled()


async def test_the_second_turn_finds_the_answer_of_the_first_on_the_other_worker(pair: Pair) -> None:
    source, target = pair
    question = prompt(70, 61)
    received, answer = await handed_over(pair, question, 60)
    target.stage.close(received)
    said = (*question, *answer)
    names = chain_names(ROOT, pack_tokens(said), 32)
    # The last token was drawn and not computed; its block is not whole in any case.
    await target.until(lambda: all(target.stage.books.pool.find(name) is not None for name in names))
    assert len(names) == len(said) // 32 == 4
    assert target.names.keys() >= set(names), "the index hears of them"

    turn = (*said, *prompt(40, 62))
    wanted = await source.generate(turn, 8)
    received = target.open(turn, "decode")
    decoding = asyncio.create_task(target.generate(turn, 8, received))
    work = source.open(turn, "prefill")
    source.stage.bring(work, len(names))
    await source.until(lambda: work in source.fetches)
    for each in source.fetches[work].targets:
        handle = target.stage.hold(names[each.index])
        assert handle is not None
        source.stage.memory.block(each.slot)[:] = target.stage.memory.block(handle.slot)
        words = unbind(handle.digests, target.stage.epoch, handle.name, handle.generation)
        source.stage.landed(work, each.index, words)
        target.stage.unhold(handle.slot)
    source.stage.fetch_ended(work, None)
    (first,) = await source.generate(turn, 1, work)
    source.stage.first_sampled(work, FirstTokens(((0, first, None),)))
    sources = source.stage.sources(work)
    here = sources.staged + sources.fetched
    assert here == 32 * len(names), "the answer's blocks among them, which this engine never computed"
    assert sources.loaded + sources.cached // 32 == len(names)
    source.stage.close(work)
    await hand_over(source, work, target, received)
    source.stage.release(f"lease-{work}")
    target.stage.provide_first(received, 0, first)
    assert await decoding == wanted
    target.stage.close(received)
    await source.settled()
    await target.settled()


@pytest.mark.parametrize("landing", [(), (0,), (0, 1, 2), (1, 2), (0, 1, 2, 3)])
async def test_what_is_not_fetched_is_computed_and_nothing_else(pair: Pair, landing: tuple[int, ...]) -> None:
    source, target = pair
    tokens = prompt(150, 80 + len(landing) + sum(landing))
    wanted = await source.generate(tokens, 8)
    received = target.open(tokens, "decode")
    decoding = asyncio.create_task(target.generate(tokens, 8, received))
    work, first = await source.prefill(tokens)
    await hand_over(source, work, target, received, landing)
    target.stage.provide_first(received, 0, first)
    assert await decoding == wanted
    assert target.stage.sources(received).loaded == len(landing)
    target.stage.close(received)
    await source.settled()
    await target.settled()


async def test_when_prefill_is_lost_the_first_position_is_drawn_here(pair: Pair) -> None:
    source, target = pair
    tokens = prompt(90, 91)
    wanted = await source.generate(tokens, 8)
    received = target.open(tokens, "decode")
    decoding = asyncio.create_task(target.generate(tokens, 8, received))
    await target.until(lambda: received in target.fetches)
    target.stage.sample_first(received)
    target.stage.fetch_ended(received, "prefill is lost")
    assert await decoding == wanted
    target.stage.close(received)
    await target.settled()


async def test_a_corrupted_slot_is_refused_and_recomputed_exactly(pair: Pair) -> None:
    source, target = pair
    tokens = prompt(150, 95)
    wanted = await source.generate(tokens, 8)
    clock, deadlines, fabric = SystemClock(), Deadlines(), MemoryNetwork()
    transport = MemoryTransport(fabric, "p")
    address = await transport.serve(Exporter(source.stage, KEYRING, clock, deadlines))
    fetcher = Fetcher(target.stage, (MemoryTransport(fabric, "d"),), clock, deadlines, NullMeter())
    work, first = await source.prefill(tokens)
    lease = f"lease-{work}"
    name = list(source.stage.books.leases._leases[lease].exports)[2]
    await source.until(lambda: isinstance(source.stage.look(lease, name), Handle))
    handle = source.stage.look(lease, name)
    assert isinstance(handle, Handle)
    source.stage.memory.block(handle.slot)[17] ^= 1
    received = target.open(tokens, "decode")
    decoding = asyncio.create_task(target.generate(tokens, 8, received))
    await target.until(lambda: received in target.fetches)
    signed = ticket(3, lease, 4, clock.wall() + 60)
    report = await fetcher.fetch(target.fetches[received], RemoteKv("p", 3, (address,), lease, signed))
    assert report.reason is not None
    assert "kv_corrupt" in report.reason
    target.stage.provide_first(received, 0, first)
    assert await decoding == wanted
    assert target.stage.sources(received).loaded == 2
    assert name not in source.stage.snapshot(), "it is good for nobody any more"
    target.stage.close(received)
    await transport.close()
    await source.settled()
    await target.settled()


async def test_an_abort_while_loading_frees_everything(pair: Pair) -> None:
    source, target = pair
    tokens = prompt(200, 99)
    for landing in ((), (0, 1)):
        received = target.open(tokens, "decode")
        decoding = asyncio.create_task(target.generate(tokens, 8, received))
        work, first = await source.prefill(tokens)
        await target.until(lambda received=received: received in target.fetches)
        await asyncio.sleep(0.05)
        if landing:
            await hand_over(source, work, target, received, landing)
        decoding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await decoding
        target.stage.close(received)
        if not landing:
            target.stage.fetch_ended(received, "cancelled")
        target.stage.provide_first(received, 0, first)
        await source.settled()
        await target.settled()
    wanted = await source.generate(tokens, 8)
    received, got = await handed_over(pair, tokens, 8)
    assert got == wanted
    target.stage.close(received)


async def test_many_on_a_small_cache_are_preempted_and_all_get_their_tokens(pair: Pair) -> None:
    source, target = pair
    prompts = [prompt(60 + 10 * number, 110 + number) for number in range(6)]
    wanted = [await source.generate(tokens, 150) for tokens in prompts]
    before = target.preempted
    done = await asyncio.gather(*(handed_over(pair, tokens, 150) for tokens in prompts))
    assert [tokens for _, tokens in done] == wanted
    assert target.preempted > before
    for received, _ in done:
        target.stage.close(received)
    await source.settled()
    await target.settled()


async def test_blocks_in_the_stage_serve_works_that_are_not_handed_over(pair: Pair) -> None:
    source, target = pair
    tokens = prompt(100, 130)
    kept = source.open(tokens, "local", save=True)
    wanted = await source.generate(tokens, 8, kept)
    source.stage.close(kept)
    await source.until(lambda: not source.stage.books._works)
    received, got = await handed_over(pair, tokens, 8)
    assert got == wanted
    target.stage.close(received)
    again = target.open(tokens, "local")
    other_salt = await target.generate(tokens, 8, again, salt="another")
    assert other_salt == wanted
    assert (target.stage.sources(again).loaded, target.stage.sources(again).cached) == (3, 0)
    target.stage.close(again)
    await source.settled()
    await target.settled()


async def test_waiting_costs_little_and_being_idle_nothing(pair: Pair) -> None:
    _, target = pair
    tokens = prompt(64, 140)
    received = target.open(tokens, "decode")
    decoding = asyncio.create_task(target.generate(tokens, 4, received))
    await target.until(lambda: received in target.fetches)
    await asyncio.sleep(0.3)
    waited = await _share_of_a_core(target, 2.0)
    target.stage.fetch_ended(received, "nobody has them")
    target.stage.sample_first(received)
    await decoding
    target.stage.close(received)
    await target.settled()
    await asyncio.sleep(0.3)
    idle = await _share_of_a_core(target, 2.0)
    assert waited < 0.5, f"{waited:.2f} of a core while a load is awaited"
    assert idle < 0.05, f"{idle:.2f} of a core while idle"


async def _share_of_a_core(engine: StagedEngine, seconds: float) -> float:
    before, began = engine.ranks_cpu_s(), time.monotonic()
    await asyncio.sleep(seconds)
    return (engine.ranks_cpu_s() - before) / (time.monotonic() - began)
