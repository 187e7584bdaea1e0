"""Sockets that servers listen on: one address, or all of both families."""

import errno
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from control_plane.operator.routers import endpoints_of_pods
from kv_store.pods import address_of
from kv_transfer.index.redis_settings import shown
from router.discovery.pods import worker_of
from tandem.apps.client.http import Target
from tandem.process import listening
from tandem.process.listening import bound
from tandem.process.metrics import PrometheusMeter

needs_ipv6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")


@contextmanager
def listener(host: str) -> Iterator[int]:
    with bound(host, 0) as sock:
        sock.listen()
        yield sock.getsockname()[1]


def reachable(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 5.0).close()
    except ConnectionRefusedError:
        return False
    return True


@needs_ipv6
@pytest.mark.parametrize("host", ["::", ""])
def test_everywhere_is_both_families(host: str) -> None:
    with listener(host) as port:
        assert reachable("127.0.0.1", port)
        assert reachable("::1", port)


@needs_ipv6
def test_one_address_is_that_one() -> None:
    for here, other in (("127.0.0.1", "::1"), ("::1", "127.0.0.1")):
        with listener(here) as port:
            assert reachable(here, port)
            assert not reachable(other, port)


def test_without_ipv6_everywhere_is_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = socket.socket

    def ipv4_alone(family: int, *more: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return plain(family, *more)

    monkeypatch.setattr(listening.socket, "socket", ipv4_alone)
    with bound("::", 0) as sock:
        assert (sock.family, sock.getsockname()[0]) == (socket.AF_INET, "0.0.0.0")


def test_a_port_that_is_taken_is_not_looked_for_elsewhere() -> None:
    with listener("::") as port, pytest.raises(OSError, match="Address already in use"):
        bound("::", port).listen()


@needs_ipv6
@pytest.mark.parametrize("bind", ["[::1]:0", "::1:0", "[::]:0"])
def test_metrics_are_served_on_ipv6(bind: str) -> None:
    address = PrometheusMeter().serve(bind)
    port = address.rpartition(":")[2]
    with urllib.request.urlopen(f"http://[::1]:{port}/alive", timeout=10) as answer:
        assert answer.read() == b"alive\n"


def test_ipv6_has_brackets_wherever_a_port_follows() -> None:
    assert Target("fd00::1", 8000, False, "").authority == "[fd00::1]:8000"
    assert Target("router", 8000, False, "").authority == "router:8000"
    assert shown("redis://user:secret@[fd00::9]:6380/0") == "redis://[fd00::9]:6380/0"
    assert shown("redis://[fd00::9]") == "redis://[fd00::9]:6379"


def test_pods_with_ipv6_addresses_are_found() -> None:
    labels = {"tandem.dev/service": "chat", "tandem.dev/pool": "decode", "tandem.dev/role": "decode"}
    metadata = {"name": "p", "namespace": "n", "labels": labels, "annotations": {"tandem.dev/link-port": "7400"}}
    pod = {"metadata": metadata, "status": {"phase": "Running", "podIP": "fd00::5"}}
    worker = worker_of(pod)
    assert worker is not None
    assert worker.address == "tcp://[fd00::5]:7400"
    assert address_of(pod) == "tcp://[fd00::5]:7400"
    (router,) = endpoints_of_pods([pod], 8443, secure=True).values()
    assert router.authority == "[fd00::5]:8443"
