"""The keys that have work: each at most once in the queue and never with two workers."""

import asyncio
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tandem.core.clock import Clock
from tandem.kube.backoff import Backoff

K = TypeVar("K")

_BACKOFF: Final = Backoff(0.005, 1000.0)


@dataclass(frozen=True)
class QueueSettings:
    """Waits of a key that fails, and how many retries per second all keys have together."""

    backoff: Backoff = _BACKOFF
    retries_per_s: float = 10.0
    retries_burst: int = 100


class WorkQueue(Generic[K]):
    """First come, first served. A key that is added while a worker has it comes back when that worker is done."""

    def __init__(self, clock: Clock, settings: QueueSettings | None = None) -> None:
        self._clock = clock
        self._settings = settings or QueueSettings()
        self._waiting: dict[K, None] = {}
        self._working: dict[K, None] = {}
        self._again: dict[K, None] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._tokens = float(self._settings.retries_burst)
        self._refilled = clock.now()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no key is being worked on and none waits now; keys that are to come later do not count."""
        return not (self._waiting or self._working)

    def add(self, key: K) -> None:
        """Queue `key` now."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._working:
            self._again[key] = None
        elif key not in self._waiting:
            self._waiting[key] = None
            self._filled.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Queue `key` after `seconds`; of several such times the earliest counts."""
        if key in self._waiting or key in self._again:
            return
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self.add, key)

    def retry(self, key: K) -> None:
        """Working on `key` failed: come back to it, the later the more often it has failed in a row."""
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        self.add_after(key, max(self._settings.backoff.wait_s(failures), self._token_wait_s()))

    def forget(self, key: K) -> None:
        """Working on `key` succeeded: its failures no longer count."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key; the caller calls `done` with it in any case."""
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._working[key] = None
        return key

    def done(self, key: K) -> None:
        """The worker that got `key` is done with it; a key that was added meanwhile is queued again."""
        del self._working[key]
        if key in self._again:
            del self._again[key]
            self.add(key)

    def close(self) -> None:
        """Cancel what is to come later."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _token_wait_s(self) -> float:
        """Take one token of the bucket that all keys share; the seconds until it is there."""
        now = self._clock.now()
        refill = (now - self._refilled) * self._settings.retries_per_s
        self._tokens = min(float(self._settings.retries_burst), self._tokens + refill) - 1.0
        self._refilled = now
        return max(0.0, -self._tokens / self._settings.retries_per_s)
