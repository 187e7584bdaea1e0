"""Resumable streams on real processes: a router is killed in the middle of a stream, and its client comes back."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.worlds.processes import Heard, Running, Site, begun, site, url_of

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="worker processes share memory over Unix sockets"),
]

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "a lantern " * 20}]
ASKED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": MESSAGES, "max_tokens": 90, "stream_options": {"include_usage": True}}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 60, "n": 2, "logprobs": True, "top_logprobs": 2}),
    (TEXT, {"prompt": "the fox and the " * 12, "max_tokens": 90, "logprobs": 1, "ignore_eos": True}),
    (TEXT, {"prompt": "once upon a time " * 12, "max_tokens": 90, "stop": ["zz", "ba"], "min_tokens": 40}),
]


LONG = {"prompt": "the fox " * 30, "max_tokens": 800, "ignore_eos": True}
LEASE_S = 5.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[Site]:
    """The same workers for all tests. Unix socket names are bounded, so the directory has a short name."""
    with tempfile.TemporaryDirectory(prefix="tandem-resume-") as path:
        async with site(Path(path), lease_s=LEASE_S) as running:
            yield running


async def test_a_killed_routers_streams_go_on_over_another_router_and_are_equal(place: Site) -> None:
    first, second = await asyncio.gather(place.router(), place.router())
    whole = await asyncio.gather(*(place.ask(url_of(second), path, body) for path, body in ASKED))
    asked = [place.ask(url_of(first), path, body, until=8 + number) for number, (path, body) in enumerate(ASKED)]
    heard = await asyncio.gather(*asked)
    await first.end()
    assert not any(one.done for one in heard)
    assert await asyncio.gather(*(place.go_on(url_of(second), one) for one in heard)) == [200] * len(ASKED)
    assert [one.answer() for one in heard] == [one.answer() for one in whole]
    await place.all_free(within_s=60.0)
    await second.end()


async def test_a_router_that_starts_after_the_only_one_died_goes_on() -> None:
    """The lease outlasts the start of a router on a machine that is busy."""
    path, body = ASKED[0]
    with tempfile.TemporaryDirectory(prefix="tandem-resume-") as folder:
        async with site(Path(folder), lease_s=60.0) as place:
            router = await place.router()
            whole = await place.ask(url_of(router), path, body)
            heard = await place.ask(url_of(router), path, body, until=12)
            _, router = await asyncio.gather(router.end(), place.router())
            others, unknown = replace(heard), Heard(request_id="chatcmpl-" + "0" * 24, last_id="3")
            assert await place.go_on(url_of(router), others, key="key-two") == 404
            assert await place.go_on(url_of(router), unknown) == 404
            assert without_id(others) == without_id(unknown)
            assert await place.go_on(url_of(router), heard) == 200
            assert heard.answer() == whole.answer()


async def test_nobody_comes_back_and_everything_is_free_when_the_lease_ends(place: Site) -> None:
    router, other = await asyncio.gather(place.router(), place.router())
    heard = await place.ask(url_of(router), TEXT, LONG, until=5)
    await router.end()
    assert await place.blocks_in_use()
    await place.all_free(within_s=60.0)
    assert await place.go_on(url_of(other), heard) == 404
    await other.end()


async def test_a_client_comes_back_to_its_router_and_its_old_connection_ends(place: Site) -> None:
    path, body = ASKED[0]
    router = await place.router()
    url = url_of(router)
    whole = await place.ask(url, path, body)
    heard = await place.ask(url, path, body, until=10)
    assert await place.go_on(url, heard) == 200
    assert heard.answer() == whole.answer()
    again = Heard(request_id=heard.request_id)
    assert await place.go_on(url, again) == 200
    assert again.answer() == whole.answer()
    for event_id in ("4000", "3.3", "three"):
        assert await place.go_on(url, Heard(heard.request_id, event_id)) == 400
    name = "asked-for-long"
    old_heard = Heard()
    old = asyncio.create_task(place.ask(url, TEXT, LONG, named=name, heard=old_heard))
    await begun(old_heard)
    newer = Heard(name)
    assert await place.go_on(url, newer, until=3) == 200
    assert (await old).error["code"] == "taken_over"
    assert newer.error is None
    await place.all_free(within_s=60.0)
    assert await place.go_on(url, Heard(name)) == 404
    await router.end()


async def test_a_router_that_stops_in_order_leaves_its_streams_to_others(place: Site) -> None:
    path, body = ASKED[2][0], {**ASKED[2][1], "max_tokens": 300}
    first, second = await asyncio.gather(place.router("--core.deadlines.drain_s", "0.2"), place.router())
    whole = await place.ask(url_of(second), path, body)
    heard = Heard()
    _, stopped = await asyncio.gather(
        place.ask(url_of(first), path, body, heard=heard), stopped_when_begun(first, heard)
    )
    assert stopped == 0
    assert heard.error["code"] == "draining"
    assert await place.go_on(url_of(second), heard) == 200
    assert heard.answer() == whole.answer()
    await second.end()


async def stopped_when_begun(router: Running, heard: Heard) -> int | None:
    """Stop a router in order in the middle of a stream; gives its exit status."""
    await begun(heard)
    await router.end(signal.SIGTERM)
    return router.process.returncode


def without_id(heard: Heard) -> dict[str, Any]:
    """The error without the id that the client itself has given."""
    return {**heard.error, "message": heard.error["message"].replace(heard.request_id, "")}
