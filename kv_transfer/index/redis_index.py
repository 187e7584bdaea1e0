"""The router's side of the Redis index: the holders of a prompt's leading blocks, beyond those the router has links
to.

One round trip per prompt, within a few milliseconds, or none: whatever goes wrong, the answer is that no other holder
has anything, and the request goes on with what the links report.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, cast

import msgspec

from kv_transfer.index.redis_connection import Connect
from kv_transfer.index.redis_nodes import RedisNodes
from kv_transfer.index.redis_scripts import HOLDERS, LOOK_UP
from kv_transfer.index.redis_settings import RedisSettings
from kv_transfer.index.redis_wire import RedisHolder, read_answer
from tandem.core.errors import TandemError
from tandem.core.kv import packed_names
from tandem.core.metrics import Meter
from tandem.process.logs import event

_log = logging.getLogger(__name__)

_NOBODY: Final[frozenset[str]] = frozenset()
_OWN: Final = ""
"""The service that the settings name."""
_IDLE_ROUNDS: Final = 60
"""Number of refreshes of the holders for which the index remembers a service that no request asks for."""
_SERVICES_MAX: Final = 4096
NAMES_MAX: Final = 512
"""Names looked up for one prompt; of a longer one evenly spaced ones."""
_UNREADABLE: Final = (ValueError, RecursionError, msgspec.MsgspecError)
"""What reading an answer raises: whoever may write under a service's keys may leave anything there."""


class RedisIndex:
    """Look-ups of one router. Each service's blocks are published under a name of its own; the empty name stands for
    the service of the settings. Holders of another service are known about a second after it was first asked for."""

    def __init__(self, settings: RedisSettings, meter: Meter, connect: Connect) -> None:
        self._settings = settings
        self._meter = meter
        self._holders: dict[str, frozenset[str]] = {_OWN: _NOBODY}
        self._idle: dict[str, int] = {}
        """For each service except the one in the settings, the number of refreshes since a request last asked for
        it."""
        self._unknown: dict[str, str] = {}
        """Why a service's holders could not be read last time, for each of which they could not."""
        self._asking = 0
        """Look-ups under way: fewer than there are connections, so that none waits for one."""
        self._nodes = RedisNodes(settings, (LOOK_UP, HOLDERS), meter, connect)

    @property
    def usable(self) -> bool:
        """Whether a look-up has a chance."""
        return self._nodes.usable

    def holders(self, service: str = _OWN) -> frozenset[str]:
        """Holders that lately published blocks of a service; none while the index is not usable."""
        if service:
            self._idle[service] = 0
        return self._holders.get(service, _NOBODY) if self._nodes.usable else _NOBODY

    async def run(self) -> None:
        """Keep the connection, and the list of holders, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run(), name="redis nodes")
            group.create_task(self._watch(), name="redis holders")

    async def _watch(self) -> None:
        while True:
            await self._nodes.ready()
            services = (_OWN, *self._asked_for())
            self._holders = {each: self._holders.get(each, _NOBODY) for each in services}
            self._unknown = {each: why for each, why in self._unknown.items() if each in self._holders}
            for each in services:
                await self._look_at(each)
                if not self._nodes.usable:
                    break
            await asyncio.sleep(self._settings.probe_every_s)

    async def _look_at(self, service: str) -> None:
        """Renew the list of a service's holders. One that cannot be read stays as it is, and harms no other."""
        try:
            self._holders[service] = await self._holders_of(service)
            self._unknown.pop(service, None)
        except (TandemError, *_UNREADABLE) as error:
            why = str(error)
            if self._unknown.get(service) != why:
                self._unknown[service] = why
                event(_log, "redis_holders_unknown", service=service or self._settings.service, reason=why)

    def _asked_for(self) -> tuple[str, ...]:
        """The services of late requests, as many as there may be, the latest first."""
        known = sorted(self._idle.items(), key=lambda each: each[1])[:_SERVICES_MAX]
        self._idle = {service: rounds + 1 for service, rounds in known if rounds < _IDLE_ROUNDS}
        return tuple(self._idle)

    async def _holders_of(self, service: str) -> frozenset[str]:
        prefix = self._settings.prefix_of(service)
        answer = await self._nodes.evaluate(HOLDERS, (prefix,), self._settings.publish_s)
        return frozenset(each.decode(errors="replace") for each in cast(Sequence[bytes], answer))

    async def longest(self, names: Sequence[bytes], service: str = _OWN) -> dict[str, RedisHolder]:
        """The number of leading blocks that each holder has of a service's blocks, by holder id. Of more than
        `NAMES_MAX` names, those between two that were looked up count as held when the second is: a name stands for
        its whole prefix, and blocks that turn out to be missing are computed."""
        if not names or not self._nodes.usable or self._asking >= self._settings.connections_max - 1:
            self._meter.add("tandem_redis_look_ups_total", 1.0, "skipped")
            return {}
        stride = -(-len(names) // NAMES_MAX)
        asked = names[stride - 1 :: stride]
        self._asking += 1
        try:
            answer = await self._nodes.evaluate(
                LOOK_UP, (self._settings.prefix_of(service), packed_names(asked)), self._settings.look_up_s
            )
            found = read_answer(cast(Sequence[bytes], answer), len(asked))
        except TandemError:
            self._meter.add("tandem_redis_look_ups_total", 1.0, "failed")
            return {}
        except _UNREADABLE as error:
            event(_log, "redis_answer_unreadable", level=logging.WARNING, reason=str(error))
            self._meter.add("tandem_redis_look_ups_total", 1.0, "unreadable")
            return {}
        finally:
            self._asking -= 1
        self._meter.add("tandem_redis_look_ups_total", 1.0, "found" if found else "nothing")
        if stride == 1:
            return found
        return {holder: each._replace(held=each.held.times(stride)) for holder, each in found.items()}
