"""Frames on a byte stream: cut the same however the bytes arrive, and never larger than agreed."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.errors import TandemError
from tandem.link.tcp_frames import (
    END,
    FRAME_BYTES_MAX,
    GREETING,
    GREETING_BYTES_MAX,
    MESSAGES,
    WELCOME,
    FrameCutter,
    Greeting,
    Welcome,
    pack_frame,
    pack_greeting,
    read_greeting,
)


def _cut(cutter: FrameCutter, data: bytes) -> list[tuple[int, bytes]]:
    cutter.feed(data)
    frames = []
    while (frame := cutter.next()) is not None:
        frames.append((frame[0], bytes(frame[1])))
    return frames


@given(
    st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60)), max_size=12),
    st.lists(st.integers(1, 40), max_size=60),
)
def test_frames_do_not_depend_on_how_bytes_arrive(frames: list[tuple[int, bytes]], sizes: list[int]) -> None:
    data = b"".join(pack_frame(kind, body) for kind, body in frames)
    cutter, got, at = FrameCutter(), [], 0
    for size in (*sizes, len(data)):
        got += _cut(cutter, data[at : at + size])
        at += size
    assert got == frames


def test_a_long_frame_is_gathered_without_copying_it_again_and_again() -> None:
    cutter = FrameCutter()
    cutter.bytes_max = FRAME_BYTES_MAX
    body = bytes(range(256)) * (32 << 10)
    data = pack_frame(MESSAGES, body) + pack_frame(END, b"bye")
    got = []
    for start in range(0, len(data), 1000):
        got += _cut(cutter, data[start : start + 1000])
    assert got == [(MESSAGES, body), (END, b"bye")]


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_what_is_no_link_shows_in_its_first_bytes(first: bytes) -> None:
    cutter = FrameCutter()
    cutter.feed(first)
    with pytest.raises(TandemError) as caught:
        cutter.next()
    assert caught.value.code == "link_lost"


def test_a_length_beyond_the_bound_is_refused_before_anything_is_gathered() -> None:
    cutter = FrameCutter()
    cutter.feed(struct.pack("<IB", GREETING_BYTES_MAX + 1, 2))
    with pytest.raises(TandemError):
        cutter.next()
    cutter = FrameCutter()
    cutter.bytes_max = FRAME_BYTES_MAX
    cutter.feed(struct.pack("<IB", FRAME_BYTES_MAX, 0))
    assert cutter.next() is None
    cutter = FrameCutter()
    cutter.bytes_max = FRAME_BYTES_MAX
    cutter.feed(struct.pack("<IB", FRAME_BYTES_MAX + 1, 0))
    with pytest.raises(TandemError):
        cutter.next()


def test_greetings_say_what_they_are() -> None:
    greeting = Greeting(1, "ab" * 16, "tokens", "router-é")
    (kind, body), *rest = _cut(FrameCutter(), pack_greeting(greeting))
    assert not rest
    assert read_greeting(Greeting, kind, memoryview(body)) == greeting
    with pytest.raises(TandemError, match="kind 2 is no welcome"):
        read_greeting(Welcome, kind, memoryview(body))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_greeting_or_refused(body: bytes) -> None:
    with suppress(TandemError):
        assert isinstance(read_greeting(Greeting, GREETING, memoryview(body)), Greeting)
    with suppress(TandemError):
        assert isinstance(read_greeting(Welcome, WELCOME, memoryview(body)), Welcome)
