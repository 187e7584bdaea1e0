"""Addresses of workers: what is read, and what is refused by name."""

import pytest

from tandem.core.errors import TandemError
from tandem.link.address import parse_address


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tcp://10.0.0.1:7400", "tcp://10.0.0.1:7400"),
        ("10.0.0.1:7400", "tcp://10.0.0.1:7400"),
        ("worker-0.pool:0", "tcp://worker-0.pool:0"),
        ("tcp://[fd00::1]:7400", "tcp://[fd00::1]:7400"),
    ],
)
def test_an_address_is_tcp_with_and_without_its_scheme(text: str, shown: str) -> None:
    assert str(parse_address(text)) == shown
    assert parse_address(shown) == parse_address(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("grpc://10.0.0.1:7400", "links over gRPC are gone; workers listen on tcp://host:port"),
        ("udp://10.0.0.1:7400", "the scheme is 'udp', expected tcp"),
        ("tcp://10.0.0.1", "expected host:port with a port from 0 to 65535"),
        ("10.0.0.1:65536", "expected host:port with a port from 0 to 65535"),
        ("", "expected host:port with a port from 0 to 65535"),
    ],
)
def test_what_is_no_address_of_a_worker_says_why(text: str, why: str) -> None:
    with pytest.raises(TandemError) as caught:
        parse_address(text)
    assert (caught.value.code, caught.value.param) == ("bad_setting", "workers")
    assert caught.value.message == f"worker address {text!r}: {why}"
