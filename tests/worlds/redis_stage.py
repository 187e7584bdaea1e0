"""A real redis-server that a test starts, kills and starts again, on a port of its own on loopback."""

import asyncio
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType

import pytest
import redis

from kv_transfer.index.redis_client import redis_client
from kv_transfer.index.redis_connection import Connect
from kv_transfer.index.redis_index import RedisIndex
from kv_transfer.index.redis_publisher import RedisPublisher
from kv_transfer.index.redis_settings import RedisSettings
from tandem.apps.cli.ports import free_port
from tandem.apps.simulation.redis_node import RedisNode
from tandem.core.clock import Clock
from tandem.core.kv import Layout
from tandem.core.messages import PROTOCOL_VERSION, Hello
from tandem.core.metrics import NullMeter
from tandem.link.memory_link import InstantPolicy
from tandem.process.system import SystemClock

needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
START_S = 10.0


class RedisServer:
    """In memory only: what it held is lost with it. `password` is asked for where it is not empty."""

    def __init__(self, directory: Path, password: str = "") -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self.port = free_port("127.0.0.1")
        self._process: subprocess.Popen[bytes] | None = None
        self.password = password
        self.admin = redis.Redis(port=self.port, password=password or None)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> "RedisServer":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.admin.close()
        self.kill()

    def start(self, *options: str) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *options]
        if self.password:
            command += ["--requirepass", self.password]
        self._process = subprocess.Popen(command, cwd=self._directory, stdout=subprocess.DEVNULL)
        give_up = time.monotonic() + START_S
        while True:
            try:
                self.admin.ping()
                return
            except redis.exceptions.ConnectionError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.01)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def flush(self) -> None:
        self.admin.flushall()

    def forget_scripts(self) -> None:
        self.admin.script_flush()

    def buckets(self) -> list[bytes]:
        return [key for key in self.admin.scan_iter() if b":b" in key]

    def registered(self) -> int:
        """How many numbers were given to holders of the usual service."""
        return int(self.admin.get("tandem:n") or 0)

    def connect(self, settings: RedisSettings) -> Connect:
        return redis_client(settings)


class StandIn:
    """The simulation's Redis on the real clock, with the same handles."""

    def __init__(self) -> None:
        self._node = RedisNode(InstantPolicy(), SystemClock())
        self.url = "redis://stand-in"
        self.start, self.kill, self.flush = self._node.start, self._node.kill, self._node.flush
        self.hang, self.go_on, self.forget_scripts = self._node.hang, self._node.go_on, self._node.forget_scripts
        self.start()

    def buckets(self) -> list[bytes]:
        data = self._node.data
        assert data is not None
        return [key for key in list(data.buckets) if data.bucket(key, self._node.now_ms()) is not None]

    def registered(self) -> int:
        data = self._node.data
        assert data is not None
        return data.numbers.get(b"tandem:n", 0)

    def connect(self, settings: RedisSettings) -> Connect:
        return self._node.connect("test")


def settings(*servers: RedisServer | StandIn, **changes: float) -> RedisSettings:
    urls = ",".join(server.url for server in servers)
    quick = {"look_up_s": 0.5, "probe_every_s": 0.1, "retry_first_s": 0.01, "retry_max_s": 0.05, "connect_s": 0.5}
    return RedisSettings(urls, **{**quick, **changes})  # type: ignore[arg-type]


def hello(name: str, epoch: int = 1, role: str = "unified") -> Hello:
    layout = Layout("torch", "plain", "float32", 4, 2, 16, 2, 8)
    return Hello(
        PROTOCOL_VERSION, name, epoch, role, "m", "hash", "r1", layout, bytes(16), 64, 512, (2,), (f"tcp://{name}:1",)
    )


class Holder:
    """What keeps blocks in a test, and tells of them."""

    def __init__(
        self, name: str, settings: RedisSettings, connect: Connect, epoch: int = 1, clock: Clock | None = None
    ) -> None:
        self.held: dict[str, dict[bytes, None]] = {"hbm": {}, "dram": {}, "nvme": {}}
        self.publisher = RedisPublisher(
            settings, hello(name, epoch), self._names, clock or SystemClock(), NullMeter(), connect
        )

    def _names(self) -> Mapping[str, Sequence[bytes]]:
        return {tier: tuple(names) for tier, names in self.held.items()}

    def change(self, tier: str, stored: Sequence[bytes], removed: Sequence[bytes] = ()) -> None:
        for name in stored:
            self.held[tier][name] = None
        for name in removed:
            self.held[tier].pop(name, None)
        self.publisher.change(tier, stored, removed)

    async def settled(self) -> None:
        await until(lambda: self.publisher.settled)


def index_of(server: RedisServer | StandIn, settings: RedisSettings) -> RedisIndex:
    return RedisIndex(settings, NullMeter(), server.connect(settings))


def holder_of(
    server: RedisServer | StandIn, name: str, settings: RedisSettings, epoch: int = 1, clock: Clock | None = None
) -> Holder:
    return Holder(name, settings, server.connect(settings), epoch, clock)


@asynccontextmanager
async def running(*parts: RedisPublisher | RedisIndex) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(part.run()) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  (another process decides)
            await asyncio.sleep(0.002)
