"""KV pools that are full: who cannot have memory in time is refused when it comes, what was begun ends, and the pools
stay in use. Real services on virtual time; clients in a closed loop that come again when they are told to."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from router.fleet.services import ServiceFacts
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.core.slo import Slo
from tests.sim import test_deadlines
from tests.sim.test_deadlines import MODEL, Heard, More, Stalled

CLIENTS = 25
SECONDS = 60.0
BLOCKS = 85
SETTLED_S = 10.0
"""A line of which no pace has been seen refuses by a guess."""
LATE = 0.01
"""The share of those refused after that which may have waited first."""


@dataclass
class Seen:
    """What the clients of one platform saw."""

    answers: list[Heard] = field(default_factory=list)
    refused: list[TandemError] = field(default_factory=list)
    late: int = 0
    """Of those refused that asked once the pace had been seen: how many waited first."""
    broken: list[TandemError] = field(default_factory=list)

    @property
    def codes(self) -> Counter[str]:
        return Counter(each.code for each in (*self.refused, *self.broken))


async def client(stalled: Stalled, seen: Seen, draw: random.Random, until: float) -> None:
    """One chat after the other, each of most of a pool at most."""
    while stalled.loop.time() < until:
        tokens, output = draw.randint(300, 900), draw.randint(120, 330)
        try:
            settled = stalled.loop.time() > until - SECONDS + SETTLED_S
            heard, _ = stalled.ask(tokens=tokens, output=output)
        except TandemError as refused:
            error = refused
            seen.refused.append(error)
        else:
            await heard.ended.wait()
            if heard.error is None:
                heard.check_whole(output)
                if stalled.loop.time() < until:
                    seen.answers.append(heard)
                continue
            error, begun = heard.error, bool(heard.positions)
            (seen.broken if begun else seen.refused).append(error)
            seen.late += not begun and settled
        await asyncio.sleep(error.retry_after_s or 1.0)


def seen_by_clients(clients: int, queue_s: float, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Of a platform whose requests may wait so long for a worker."""
    monkeypatch.setattr(test_deadlines, "MODEL", replace(MODEL, blocks=BLOCKS))

    async def main(loop: VirtualLoop) -> Seen:
        stalled = Stalled(loop, Deadlines(queue_s=queue_s), "p0 d0 d1", More(), "auto")
        stalled.platform.start()
        await stalled.platform.until(stalled.platform.ready, 60.0, "the platform is not ready")
        await asyncio.sleep(1.0)
        seen, until = Seen(), loop.time() + SECONDS
        await asyncio.gather(*(client(stalled, seen, random.Random(number), until) for number in range(clients)))
        await stalled.free()
        return seen

    return run(main, limit_s=5_000.0)


def test_who_cannot_have_kv_memory_in_time_is_refused_at_once_and_pools_stay_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patient = seen_by_clients(CLIENTS, 600.0, monkeypatch)
    assert not patient.codes
    seen = seen_by_clients(CLIENTS, 10.0, monkeypatch)
    assert not seen.broken, "an answer that has begun goes on to its end"
    assert set(seen.codes) == {"queue_full"}
    assert all((error.retry_after_s or 0.0) >= 1.0 for error in seen.refused)
    # Some hundred answers of different lengths: a twentieth more or less is chance.
    assert len(seen.answers) >= 0.9 * len(patient.answers)
    assert seen.late <= LATE * len(seen.refused)


TTFT_S = 2.0
CARRIED = {"p0 d0 d1": 30.0, "u0 u1": 24.0}
"""Requests a second that hold it."""
OFFERED_S = 9.0


def offered(rate: float, workers: str) -> tuple[list[Heard], list[TandemError]]:
    """What became of an open loop of so many requests a second, for some time, with an objective for first tokens."""

    async def main(loop: VirtualLoop) -> tuple[list[Heard], list[TandemError]]:
        stalled = Stalled(loop, Deadlines(), workers, More(), "auto")
        stalled.platform.start()
        await stalled.platform.until(stalled.platform.ready, 60.0, "the platform is not ready")
        life = stalled.platform.router.life
        assert life is not None
        life.fleet.services._facts[MODEL.name] = ServiceFacts("service", MODEL.name, slo=Slo(ttft_s=TTFT_S))
        draw, heard, refused = random.Random(1), list[Heard](), list[TandemError]()
        until = loop.time() + OFFERED_S
        while loop.time() < until:
            try:
                heard.append(stalled.ask(tokens=draw.randint(100, 900), output=draw.randint(10, 60))[0])
            except TandemError as error:
                refused.append(error)
            await asyncio.sleep(draw.expovariate(rate))
        for each in heard:
            await each.ended.wait()
        await stalled.free()
        return heard, refused

    return run(main, limit_s=5_000.0)


@pytest.mark.parametrize(
    ("workers", "times", "least"), [("p0 d0 d1", 2, 0.99), ("u0 u1", 5, 0.99), ("p0 d0 d1", 20, 0.95)]
)
def test_what_is_accepted_under_overload_keeps_its_objective(workers: str, times: int, least: float) -> None:
    heard, refused = offered(CARRIED[workers] * times, workers)
    kept = sum(each.error is None and each.times[0] <= TTFT_S for each in heard)
    assert kept >= least * len(heard)
    assert kept >= 0.9 * CARRIED[workers] * OFFERED_S
    assert {error.code for error in refused} == {"queue_full"}
    assert all((error.retry_after_s or 0.0) >= 1.0 for error in refused)


def test_nobody_is_refused_while_pools_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = seen_by_clients(3, 10.0, monkeypatch)
    assert not seen.codes
    assert len(seen.answers) > 10
