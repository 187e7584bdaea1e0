"""`tandem explain fleet`: the split in force at a glance, and the same as JSON."""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from router.fleet.split_listing import FleetOutlook, SplitOptionListing
from tandem.apps.cli.explain import main
from tandem.apps.cli.fleet_summary import NONE, duration, in_force, render_split
from tandem.core.errors import TandemError

CHAT = FleetOutlook(
    service="local/chat",
    model="chat",
    prefills=("auto-2",),
    workers=("auto-0", "auto-1", "auto-2", "auto-3"),
    itl_ms=20.0,
    why="1 of 4 is expected to hold the SLO for 97.1 %, 0 of 4 for 81.0 %",
    since_s=200.4,
    decides="router-a",
    decides_here=True,
    moves=3,
    forecast_error=0.014,
    outlooks=(
        SplitOptionListing(1, 20.0, 0.971, 3210.4, 0.75),
        SplitOptionListing(2, 20.0, 0.93, 3100.0, 0.75),
        SplitOptionListing(0, 25.0, 0.81, 2900.0, 0.75),
        SplitOptionListing(0, None, 0.64, 2950.0, 0.75),
    ),
    objective={"ttft_s": 2.0, "tpot_s": 0.025},
)
UNDECIDED = FleetOutlook(
    "local/new", "new", (), ("w",), None, "nothing was seen yet", 4.0, "", False, 0, None, (), {}
)


def text_of(outlook: FleetOutlook, width: int = 100) -> str:
    shown = io.StringIO()
    Console(width=width, file=shown).print(render_split(outlook))
    return shown.getvalue()


def test_the_split_is_readable_at_a_glance() -> None:
    lines = text_of(CHAT).splitlines()
    assert lines[0].rstrip() == "local/chat: 1 of 4 workers takes prompts for the others"
    text = "\n".join(lines)
    for figure in (
        "auto-2",
        "auto-0, auto-1, auto-3",
        "TTFT ≤ 2 s, TPOT ≤ 0.025 s",
        "≤ 20 ms",
        CHAT.why,
        "3 min 20 s, 3 moves of workers so far",
        "router-a, the router that was asked",
        "1.4 points off on average",
    ):
        assert figure in text, figure
    (best,) = (line for line in lines if "in force" in line)
    assert best.split() == [
        "1",
        "of",
        "4",
        "take",
        "prompts",
        "≤",
        "20",
        "ms",
        "97.1%",
        "75.0%",
        "3,210",
        "in",
        "force",
    ]
    assert [line.split()[-3:] for line in lines[-3:]] == [
        ["93.0%", "75.0%", "3,100"],
        ["81.0%", "75.0%", "2,900"],
        ["64.0%", "75.0%", "2,950"],
    ]


def test_before_anything_was_decided_that_is_said() -> None:
    text = text_of(UNDECIDED)
    assert "local/new: its one worker serves whole requests" in text
    assert "4 s, no worker has moved" in text
    assert "no router: the last split stays" in text
    assert "not compared yet" in text
    assert "what others would give" not in text


@given(st.integers(0, 40), st.integers(0, 40), st.floats(0, 1e6), st.integers(20, 200), st.text(max_size=80))
def test_any_answer_can_be_shown(workers: int, prefills: int, since_s: float, width: int, why: str) -> None:
    names = tuple(f"w-{number}" for number in range(workers))
    outlook = msgspec.structs.replace(
        CHAT, workers=names, prefills=names[:prefills], since_s=since_s, why=why, decides_here=False
    )
    assert text_of(outlook, width).strip()
    assert (in_force(outlook) is not None) == (len(outlook.prefills) <= 2)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59.7, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations_are_short(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@contextmanager
def router(status: int, body: bytes) -> Iterator[str]:
    """A server on loopback that answers every request alike; gives its URL."""
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert set(asked) == {"/v1/explain/fleet"}


def test_the_command_shows_every_service(capsys: pytest.CaptureFixture[str]) -> None:
    body = msgspec.json.encode({"object": "list", "data": (CHAT, UNDECIDED)})
    with router(200, body) as url:
        assert main(["fleet", "--url", url]) == 0
        shown = capsys.readouterr().out
        assert shown.index("local/chat: 1 of 4") < shown.index("local/new: its one")
        assert main(["fleet", "--url", url, "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=tuple[FleetOutlook, ...]) == (CHAT, UNDECIDED)


def test_without_such_workers_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with router(200, b'{"object": "list", "data": []}') as url:
        assert main(["fleet", "--url", url]) == 0
    assert capsys.readouterr().out.strip() == NONE


def test_what_a_router_refuses_is_said_in_its_words() -> None:
    body = b'{"error": {"message": "there is no /v1/explain/fleet"}}'
    with router(404, body) as url, pytest.raises(TandemError, match="there is no /v1/explain/fleet") as refused:
        main(["fleet", "--url", url])
    assert refused.value.code == "not_found"


def test_an_answer_that_is_none_is_told_apart() -> None:
    with router(200, b'{"data": 3}') as url, pytest.raises(TandemError) as refused:
        main(["fleet", "--url", url])
    assert refused.value.code == "protocol_mismatch"
