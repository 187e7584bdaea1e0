"""Abusers in a process of their own: one at every bound of the router's edge, until they are told to stop."""

import asyncio
import json
import multiprocessing
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final

import grpc

_IDLE_CONNECTIONS: Final = 8_300
"""The router lets 8,192 in."""
_FILL_STEP: Final = 1_000
_SLOW_HEADS: Final = 200
_DEAF_STREAMS: Final = 40
_GRPC_CALLS: Final = 60
_GRPC_BYTES: Final = 60_000_000
_PAUSE_S: Final = 0.2
_CHUNK: Final = 65_536

Abuse = Callable[[], Awaitable[str]]
BODIES: Final = ("messages", "tool turns", "ids", "metadata", "keys", "prompts", "text")
KINDS: Final = (
    *BODIES,
    "cancelled",
    "unknown path",
    "bad key",
    "garbage",
    "gRPC",
    "idle connections",
    "slow heads",
    "never read",
)
"""All that an abuser does, by name."""


class Abusers:
    """`start` begins, `stop` ends all of them and gives how often each was answered with what."""

    def __init__(self, port: int, grpc_port: int, model: str, key: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, port, grpc_port, model, key), daemon=True)
        self._process.start()
        self._pipe.recv()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def start(self, kinds: Sequence[str] = KINDS) -> None:
        """Begin with these, all at once."""
        self._pipe.send(list(kinds))

    def large_calls(self) -> dict[str, int]:
        """60 gRPC calls of 60 MB without a key, and nothing else."""
        self._pipe.send(None)
        answered: dict[str, int] = self._pipe.recv()
        return answered

    def stop(self) -> dict[str, int]:
        self._pipe.send(None)
        answered: dict[str, int] = self._pipe.recv()
        return answered

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def _run(pipe: Connection, port: int, grpc_port: int, model: str, key: str) -> None:
    os.nice(5)  # the machine's cores are the router's first
    crowd = _Crowd(port, grpc_port, model, key)
    pipe.send("ready")
    while True:
        kinds = pipe.recv()
        pipe.send(asyncio.run(crowd.large_calls() if kinds is None else crowd.abuse(pipe, kinds)))


