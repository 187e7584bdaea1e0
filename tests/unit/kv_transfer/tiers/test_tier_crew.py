"""The threads that do what must not hold up the event loop: how many there are, whose turn it is, when they end."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from kv_transfer.tiers.thread_pool import ThreadPool
from tests.worlds.tier_stage import until


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


async def test_threads_that_have_nothing_to_do_end_with_their_crew() -> None:
    """Tiers are opened anew with every engine: threads that stayed would become more and more."""
    crew = ThreadPool(2, "crew-idle")
    lane = crew.lane()
    assert await asyncio.gather(*(lane.submit(lambda number=number: number) for number in range(5))) == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert len(threads("crew-idle")) == 2, "as many as were asked for, and no more"
    await until(lambda: crew.busy_for_s() == 0.0)
    await crew.close(10.0)
    assert threads("crew-idle") == []


async def test_what_was_handed_in_before_the_end_is_still_done() -> None:
    """Such as removing a file that nothing was written to, which is handed in last."""
    crew, going, done = ThreadPool(1, "crew-end"), threading.Event(), list[int]()
    lane = crew.lane()
    lane.submit(lambda: going.wait(30))
    ended = [lane.submit(lambda number=number: done.append(number)) for number in range(3)]
    closing = asyncio.ensure_future(crew.close(10.0))
    await asyncio.sleep(0)
    going.set()
    await closing
    assert done == [0, 1, 2]
    await asyncio.gather(*ended)
    assert threads("crew-end") == []


async def test_a_thread_whose_disk_does_not_answer_holds_up_no_end() -> None:
    """A worker that shuts down does not wait for a disk for ever, and says meanwhile how long it has not answered."""
    crew, going = ThreadPool(1, "crew-stuck"), threading.Event()
    crew.lane().submit(lambda: going.wait(30))
    await until(lambda: crew.busy_for_s() > 0.0)
    await crew.close(0.0)
    assert len(threads("crew-stuck")) == 1, "it is left behind"
    going.set()


async def test_a_long_restore_does_not_keep_a_short_one_waiting() -> None:
    crew, going, order = ThreadPool(1, "crew-turns"), threading.Event(), list[str]()

    def noting(what: str) -> Callable[[], None]:
        return lambda: order.append(what)

    crew.lane().submit(lambda: going.wait(30))
    long, short = crew.lane(), crew.lane()
    ended = [long.submit(noting(f"long {number}")) for number in range(3)]
    ended += [short.submit(noting("short"))]
    going.set()
    await asyncio.gather(*ended)
    assert order == ["long 0", "short", "long 1", "long 2"]
    await crew.close(10.0)


async def test_what_was_given_up_before_its_turn_is_never_done_and_others_are() -> None:
    crew, going, order = ThreadPool(1, "crew-given-up"), threading.Event(), list[str]()
    crew.lane().submit(lambda: going.wait(30))
    given_up, other = crew.lane(), crew.lane()
    futures = [given_up.submit(lambda: order.append("given up")) for _ in range(2)]
    kept = other.submit(lambda: order.append("other"))
    given_up.clear()
    given_up.clear()
    assert all(future.cancelled() for future in futures)
    again = given_up.submit(lambda: order.append("again"))
    going.set()
    await asyncio.gather(kept, again)
    assert order == ["other", "again"]
    await crew.close(10.0)


async def test_the_end_of_a_job_that_nobody_waits_for_any_more_is_no_error() -> None:
    """A reader that has left is no failure an operator should see in the log."""
    told = list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    crew, going = ThreadPool(1, "crew-left"), threading.Event()
    lane = crew.lane()
    left = lane.submit(lambda: going.wait(30))
    await until(lambda: crew.busy_for_s() > 0.0)
    left.cancel()
    going.set()
    await lane.submit(lambda: None)
    with pytest.raises(OSError, match="it failed"):
        await lane.submit(_fail)
    await crew.close(10.0)
    assert told == []


def _fail() -> None:
    raise OSError("it failed")
