"""Polling over real sockets: routers that answer, refuse, break off, hang, or send too much."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from control_plane.reports import http_get
from control_plane.reports.aggregator import ReportAggregate
from control_plane.reports.http_get import Endpoint, get
from control_plane.reports.poller import Poller
from control_plane.reports.wire import read_report
from router.dispatch.serving_status import RevisionListing, ServiceListing, ServingStatus
from router.fleet.listing import LoadListing, WorkerListing
from tandem.core.errors import TandemError
from tandem.process.system import SystemClock

_HANGS_S = 60.0
WORKER = WorkerListing(
    id="a-decode-1-x",
    object="worker",
    role="decode",
    state="ready",
    model="m",
    revision="v1",
    epoch="00",
    address="10.0.0.1:7400",
    canary="self",
    transports=(),
    problems=(),
    reason="",
    pairs=(),
    service="llm/a",
    load=LoadListing(
        running=3,
        waiting=1,
        queued_prompt_tokens=50,
        in_flight_sequences=2,
        blocks=100,
        blocks_free=60,
        kv_used=0.4,
        kv_exported=0.0,
        step_s=0.02,
        prefill_tokens_per_s=5000.0,
        decode_tokens_per_s=150.0,
        prefill_token_s=0.0,
        prefill_position_s=0.0,
        preemptions=0,
    ),
    ready_for_s=75.0,
)


def answers(queued: int) -> dict[str, bytes]:
    """What a router says, as its own code writes it."""
    revision = RevisionListing(
        service="llm/a",
        namespace="llm",
        model="m",
        revision="v1",
        weight=100,
        requests=10,
        errors=1,
        slo_misses=2,
        in_flight_requests=3,
    )
    service = ServiceListing(
        service="llm/a",
        namespace="llm",
        model="m",
        queued_requests=queued,
        queued_prompt_tokens=100 * queued,
        oldest_wait_s=0.0,
        in_flight_requests=3,
        in_flight_prompt_tokens=50,
        requests=13,
        prompt_tokens=1300,
        output_tokens=900,
        unplaced=0,
    )
    standings = ServingStatus("list", f"i{queued}", (revision,), (service,))
    return {
        "/v1/workers": msgspec.json.encode({"object": "list", "data": [WORKER]}),
        "/v1/revisions": msgspec.json.encode(standings),
    }


@asynccontextmanager
async def serving(bodies: dict[str, bytes], tail: str = "", head: str = "HTTP/1.1 200 OK") -> AsyncIterator[Endpoint]:
    """A server of fixed answers; `tail` may be `hang`, `break` or `chunked`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = (await reader.readuntil(b"\r\n\r\n")).decode()
            body = bodies.get(request.split()[1].partition("?")[0], b"{}")
            if tail == "chunked":
                writer.write(f"{head}\r\ntransfer-encoding: chunked\r\n\r\n{len(body):x}\r\n".encode())
                writer.write(body + b"\r\n0\r\n\r\n")
            else:
                writer.write(f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode())
                writer.write(body[: len(body) // 2] if tail else body)
            if tail == "hang":
                await asyncio.sleep(_HANGS_S)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])


async def test_routers_are_asked_at_once_and_folded() -> None:
    async with (
        serving(answers(2)) as one,
        serving(answers(5), "chunked") as two,
        serving(answers(9), "hang") as three,
    ):
        routers = {"r0": one, "r1": two}
        books = await Poller(lambda: routers, SystemClock(), timeout_s=60.0).poll()
        assert books.complete
        demand = books.demand("llm/a")
        assert (demand.queued_requests, demand.queued_prompt_tokens, demand.in_flight_requests) == (7, 700, 6)
        assert (demand.arrived_requests, demand.output_tokens, demand.finished_requests) == (26, 1800, 20)
        assert books.health("llm/a", "v1").errors == 2
        load = books.workers()["a-decode-1-x"].load
        assert load is not None
        assert (load.running, load.kv_used, load.step_s) == (3, 0.4, 0.02)
        routers["r2"] = three
        async with asyncio.timeout(_HANGS_S / 2):
            books = await Poller(lambda: routers, SystemClock(), timeout_s=3.0).poll()
        assert not books.complete
        assert books.demand("llm/a").queued_requests == 7


@pytest.mark.parametrize(
    ("tail", "head", "code"),
    [
        ("break", "HTTP/1.1 200 OK", "link_lost"),
        ("hang", "HTTP/1.1 200 OK", "link_lost"),
        ("", "HTTP/1.1 401 Unauthorized", "not_allowed"),
        ("", "HTTP/1.1 500 Oh", "protocol_mismatch"),
        ("", "garbage", "link_lost"),
    ],
)
async def test_what_goes_wrong_is_typed(tail: str, head: str, code: str) -> None:
    async with serving(answers(1), tail, head) as place:
        with pytest.raises(TandemError) as raised:
            await get(place, "/v1/workers", 0.3 if tail == "hang" else 60.0)
    assert raised.value.code == code


async def test_nobody_there_and_too_much_are_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(answers(1)) as place:
        monkeypatch.setattr(http_get, "BYTES_MAX", 100)
        with pytest.raises(TandemError, match="more than 100"):
            await get(place, "/v1/workers", 60.0)
    with pytest.raises(TandemError) as raised:
        await get(place, "/v1/workers", 60.0)
    assert raised.value.code == "link_lost"


async def test_a_round_of_nothing_is_a_round() -> None:
    books = await Poller(dict, SystemClock()).poll()
    assert books == ReportAggregate(at=books.at)
    assert not books.complete


def test_places_and_answers_that_are_none_are_refused() -> None:
    assert Endpoint.parse("https://[::1]:8000") == Endpoint("::1", 8000, secure=True)
    assert Endpoint("::1", 8000).authority == "[::1]:8000"
    for url in ("10.0.0.1:8000", "http://host", "ftp://host:1", "http://host:99999"):
        with pytest.raises(TandemError) as raised:
            Endpoint.parse(url)
        assert raised.value.code == "bad_setting"
    with pytest.raises(TandemError) as raised:
        read_report(b"[]", b"{}")
    assert raised.value.code == "protocol_mismatch"
