"""Clients in a process of their own, so that reading does not count as the router's work."""

import multiprocessing
import os
import selectors
import socket
import time
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import Any

_READ = 1 << 16


class Clients:
    """Many connections to one port at a time. Counters grow while they are open."""

    def __init__(self, core: frozenset[int] | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._bytes: Synchronized[int] = context.Value("q", 0)
        self._events: Synchronized[int] = context.Value("q", 0)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, self._bytes, self._events, core), daemon=True)
        self._process.start()

    def open(self, port: int, count: int, request: bytes) -> None:
        """Connect and send the same request on every connection."""
        self._pipe.send(("open", port, count, request))
        self._pipe.recv()

    def counts(self) -> tuple[int, int]:
        """Bytes and server-sent events received so far."""
        return self._bytes.value, self._events.value

    def close(self) -> None:
        """Close all connections."""
        self._pipe.send(("close",))
        self._pipe.recv()

    def ask(self, port: int, requests: list[bytes], per_s: float) -> None:
        """Send requests one after the other on one connection, at a pace; returns when all are answered."""
        self._pipe.send(("ask", port, requests, per_s))
        self._pipe.recv()

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


def _run(
    pipe: Connection, received: "Synchronized[int]", events: "Synchronized[int]", core: frozenset[int] | None
) -> None:
    if core is not None:
        _pin(core)
    selector = selectors.DefaultSelector()
    selector.register(pipe, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is pipe:
                _command(pipe, selector)
                continue
            connection: Any = key.fileobj
            data = connection.recv(_READ)
            received.value += len(data)
            events.value += data.count(b"data: ")
            if not data:
                selector.unregister(connection)
                connection.close()


def _pin(core: frozenset[int]) -> None:
    os.sched_setaffinity(0, core)


def _command(pipe: Connection, selector: selectors.DefaultSelector) -> None:
    what, *rest = pipe.recv()
    if what == "open":
        port, count, request = rest
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(request)
            selector.register(connection, selectors.EVENT_READ)
    elif what == "close":
        for key in list(selector.get_map().values()):
            if key.fileobj is not pipe:
                selector.unregister(key.fileobj)
                connection_of(key).close()
    else:
        _ask(*rest)
    pipe.send(None)


def connection_of(key: selectors.SelectorKey) -> socket.socket:
    """The socket behind a selector's key."""
    connection: Any = key.fileobj
    assert isinstance(connection, socket.socket)
    return connection


def _ask(port: int, requests: list[bytes], per_s: float) -> None:
    due = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for request in requests:
            due = max(due + 1 / per_s, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            connection.sendall(request)
            _read_answer(connection)


def _read_answer(connection: socket.socket) -> None:
    """Read one response with a content length. Raises `RuntimeError` when it is not 200."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(_READ)
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(data.decode("utf-8", "replace"))
    lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    while len(body) < lengths[0]:
        body += connection.recv(_READ)
