"""What is encrypted together, and how failures of TLS are told."""

import ssl

from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.transport.secure_wire import _pieces, explained

_RECORD, _WRITE, _GATHERED = 16 << 10, 256 << 10, 64 << 10


@given(st.lists(st.one_of(st.integers(0, 300), st.integers(8000, 17000), st.integers(200_000, 600_000)), max_size=20))
def test_everything_is_sent_once_in_order_and_in_bounded_pieces(sizes: list[int]) -> None:
    buffers = [memoryview(bytes([number % 251]) * size) for number, size in enumerate(sizes)]
    pieces = list(_pieces(buffers))
    assert b"".join(pieces) == b"".join(buffers)
    assert all(0 < piece.nbytes <= _WRITE for piece in pieces)


@given(st.lists(st.integers(1, _RECORD - 1), min_size=1, max_size=200))
def test_small_pieces_travel_together(sizes: list[int]) -> None:
    pieces = list(_pieces([memoryview(b"x" * size) for size in sizes]))
    assert all(_GATHERED <= piece.nbytes < _GATHERED + _RECORD for piece in pieces[:-1])


@given(st.integers(_RECORD, 2_000_000))
def test_large_blocks_are_not_copied(size: int) -> None:
    block = bytearray(size)
    pieces = list(_pieces([memoryview(b"head"), memoryview(block)]))
    assert all(piece.obj is block for piece in pieces[1:])


def test_failures_get_a_word_and_a_sentence() -> None:
    def failure(reason: str) -> ssl.SSLError:
        error = ssl.SSLError(1, f"[SSL: {reason}] as OpenSSL says it")
        error.reason = reason
        return error

    words = {
        "WRONG_VERSION_NUMBER": "plain_text",
        "HTTP_REQUEST": "plain_text",
        "TLSV1_ALERT_UNKNOWN_CA": "refused_by_peer",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED": "refused_by_peer",
        "PEER_DID_NOT_RETURN_A_CERTIFICATE": "certificate",
        "UNEXPECTED_EOF_WHILE_READING": "",
        "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": "protocol",
    }
    assert {reason: explained(failure(reason))[0] for reason in words} == words
    assert all(explained(failure(reason))[1] for reason in words)
