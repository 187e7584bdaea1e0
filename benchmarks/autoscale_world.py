"""A service of prefill and decode workers in seconds: what a scaling policy sees, and what its requests get.

Prefill workers take one prompt at a time, first come first served. Decode workers share sequences evenly; a step
takes a base and a part per sequence, so that a clock which counts tokens tells when each sequence ends. Pods are
ready a cold start after they were asked for.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from control_plane.autoscale import DecodeFit, PoolLoad, PoolSpeed, ServiceLoad

Rate = Callable[[float], float]
TICK_S: Final = 1.0
LOOK_S: Final = 5.0


class ServiceRequest(NamedTuple):
    """When it arrives, its prompt and its answer."""

    at: float
    prompt: int
    answer: int


@dataclass(frozen=True)
class Hardware:
    """Of one service. Speeds in tokens/s and seconds; `kv_tokens` of one decode worker."""

    prefill_tokens_per_s: float = 6000.0
    step_base_s: float = 0.014
    step_sequence_s: float = 0.0005
    sequences_max: int = 256
    kv_tokens: int = 320_000
    prefill_start_s: float = 90.0
    decode_start_s: float = 240.0

    def speeds(self) -> dict[str, PoolSpeed]:
        """As if measured."""
        decode = DecodeFit(self.step_base_s, self.step_sequence_s, 64.0)
        return {
            "prefill": PoolSpeed(1 / self.prefill_tokens_per_s, cold_start_s=self.prefill_start_s),
            "decode": PoolSpeed(decode=decode, cold_start_s=self.decode_start_s),
        }


@dataclass
class Pods:
    """Of one pool: how many are ready, and since when the others start."""

    start_s: float
    ready: int
    starting: list[float] = field(default_factory=list)
    worked_s: float = 0.0

    @property
    def wanted(self) -> int:
        return self.ready + len(self.starting)

    def scale(self, replicas: int, now: float) -> None:
        """The youngest go first."""
        while self.wanted < replicas:
            self.starting.append(now)
        while self.starting and self.wanted > replicas:
            self.starting.pop()
        self.ready = min(self.ready, replicas)

    def lose(self, now: float) -> None:
        """One that is ready is lost; another is started in its place."""
        self.ready -= 1
        self.starting.append(now)

    def tick(self, now: float) -> None:
        """A second goes by; all pods cost, ready or not."""
        self.worked_s += self.wanted * TICK_S
        while self.starting and now - self.starting[0] >= self.start_s:
            self.starting.pop(0)
            self.ready += 1

    def load(self, now: float, kv_used: float = 0.0) -> PoolLoad:
        ages = tuple(now - since for since in reversed(self.starting))
        return PoolLoad(self.wanted, self.ready, ages, kv_used)


@dataclass
class Served:
    """What requests got that have ended, side by side: seconds to the first token, and per token after it."""

    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)


class World:
    """Requests in order of arrival, and the pods at the beginning."""

    def __init__(self, hardware: Hardware, requests: Sequence[ServiceRequest], prefill: int, decode: int) -> None:
        self.hardware = hardware
        self.prefill = Pods(hardware.prefill_start_s, prefill)
        self.decode = Pods(hardware.decode_start_s, decode)
        self.served = Served()
        self.now = 0.0
        self._coming: Iterator[ServiceRequest] = iter(requests)
        self._next = next(self._coming, None)
        self._queue: deque[ServiceRequest] = deque()
        self._free_at = [0.0] * prefill
        self._handed: list[tuple[float, int, ServiceRequest]] = []
        """By the time of their first token, those that decode gets."""
        self._waiting: deque[tuple[float, ServiceRequest]] = deque()
        self._clock = 0.0
        """Tokens that every sequence has got since the beginning."""
        self._running: list[tuple[float, int, float, ServiceRequest]] = []
        self._order = 0
        self._kv = 0
        self._arrived = [0, 0]
        self._ended = [0, 0]

    def tick(self) -> None:
        """One second."""
        end = self.now + TICK_S
        while self._next is not None and self._next.at < end:
            self._queue.append(self._next)
            self._arrived[0] += 1
            self._arrived[1] += self._next.prompt
            self._next = next(self._coming, None)
        self._prefill_until(end)
        self._decode_until(end)
        self.now = end
        self.prefill.tick(end)
        self.decode.tick(end)

    @property
    def idle(self) -> bool:
        return self._next is None and not (self._queue or self._handed or self._waiting or self._running)

    def load(self) -> ServiceLoad:
        """What routers and cluster tell."""
        kv_used = self._kv / self.hardware.kv_tokens
        return ServiceLoad(
            pools={"prefill": self.prefill.load(self.now), "decode": self.decode.load(self.now, kv_used)},
            queued_requests=len(self._queue),
            queued_prompt_tokens=sum(request.prompt for request in self._queue),
            prefilling_prompt_tokens=sum(request.prompt for at, _, request in self._handed if at > self.now),
            sequences=len(self._handed) + len(self._waiting) + len(self._running),
            prefilling=len(self._handed),
            arrived_prompt_tokens=self._arrived[1],
            arrived_requests=self._arrived[0],
            output_tokens=self._ended[1],
            finished_requests=self._ended[0],
        )

    def lose(self) -> None:
        """One worker of each pool."""
        self.prefill.lose(self.now)
        self.decode.lose(self.now)

    def scale(self, prefill: int, decode: int) -> None:
        self.prefill.scale(prefill, self.now)
        self.decode.scale(decode, self.now)

    def _prefill_until(self, end: float) -> None:
        free = self._free_at
        while len(free) < self.prefill.ready:
            heapq.heappush(free, self.now)
        while len(free) > self.prefill.ready:
            heapq.heappop(free)
        while self._queue and free and free[0] < end:
            request = self._queue.popleft()
            first = max(free[0], request.at) + request.prompt / self.hardware.prefill_tokens_per_s
            heapq.heapreplace(free, first)
            self._order += 1
            heapq.heappush(self._handed, (first, self._order, request))

    def _decode_until(self, end: float) -> None:
        while self._handed and self._handed[0][0] < end:
            first, _, request = heapq.heappop(self._handed)
            self._waiting.append((first, request))
        workers, hardware = self.decode.ready, self.hardware
        while self._waiting and self._room(self._waiting[0][1], workers):
            first, request = self._waiting.popleft()
            self._order += 1
            heapq.heappush(self._running, (self._clock + request.answer, self._order, first, request))
            self._kv += request.prompt + request.answer
        if not workers:
            return
        step_s = hardware.step_base_s + hardware.step_sequence_s * len(self._running) / workers
        began, self._clock = self._clock, self._clock + TICK_S / step_s
        while self._running and self._running[0][0] <= self._clock:
            target, _, first, request = heapq.heappop(self._running)
            ended = self.now + (target - began) * step_s
            self.served.ttft_s.append(first - request.at)
            self.served.tpot_s.append(max(step_s, (ended - first) / request.answer))
            self._kv -= request.prompt + request.answer
            self._ended[0] += 1
            self._ended[1] += request.answer

    def _room(self, request: ServiceRequest, workers: int) -> bool:
        fits = self._kv + request.prompt + request.answer <= workers * self.hardware.kv_tokens
        return fits and len(self._running) < workers * self.hardware.sequences_max


def arrivals(
    rate: Rate, seconds: float, seed: int, prompt: float = 3000.0, answer: float = 500.0
) -> list[ServiceRequest]:
    """A Poisson process of a rate that changes slowly; lengths are log-normal with these means, as varied as an
    exponential and half as varied."""
    random, requests, now = Random(seed), list[ServiceRequest](), 0.0
    while True:
        now += random.expovariate(max(rate(now), 1e-3))
        if now >= seconds:
            return requests
        requests.append(ServiceRequest(now, _length(random, prompt, 0.83), _length(random, answer, 0.55)))


def _length(random: Random, mean: float, sigma: float) -> int:
    return max(1, min(32_000, round(random.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))))
