"""Short texts are tokenized in the turn they came in, together, and one that fails or goes away hurts no other."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from router.tokenization.batching import TokenizeBatcher
from router.tokenization.threads import Threaded
from tandem.core.errors import TandemError


async def test_texts_of_one_turn_are_done_one_after_the_other() -> None:
    order: list[str] = []
    turns = TokenizeBatcher()

    async def ask(name: str) -> None:
        order.append(f"asked {name}")
        await turns.run(lambda: order.append(f"done {name}"), 100)
        order.append(f"told {name}")

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(ask(name))
    assert order == [f"{what} {name}" for what in ("asked", "done", "told") for name in "abc"]


async def test_much_text_is_spread_over_turns() -> None:
    turns = TokenizeBatcher()
    seen: list[int] = []
    done: list[int] = []

    async def watch() -> None:
        while len(done) < 12:
            seen.append(len(done))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for number in range(12):
            group.create_task(turns.run(lambda number=number: done.append(number), 4096))  # type: ignore[misc]
        group.create_task(watch())
    assert done == list(range(12))
    assert {4, 8} <= set(seen)


async def test_a_text_that_fails_or_is_not_wanted_any_more_hurts_no_other() -> None:
    turns = TokenizeBatcher()

    def refuse() -> int:
        raise TandemError("invalid_request", "no such role")

    def unwanted() -> int:
        raise AssertionError("nobody waits for this")

    first = asyncio.create_task(turns.run(refuse, 1))
    second = asyncio.create_task(turns.run(unwanted, 1))
    third = asyncio.create_task(turns.run(lambda: 3, 1))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(TandemError, match="no such role"):
        await first
    assert await third == 3
    assert second.cancelled()


async def test_long_texts_leave_the_loop_alone() -> None:
    tokenizing = Threaded(inline_characters=10)
    assert await tokenizing.run(lambda: "short", 5, 60.0) == "short"
    assert await tokenizing.run(lambda: "long", 50, 60.0) == "long"
    tokenizing.close()


async def test_a_burst_of_long_texts_waits_for_its_turn() -> None:
    tokenizing = Threaded(inline_characters=10, queue_s=100.0)
    texts = await asyncio.gather(*[tokenizing.run(partial(str, text), 50, 100.0) for text in range(1000)])
    assert texts == list(map(str, range(1000)))
    tokenizing.close()


@asynccontextmanager
async def occupied() -> AsyncIterator[Threaded]:
    """One thread, which works for somebody else; in the end all that was left to it has been done."""
    tokenizing, begun, going = Threaded(10, 1, 100.0), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> bool:
        loop.call_soon_threadsafe(begun.set)
        return going.wait(100.0)

    first = asyncio.create_task(tokenizing.run(work, 50, 100.0))
    try:
        await begun.wait()
        yield tokenizing
    finally:
        going.set()
        await first
        await tokenizing.run(lambda: "whatever was left came before this", 50, 30.0)
        tokenizing.close()


async def test_a_long_text_that_gets_no_turn_in_time_is_refused_and_never_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = list[int]()
    async with occupied() as tokenizing:
        with monkeypatch.context() as short:
            # Of this one alone: on a busy machine the others may wait for longer.
            short.setattr(tokenizing, "_queue_s", 0.05)
            with pytest.raises(TandemError) as refused:
                await tokenizing.run(lambda: done.append(1), 50, 30.0)
    assert (refused.value.code, refused.value.retry_after_s) == ("queue_full", 1.0)
    async with occupied() as tokenizing:
        with pytest.raises(TandemError) as late:
            await tokenizing.run(lambda: done.append(2), 50, 0.01)
    assert late.value.code == "deadline_exceeded"
    assert not done


async def test_a_text_whose_client_left_is_not_begun() -> None:
    done = list[int]()
    async with occupied() as tokenizing:
        asked = asyncio.create_task(tokenizing.run(lambda: done.append(1), 50, 30.0))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    assert not done


async def test_what_keeps_coming_is_waited_for_but_not_for_long() -> None:
    turns = TokenizeBatcher()
    done: list[int] = []
    together: list[int] = []

    async def one(number: int) -> None:
        await turns.run(lambda: done.append(number), 100)

    async with asyncio.TaskGroup() as group:
        for number in range(40):
            group.create_task(one(number))
            await asyncio.sleep(0)
            if len(done) != sum(together):
                together.append(len(done) - sum(together))
    assert done == list(range(40))
    assert 3 <= together[0] <= 20
    assert max(together) < 24
