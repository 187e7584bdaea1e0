"""The HTTP parser gives the same result however the bytes are cut, and refuses what is not HTTP."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.apps.client.http import parse_target
from tandem.apps.client.wire import BadResponse, Body, split_head
from tandem.core.errors import TandemError


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\n\r\n"


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_a_chunked_body_survives_any_cutting(pieces: list[bytes], data: st.DataObject) -> None:
    raw = chunked(*pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    parsed = split_head(HEAD)
    assert parsed is not None
    body = Body(parsed[0])
    edges = [0, *cuts, len(raw)]
    out = b"".join(body.feed(raw[start:end]) for start, end in pairwise(edges))
    assert out == b"".join(pieces)
    assert body.ended


def test_a_body_with_a_length_ends_there() -> None:
    parsed = split_head(b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nabc")
    assert parsed is not None
    head, rest = parsed
    body = Body(head)
    assert (head.status, head.keep_alive, rest) == (404, True, b"abc")
    assert body.feed(rest) + body.feed(b"deXX") == b"abcde"
    assert body.ended


def test_an_empty_body_has_ended_at_once() -> None:
    parsed = split_head(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")
    assert parsed is not None
    assert Body(parsed[0]).ended


@pytest.mark.parametrize(
    "head", [b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n", HEAD[:-2] + b"Connection: close\r\n\r\n"]
)
def test_connections_that_will_not_be_kept(head: bytes) -> None:
    parsed = split_head(head)
    assert parsed is not None
    assert not parsed[0].keep_alive


def test_an_incomplete_head_waits() -> None:
    assert split_head(HEAD[:-1]) is None


@pytest.mark.parametrize("raw", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 two OK\r\n\r\n", b"x" * 70_000])
def test_what_is_not_http_is_refused(raw: bytes) -> None:
    with pytest.raises(BadResponse):
        split_head(raw)


def test_a_bad_chunk_size_is_refused() -> None:
    parsed = split_head(HEAD)
    assert parsed is not None
    with pytest.raises(BadResponse, match="chunk size"):
        Body(parsed[0]).feed(b"zz\r\n")


def test_a_chunk_is_handed_on_as_it_arrives() -> None:
    parsed = split_head(HEAD)
    assert parsed is not None
    body = Body(parsed[0])
    assert [body.feed(piece) for piece in (b"5\r\nab", b"cd", b"e\r\n0\r", b"\n\r\n")] == [b"ab", b"cd", b"e", b""]
    assert body.ended


def test_seconds_to_wait_are_read() -> None:
    for wait, seconds in ((b"7", 7), (b"Fri, 31 Dec 1999 23:59:59 GMT", None)):
        parsed = split_head(b"HTTP/1.1 503 Busy\r\nRetry-After: %b\r\n\r\n" % wait)
        assert parsed is not None
        assert parsed[0].retry_after_s == seconds


def test_targets() -> None:
    assert parse_target("http://a:81/v1").base == ""
    assert parse_target("https://a/x/").base == "/x"
    assert parse_target("https://a").port == 443
    for url in ("a:81", "ftp://a", "http://", "http://a:99999"):
        with pytest.raises(TandemError, match="--url"):
            parse_target(url)
