"""From `tandem up` to the first token, and the router's memory once it has served requests.

Starts the whole platform as a person does (demo model, one prefill and two decode workers), asks from the first
moment until a chat request streams its first text, sends more requests, reads the router's resident memory and
stops everything. A first start that does not count warms the page cache. Exits non-zero when a limit is not met.
"""

import argparse
import asyncio
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Final

import psutil

from benchmarks.rounds import Check, table, verdict
from tandem.apps.client.answer import RequestRefused
from tandem.apps.client.http import Client, Target
from tandem.apps.client.stream import AnswerStream

STARTS: Final = 3
START_LIMIT_S: Final = 15.0
RSS_LIMIT_MB: Final = 150.0
_GIVE_UP_S: Final = 120.0
_STOP_S: Final = 60.0
_RETRY_S: Final = 0.05
_PARALLEL: Final = 8
_QUESTION: Final = "Tell me a story about a fox and a lantern."


@dataclass(frozen=True)
class Start:
    """One start: seconds to readiness and to the first token, the router's memory in MB, the requests it served."""

    ready_s: float
    first_token_s: float
    router_mb: float
    requests: int


class StartedPlatform:
    """A running `tandem up` on a free port."""

    def __init__(self, output: IO[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._port: int = listener.getsockname()[1]
        self._output = output
        self.began = time.monotonic()
        flags = ("--model", "demo", "--prefill", "1", "--decode", "2", "--port", str(self._port), "--plain")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tandem.apps.cli", "up", *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def wait_until_ready(self) -> float:
        """Seconds until the router calls itself ready."""
        return self._persist(lambda: self._ask("GET", "/ready"))

    def first_token(self) -> float:
        """Seconds until a streamed answer has brought its first text."""
        return self._persist(self._stream)

    def _persist(self, attempt: Callable[[], bool]) -> float:
        """Try until it works. Raises when the platform ends, or takes for ever."""
        while time.monotonic() - self.began < _GIVE_UP_S:
            if self.process.poll() is not None:
                raise RuntimeError(f"tandem up ended with {self.process.returncode}:\n{self._said()}")
            try:
                if attempt():
                    return time.monotonic() - self.began
            except (OSError, http.client.HTTPException):
                pass  # nobody listens yet
            time.sleep(_RETRY_S)
        raise RuntimeError(f"no answer within {_GIVE_UP_S:g} s:\n{self._said()}")

    def _said(self) -> str:
        self._output.seek(0)
        return self._output.read()[-2000:]

    def _ask(self, method: str, path: str) -> bool:
        with self._connection() as connection:
            connection.request(method, path)
            return connection.getresponse().status == 200

    def _stream(self) -> bool:
        return asyncio.run(self._first_text())

    async def _first_text(self) -> bool:
        body = _body(_QUESTION, 16, stream=True).encode()
        async with aclosing(Client(Target("127.0.0.1", self._port, False, ""))) as client:
            stream = AnswerStream(client, "/v1/chat/completions", body)
            with suppress(RequestRefused):
                async with aclosing(stream.pieces()) as pieces:
                    async for piece in pieces:
                        if any(choice.content for choice in piece.choices):
                            return True
        return False

    def serve(self, requests: int) -> None:
        """Chat requests of various lengths, some at the same time. Raises when one is refused."""
        with ThreadPoolExecutor(_PARALLEL) as pool:
            list(pool.map(self._chat, range(requests)))

    def _chat(self, number: int) -> None:
        with self._connection() as connection:
            question = f"{number}. " + " ".join([_QUESTION] * (1 + number % 20))
            connection.request("POST", "/v1/chat/completions", _body(question, 16, stream=bool(number % 2)))
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"request {number} got {answer.status}: {body[:300]!r}")

    @contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_STOP_S)
        try:
            yield connection
        finally:
            connection.close()

    def router_mb(self) -> float:
        """Resident memory of the router process."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            command = child.cmdline()
            if command[1:3] == ["-m", "router"]:
                return float(child.memory_info().rss) / 1e6
        raise RuntimeError("tandem up has no router process")

    def stop(self) -> None:
        """As Ctrl-C does it."""
        self.process.send_signal(signal.SIGINT)
        try:
            status = self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"tandem up did not stop within {_STOP_S:g} s") from None
        if status:
            raise RuntimeError(f"tandem up stopped with {status}:\n{self._said()}")


def _body(question: str, tokens: int, *, stream: bool) -> str:
    messages = [{"role": "user", "content": question}]
    return json.dumps({"model": "demo", "messages": messages, "max_tokens": tokens, "stream": stream})


def measure(requests: int) -> Start:
    """One start, from nothing to stopped."""
    with tempfile.TemporaryFile("w+") as output:
        platform = StartedPlatform(output)
        try:
            ready_s = platform.wait_until_ready()
            first_s = platform.first_token()
            platform.serve(requests)
            start = Start(ready_s, first_s, platform.router_mb(), requests + 1)
        except BaseException:
            platform.process.kill()
            platform.process.wait()
            raise
        platform.stop()
    return start


def main() -> int:
    """Measure and give the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--requests", type=int, default=64)
    arguments = parser.parse_args()
    starts = [measure(arguments.requests) for _ in range(arguments.starts + 1)][1:]
    print(f"tandem up, demo model, 1 prefill and 2 decode workers, {len(os.sched_getaffinity(0))} cores\n")
    rows = [
        (
            str(number),
            f"{start.ready_s:.1f}",
            f"{start.first_token_s:.1f}",
            f"{start.router_mb:.0f}",
            str(start.requests),
        )
        for number, start in enumerate(starts, 1)
    ]
    print(table(("start", "ready s", "first token s", "router MB", "requests"), rows) + "\n")
    first_s = statistics.median(start.first_token_s for start in starts)
    router_mb = max(start.router_mb for start in starts)
    checks = [
        Check("tandem up to first token", first_s, START_LIMIT_S, at_least=False, unit="s"),
        Check("router memory after requests", router_mb, RSS_LIMIT_MB, at_least=False, unit="MB"),
    ]
    return verdict(checks, "start-up and memory")


if __name__ == "__main__":
    sys.exit(main())
