"""What is done to the platform meanwhile: every process is killed in turn, Redis included."""

import asyncio
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from tandem.apps.chaos.live import LivePlatform
from tandem.apps.cli.ports import free_port

_BACK_S = 60.0


class Redis:
    """A Redis of our own that keeps nothing on disk: what is restarted is empty."""

    def __init__(self, directory: Path) -> None:
        self._program = shutil.which("redis-server")
        self._directory = directory
        self.port = free_port("127.0.0.1")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def installed(self) -> bool:
        return self._program is not None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Does nothing where it is not installed."""
        if self._program is None:
            return
        flags = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
        self._process = subprocess.Popen(
            [self._program, *flags, "--dir", str(self._directory)], stdout=subprocess.DEVNULL
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class RestartInjector:
    """Strikes one process after the other; `restarts` counts, by name."""

    def __init__(self, live: LivePlatform, redis: Redis) -> None:
        self._live = live
        self._redis = redis
        self._turn = 0
        self.restarts: dict[str, int] = {}

    async def strike(self) -> str:
        """Kill the next process and wait until everything is ready again. Gives its name."""
        members = list(self._live.platform.members)
        index = self._turn % (len(members) + self._redis.installed)
        self._turn += 1
        if index == len(members):
            name = "redis"
            self._redis.kill()
            self._redis.start()
        else:
            member = members[index]
            name = member.name
            if member.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
            async with asyncio.timeout(_BACK_S):
                while member.state == "ready":  # noqa: ASYNC110  (the supervisor tells nobody)
                    await asyncio.sleep(0.02)
                await self._live.platform.ready(self._live.supervisor, _BACK_S)
        self.restarts[name] = self.restarts.get(name, 0) + 1
        return name
