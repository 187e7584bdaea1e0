"""Keeps a store equal to what the API server has: list in pages, then watch, and begin again when that breaks.

A list goes page by page into the store that is there, so that no two whole lists are ever held. Until its last page
has come the store has objects of both: newer ones, and those that may be gone.

A stream that ends is continued from the last version seen, bookmarks included. A version that is too old (410) means
a new list. A stream on which nothing comes for longer than bookmarks are apart is taken for dead: a connection whose
other end vanished would stay silent for ever. A kind that the server does not know is asked for again and again;
whether that means anything is for the owner to say, by `missing_s`.
"""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.kube.backoff import Backoff
from tandem.kube.cluster import Cluster, Expired, NotFound, Selector, WatchEvent
from tandem.kube.projection import Projection, without_bookkeeping
from tandem.kube.store import Key, Store

_BACKOFF: Final = Backoff(0.8, 30.0)


@dataclass(frozen=True)
class ReflectorSettings:
    """Bounds: objects per page, seconds for one page, seconds of silence on a watch (bookmarks come each minute)."""

    page: int = 500
    list_timeout_s: float = 60.0
    silence_s: float = 90.0
    backoff: Backoff = _BACKOFF


class Reflector:
    """Mirrors one selector into `store`, of each object what `keep` leaves. Run it as a task of the process: it ends
    only by being cancelled."""

    def __init__(
        self,
        cluster: Cluster,
        selector: Selector,
        clock: Clock,
        entropy: Entropy,
        settings: ReflectorSettings | None = None,
        keep: Projection = without_bookkeeping,
    ) -> None:
        self.store = Store()
        self.last_error: str | None = None
        self.heard_at: float | None = None
        """When the server last sent something (monotonic seconds). Its age is how stale the store may be."""
        self._cluster = cluster
        self._selector = selector
        self._clock = clock
        self._entropy = entropy
        self._settings = settings or ReflectorSettings()
        self._keep = keep
        self._version: str | None = None
        self._failures = 0
        self._missing_since: float | None = None
        self._synced = asyncio.Event()

    @property
    def has_synced(self) -> bool:
        """Whether the store has held a whole list at some time."""
        return self._synced.is_set()

    async def synced(self) -> None:
        """Wait for the first whole list; bound it by a timeout."""
        await self._synced.wait()

    @property
    def missing_s(self) -> float:
        """Seconds for which every answer has been that the kind does not exist; 0 where the last answer was not. The
        absence of an answer says nothing about the kind and restarts the count."""
        return 0.0 if self._missing_since is None else self._clock.now() - self._missing_since

    async def run(self) -> None:
        """List and watch, for ever."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
            except Expired:
                self._version = None
                # A server that calls every list of its own too old must not be asked without a pause.
                await self._pause("the version is too old")
            except NotFound as error:
                # No object is asked for by name: it is the kind that is not there. A version of it is worth nothing.
                self._version = None
                if self._missing_since is None:
                    self._missing_since = self._clock.now()
                await self._pause(str(error))
            except (TandemError, TimeoutError) as error:
                self._missing_since = None
                await self._pause(str(error) or "nothing was heard in time")

    async def _list(self) -> None:
        listed: set[Key] = set()
        token: str | None = None
        while True:
            async with asyncio.timeout(self._settings.list_timeout_s):
                page = await self._cluster.list_page(self._selector, self._settings.page, token)
            for obj in page.items:
                listed.add(self.store.renew(self._keep(obj)))
            token = page.token
            if token is None:
                break
        self._heard()
        self.store.retain(listed)
        self._version = page.version
        self._synced.set()

    async def _watch(self) -> None:
        """Take over changes until the stream ends, as it does every few minutes."""
        assert self._version is not None
        begun = self._clock.now()
        try:
            # Closing the stream closes its connection.
            async with aclosing(self._cluster.watch(self._selector, self._version)) as stream:
                while True:
                    try:
                        async with asyncio.timeout(self._settings.silence_s):
                            event = await anext(stream)
                    except StopAsyncIteration:
                        break
                    self._take(event)
        finally:
            lasted_s = self._clock.now() - begun
            if lasted_s >= self._settings.backoff.first_s:
                # It was there, even where nothing happened: what comes now is the first failure.
                self._failures = 0
        if lasted_s < self._settings.backoff.first_s:
            await self._pause("the watch ended as soon as it began")

    def _take(self, event: WatchEvent) -> None:
        self._heard()
        if event.type in ("added", "modified"):
            self.store.put(self._keep(event.object))
        elif event.type == "deleted":
            self.store.remove(event.object)
        self._version = event.object["metadata"]["resourceVersion"]

    def _heard(self) -> None:
        self.heard_at = self._clock.now()
        self.last_error = None
        self._failures = 0
        self._missing_since = None

    async def _pause(self, why: str) -> None:
        self._failures += 1
        self.last_error = why
        await asyncio.sleep(self._settings.backoff.jittered_s(self._failures, self._entropy))
