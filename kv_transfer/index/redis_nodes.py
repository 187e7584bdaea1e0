"""A connection to whichever of a service's Redis nodes is the primary, and the breaker in front of it.

`run` looks for the primary and keeps looking when it is lost; nothing else ever waits for a connection. While there
is none, `evaluate` refuses at once: a dead Redis costs a request nothing. Why there is none is logged: each reason
once until one is found.
"""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from functools import cache
from typing import Final, cast

from kv_transfer.index.redis_connection import (
    Argument,
    CommandRefused,
    Connect,
    RedisConnection,
    RedisFailed,
    ScriptUnknown,
)
from kv_transfer.index.redis_settings import RedisSettings, shown, without_secrets
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter
from tandem.process.logs import event

_log = logging.getLogger(__name__)

_REASONS_MAX: Final = 8
"""Maximum number of reasons that are logged before a node is found; a node may give a different reason each time."""
_ADVICE: Final = "check that it runs, and address, user and password in redis_url; requests go on without it"


class RedisNodes:
    """`usable` while the primary is connected and answers."""

    def __init__(self, settings: RedisSettings, scripts: Sequence[str], meter: Meter, connect: Connect) -> None:
        self._settings = settings
        self._meter = meter
        self._connect = connect
        self._scripts = tuple(scripts)
        self._client: RedisConnection | None = None
        self._found = asyncio.Event()
        self._broken = asyncio.Event()
        self._failures = 0
        self.server = ""
        """The run of the server that is connected; another run may have other data."""
        self.address = ""
        self.why_not = "it has not been reached yet"
        """Why it is not usable, in words."""
        self._logged: set[str] = set()
        """The reasons that were logged since it was usable."""

    @property
    def usable(self) -> bool:
        return self._client is not None and not self._broken.is_set()

    async def ready(self) -> None:
        """Wait until it is usable."""
        while not self.usable:
            await self._found.wait()
            if not self.usable:
                await asyncio.sleep(self._settings.retry_first_s)

    async def run(self) -> None:
        """Keep the primary connected until cancelled."""
        wait_s, now = self._settings.retry_first_s, asyncio.get_running_loop().time
        while True:
            client, began = await self._find(), now()
            if client is not None:
                try:
                    await self._use(client)
                finally:
                    self._client = None
                    self._found.clear()
                    await client.close()
                self._meter.set("tandem_redis_lost", 1.0)
                event(_log, "redis_lost", level=logging.WARNING, node=self.address, reason=self.why_not)
            else:
                self._unusable()
            # One that answers probes and breaks again at once is asked ever less often.
            if now() - began > 2 * self._settings.retry_max_s:
                wait_s = self._settings.retry_first_s
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, self._settings.retry_max_s)

    async def evaluate(self, script: str, arguments: Sequence[Argument], within_s: float) -> object:
        """Run one of the scripts. Raises `link_lost` when there is no answer within the bound, and `conflict` when
        the node answers with an error: what lies under one service's keys says nothing of the node."""
        client = self._client
        if client is None or self._broken.is_set():
            raise TandemError("link_lost", f"Redis is not usable: {self.why_not}")
        try:
            async with asyncio.timeout(within_s):
                answer = await _evaluate(client, script, arguments)
        except CommandRefused as error:
            self._failures = 0
            problem = f"Redis at {self.address} refused a script of the index: {self._told(error)}"
            raise TandemError("conflict", f"{problem}; look at what else writes under its keys") from error
        except (RedisFailed, OSError, TimeoutError) as error:
            self._failed(self._told(error), at_once=not isinstance(error, TimeoutError))
            raise TandemError("link_lost", f"Redis at {self.address} did not answer: {self.why_not}") from error
        self._failures = 0
        return answer

    def _failed(self, why: str, at_once: bool) -> None:
        self._failures += 1
        self.why_not = why
        if at_once or self._failures >= self._settings.failures_max:
            self._broken.set()

    def _unusable(self) -> None:
        """Record that once more no node was found."""
        self._meter.set("tandem_redis_lost", 1.0)
        if self.why_not not in self._logged and len(self._logged) < _REASONS_MAX:
            self._logged.add(self.why_not)
            event(_log, "redis_unusable", level=logging.WARNING, reason=self.why_not, advice=_ADVICE)

    def _told(self, error: Exception) -> str:
        told = str(error) if isinstance(error, RedisFailed) else f"{type(error).__name__}: {error}"
        return without_secrets(told, self._settings.urls)

    async def _find(self) -> RedisConnection | None:
        """A client of the first node that is a primary."""
        reasons: list[str] = []
        for url in self._settings.urls:
            client, kept = self._connect(url), False
            try:
                async with asyncio.timeout(self._settings.connect_s):
                    if await _is_primary(client):
                        await self._prepare(client)
                        self.address, kept = shown(url), True
                        return client
                reasons.append(f"{shown(url)} is a replica")
            except (RedisFailed, OSError, TimeoutError) as error:
                reasons.append(f"{shown(url)}: {self._told(error)}")
            finally:
                if not kept:
                    await client.close()
        self.why_not = "; ".join(reasons)
        return None

    async def _prepare(self, client: RedisConnection) -> None:
        for script in self._scripts:
            await client.ask("SCRIPT", "LOAD", script)
        self.server = await client.run_id()

    async def _use(self, client: RedisConnection) -> None:
        """Use the connection until it breaks. A probe detects a server that hangs, has become a replica, or was
        restarted behind the same address, before requests do."""
        self._failures = 0
        self._broken.clear()
        self._client = client
        self._found.set()
        self._logged.clear()
        self._meter.set("tandem_redis_lost", 0.0)
        event(_log, "redis_connected", node=self.address)
        while True:
            try:
                async with asyncio.timeout(self._settings.probe_every_s):
                    await self._broken.wait()
                return
            except TimeoutError:
                pass
            try:
                async with asyncio.timeout(self._settings.connect_s):
                    primary, server = await _is_primary(client), await client.run_id()
            except (RedisFailed, OSError, TimeoutError) as error:
                self.why_not = self._told(error)
                return
            if not primary:
                self.why_not = f"{self.address} is a replica now"
                return
            if server != self.server:
                self.why_not = f"{self.address} is another server now"
                return


async def _is_primary(client: RedisConnection) -> bool:
    role = cast(Sequence[object], await client.ask("ROLE"))
    return role[0] in (b"master", "master")


async def _evaluate(client: RedisConnection, script: str, arguments: Sequence[Argument]) -> object:
    try:
        return await client.ask("EVALSHA", _digest(script), 0, *arguments)
    except ScriptUnknown:
        return await client.ask("EVAL", script, 0, *arguments)


@cache
def _digest(script: str) -> str:
    """Redis names scripts by SHA-1."""
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
