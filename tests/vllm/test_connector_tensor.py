"""Hand-offs between engines that are sharded differently: slots are the same bytes for all of them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("vllm")

import pytest_asyncio

from tests.vllm.staged_engine import StagedEngine, hand_over, staged_engine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]
Pair = tuple[StagedEngine, StagedEngine]
OTHER_ROOT = bytes(range(16, 32))
"""Under another root the same engine has nothing of a prompt: it can hand over to itself."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[Pair]:
    """One engine of one rank and one of two."""
    async with staged_engine() as single, staged_engine(epoch=4, tensor=2) as double:
        yield single, double


def prompt(length: int, seed: int) -> tuple[int, ...]:
    return tuple(7 + (at * (17 + seed) + 29 * seed) % 1400 for at in range(length))


async def handed_over(
    source: StagedEngine, target: StagedEngine, tokens: tuple[int, ...], staged: int = 0
) -> tuple[int, ...]:
    """Prefill under the usual root, decode under the other one, which finds `staged` tokens in its stage."""
    received = target.open(tokens, "decode", root=OTHER_ROOT)
    decoding = asyncio.create_task(target.generate(tokens, 6, received))
    work, first = await source.prefill(tokens)
    await hand_over(source, work, target, received)
    target.stage.provide_first(received, 0, first)
    got = await decoding
    sources = target.stage.sources(received)
    assert (sources.fetched, sources.staged, sources.cached) == (len(tokens) - staged, staged, 0)
    assert sources.loaded == -(-len(tokens) // 32)
    target.stage.close(received)
    source.stage.release(f"lease-{work}")
    return got


@pytest.mark.parametrize("length", [33, 64, 150])
@pytest.mark.parametrize(("source", "target"), [(1, 1), (1, 0), (0, 1)])
async def test_ranks_hand_over_to_any_other_number_of_ranks(
    pair: Pair, length: int, source: int, target: int
) -> None:
    tokens = prompt(length, length + 10 * source + target)
    wanted = await pair[target].generate(tokens, 6)
    got = await handed_over(pair[source], pair[target], tokens)
    assert got == wanted
    for engine in pair:
        await engine.settled()


async def test_an_abort_while_both_ranks_load_frees_everything(pair: Pair) -> None:
    single, double = pair
    tokens = prompt(100, 77)
    received = double.open(tokens, "decode", root=OTHER_ROOT)
    decoding = asyncio.create_task(double.generate(tokens, 6, received))
    work, first = await single.prefill(tokens)
    await hand_over(single, work, double, received, (0, 1))
    decoding.cancel()
    await asyncio.wait((decoding,))
    double.stage.close(received)
    double.stage.provide_first(received, 0, first)
    for engine in pair:
        await engine.settled()
    wanted = await single.generate(tokens, 6)
    assert await handed_over(single, double, tokens, staged=64) == wanted


async def test_a_killed_rank_is_told_of_at_once(pair: Pair) -> None:
    _, double = pair
    os.kill(double.stage._hellos[1].pid, signal.SIGKILL)
    await double.until(lambda: double.lost)
    assert double.lost[0].startswith("rank 1 of 2 of the engine (process ")
