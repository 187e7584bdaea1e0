"""Clients in a process of their own, so that reading does not count as the router's work."""

import multiprocessing
import os
import selectors
import socket
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import Any

_READ = 1 << 16


class ConnectionClients:
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

    def ask(self, port: int, requests: list[bytes], connections: int) -> None:
        """Send each request once, each connection its next one after the answer; returns after the last."""
        self._pipe.send(("ask", port, requests, connections))
        problem = self._pipe.recv()
        if problem is not None:
            raise RuntimeError(problem)

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
                # Some of the other events may be of connections that are closed now.
                _command(pipe, selector)
                break
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
    problem: str | None = None
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
        problem = _ask(*rest)
    pipe.send(problem)


def connection_of(key: selectors.SelectorKey) -> socket.socket:
    """The socket behind a selector's key."""
    connection: Any = key.fileobj
    assert isinstance(connection, socket.socket)
    return connection


def _ask(port: int, requests: list[bytes], connections: int) -> str | None:
    """What went wrong, or None."""
    waiting = list(reversed(requests))
    with selectors.DefaultSelector() as selector:
        for _ in range(min(connections, len(requests))):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(waiting.pop())
            selector.register(connection, selectors.EVENT_READ, bytearray())
        while selector.get_map():
            for key, _ in selector.select():
                connection = connection_of(key)
                answer: bytearray = key.data
                answer += connection.recv(_READ)
                if not _whole(answer):
                    continue
                if not answer.startswith(b"HTTP/1.1 200"):
                    return bytes(answer).decode("utf-8", "replace")
                answer.clear()
                if waiting:
                    connection.sendall(waiting.pop())
                else:
                    selector.unregister(connection)
                    connection.close()
    return None


def _whole(answer: bytearray) -> bool:
    """Whether a response with a content length has arrived to its end."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    lengths = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    return len(body) >= int(lengths[0])
