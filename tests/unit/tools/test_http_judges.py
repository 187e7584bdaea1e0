"""The router reads HTTP/1.1 as others do, or refuses it: drawn connections beside h11, and those kept from before."""

import json
from pathlib import Path

import pytest

from router.http_server.head import head_fault
from tools.http_judges.generator import Case, cases
from tools.http_judges.judges import h11_says, ours

_KEPT = [json.loads(line) for line in (Path(__file__).parents[2] / "corpus" / "http.jsonl").read_text().splitlines()]


def _skips_empty_lines(case: Case) -> bool:
    """RFC 9112, 2.2: empty lines before a request are ignored; h11 refuses them."""
    return "junk" in case.faults


async def test_the_router_sees_no_request_that_h11_does_not_see() -> None:
    """Requests another reader of the same bytes takes for a body are how requests are smuggled past a gateway."""
    for case in cases(seed=14, count=700):
        own, other = await ours([case.data]), h11_says(case.data)
        if own.seen == other.seen or _skips_empty_lines(case):
            continue
        assert own.seen == other.seen[: len(own.seen)], (case, own, other)
        assert own.closed, (case, own, other)


async def test_it_makes_no_difference_where_packets_end() -> None:
    for case in cases(seed=15, count=250):
        if len(case.data) > 600:
            continue
        whole, single = await ours([case.data]), [case.data[at : at + 1] for at in range(len(case.data))]
        for turns in (0, 6):
            split = await ours(single, turns)
            assert (split.seen, split.closed) == (whole.seen, whole.closed), case
        for at in range(1, len(case.data), 7):
            split = await ours([case.data[:at], case.data[at:]])
            assert (split.seen, split.closed) == (whole.seen, whole.closed), (case, at)


async def test_what_was_found_before_is_read_as_it_was() -> None:
    for kept in _KEPT:
        said = await ours([kept["data"].encode("latin-1")])
        assert [[method, body.decode("latin-1")] for method, body in said.seen] == kept["seen"], kept
        assert said.closed == kept["closed"], kept


async def test_a_broken_request_does_not_cost_the_answers_before_it() -> None:
    sound = b"PUT /a HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi"
    broken = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbodyx\r\n0\r\n\r\n"
    said = await ours([sound + broken])
    assert said.seen == (("PUT", b"hi"),)
    assert said.closed


@pytest.mark.parametrize(
    ("version", "headers", "word"),
    [
        ("0.9", [(b"host", b"x")], "HTTP/1.1"),
        ("2.0", [(b"host", b"x")], "HTTP/1.1"),
        ("1.1", [], "Host"),
        ("1.1", [(b"host", b"x"), (b"host", b"x")], "one Host"),
        ("1.1", [(b"host", b"x, y")], "no host"),
        ("1.1", [(b"host", b"x/y")], "no host"),
        ("1.0", [(b"transfer-encoding", b"chunked")], "HTTP/1.0"),
        ("1.1", [(b"host", b"x"), (b"transfer-encoding", b"gzip, chunked")], "chunked"),
        ("1.1", [(b"host", b"x"), (b"transfer-encoding", b"identity")], "chunked"),
    ],
)
def test_faults_of_a_head_are_told(version: str, headers: list[tuple[bytes, bytes]], word: str) -> None:
    fault = head_fault(version, headers)
    assert fault is not None
    assert word in fault.problem


@pytest.mark.parametrize("host", [b"x", b"", b"x:80", b"[::1]:8000", b"127.0.0.1:1", b"a.b-c_d", b" x\t"])
def test_hosts_of_all_kinds_are_taken(host: bytes) -> None:
    assert head_fault("1.1", [(b"host", host), (b"transfer-encoding", b"Chunked")]) is None
    assert head_fault("1.0", []) is None