class _Crowd:
    def __init__(self, port: int, grpc_port: int, model: str, key: str) -> None:
        self._port, self._grpc_port, self._model, self._key = port, grpc_port, model, key
        self._answered: Counter[str] = Counter()
        self._bodies = self._large_bodies()
        self._held: list[asyncio.StreamWriter] = []
        self._silent: list[socket.socket] = []

    def _large_bodies(self) -> dict[str, bytes]:
        base = {"model": self._model, "max_tokens": 8}
        chat, hi = base, [{"role": "user", "content": "a"}]
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        turn = {"role": "assistant", "tool_calls": [call]}
        bodies = {
            "messages": {**chat, "messages": hi * 200_000},
            "tool turns": {**chat, "messages": [turn] * 66_000},
            "ids": {**base, "prompt": [1, 2, 3, 4] * 600_000},
            "metadata": {**chat, "messages": hi, "metadata": {f"k{each}": "" for each in range(480_000)}},
            "keys": {**chat, "messages": hi, **{f"k{each}": 1 for each in range(480_000)}},
            "prompts": {**base, "prompt": [[1] * 20_000] * 127},
            "text": {**chat, "messages": [{"role": "user", "content": "word " * 1_550_000}]},
        }
        return {name: json.dumps(body, separators=(",", ":")).encode() for name, body in bodies.items()}

    async def abuse(self, pipe: Connection, kinds: Sequence[str]) -> dict[str, int]:
        """Until the other end says stop."""
        self._answered.clear()
        abuses: dict[str, Abuse] = {name: self._large(name, body) for name, body in self._bodies.items()}
        abuses |= {
            "cancelled": self._cancelled,
            "unknown path": self._unknown_path,
            "bad key": self._bad_key,
            "garbage": self._garbage,
            "gRPC": self._grpc_without_key,
        }
        work = [self._again(abuses[kind]) for kind in kinds if kind in abuses]
        work += [self._fill() for kind in kinds if kind == "idle connections"]
        work += [self._slow_heads() for kind in kinds if kind == "slow heads"]
        work += [self._again(self._deaf) for _ in range(_DEAF_STREAMS) if "never read" in kinds]
        tasks = [asyncio.create_task(each) for each in work]
        while not pipe.poll():  # noqa: ASYNC110  (a pipe to another process)
            await asyncio.sleep(0.05)
        pipe.recv()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._held:
            writer.transport.abort()
        self._held.clear()
        for connection in self._silent:
            connection.close()
        self._silent.clear()
        await asyncio.sleep(0)
        return dict(self._answered)

    async def large_calls(self) -> dict[str, int]:
        self._answered.clear()
        await self._grpc_without_key()
        return dict(self._answered)

    async def _again(self, abuse: Abuse) -> None:
        while True:
            try:
                async with asyncio.timeout(30.0):
                    self._answered[await abuse()] += 1
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                self._answered[type(error).__name__] += 1
            await asyncio.sleep(_PAUSE_S)

    async def _ask(self, what: str, request: bytes) -> str:
        """The status of one request on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            with suppress(ConnectionError):
                for at in range(0, len(request), _CHUNK):
                    writer.write(request[at : at + _CHUNK])
                    await writer.drain()
            line = await reader.readline()
            return f"{what} {line[9:12].decode() or 'closed'}"
        finally:
            writer.transport.abort()

    def _post(self, body: bytes, key: str, path: str = "/v1/completions") -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: abuse\r\nauthorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n"
        )
        return head.encode() + b"\r\n" + body

    def _large(self, name: str, body: bytes) -> Abuse:
        path = "/v1/chat/completions" if b'"messages"' in body[:100] else "/v1/completions"
        return lambda: self._ask(name, self._post(body, self._key, path))

    async def _unknown_path(self) -> str:
        return await self._ask("unknown path", self._post(b"{}", self._key, "/v1/embeddings"))

    async def _bad_key(self) -> str:
        return await self._ask("bad key", self._post(b"x" * 1_000_000, "wrong"))

    async def _garbage(self) -> str:
        return await self._ask("garbage", b"\x16\x03\x01" + b"\x00" * 1_000)

    def _stream(self, n: int, logprobs: int) -> bytes:
        asked = {"model": self._model, "prompt": [5, 6, 7, 8] * 64, "stream": True, "ignore_eos": True, "n": n}
        return self._post(json.dumps({**asked, "max_tokens": 4_000, "logprobs": logprobs}).encode(), self._key)

    async def _cancelled(self) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(self._stream(1, 0))
        line = await reader.readline()
        writer.transport.abort()
        return f"cancelled {line[9:12].decode()}"

    async def _deaf(self) -> str:
        """A stream that nobody reads, for ten seconds."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._port))
            await asyncio.get_running_loop().sock_sendall(connection, self._stream(1, 5))
            await asyncio.sleep(10.0)
        finally:
            connection.close()
        return "never read"

    async def _fill(self) -> None:
        """Connections that say nothing, up to the bound and past it."""
        while True:
            with suppress(OSError):
                for _ in range(min(_FILL_STEP, _IDLE_CONNECTIONS - len(self._silent))):
                    self._silent.append(socket.create_connection(("127.0.0.1", self._port), timeout=1.0))
                    self._answered["idle connections"] += 1
            await asyncio.sleep(0.02)

    async def _slow_heads(self) -> None:
        writers: list[asyncio.StreamWriter] = []
        while True:
            writers = [each for each in writers if not each.is_closing()]
            with suppress(OSError):
                while len(writers) < _SLOW_HEADS:
                    _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                    writers.append(writer)
                    self._held.append(writer)
                    writer.write(b"POST /v1/completions HTTP/1.1\r\nx: ")
            for writer in writers:
                writer.write(b"y")
            await asyncio.sleep(1.0)

    async def _grpc_without_key(self) -> str:
        """60 calls of 60 MB, ten at once."""
        body, gate = b"\x00" * _GRPC_BYTES, asyncio.Semaphore(10)
        codes: Counter[str] = Counter()

        async def call(generate: "grpc.aio.UnaryStreamMultiCallable[bytes, bytes]") -> None:
            async with gate:
                try:
                    async for _ in generate(body, timeout=20.0):
                        pass
                except grpc.aio.AioRpcError as error:
                    codes[error.code().name] += 1

        async with grpc.aio.insecure_channel(f"127.0.0.1:{self._grpc_port}") as channel:
            generate = channel.unary_stream("/tandem.v1.Inference/Generate", bytes, bytes)
            await asyncio.gather(*(call(generate) for _ in range(_GRPC_CALLS)))
        for code, count in codes.items():
            self._answered[f"gRPC {code}"] += count
        return "gRPC rounds"
