"""Scaling policies on simulated days: who holds the SLO, and for how many worker-hours.

`python -m benchmarks.autoscale`. Every policy knows the same speeds and limits and sees the same load every five
seconds. *pool by pool* is the usual one: each pool follows its own metric (outstanding prompt tokens, running
sequences) with an autoscaler's tolerance and stabilisation. *fixed* has what the peak needs all the time.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, pi, sin
from typing import Final, NamedTuple

import msgspec

from benchmarks.autoscale_world import LOOK_S, Hardware, Rate, ServiceRequest, World, arrivals
from benchmarks.rounds import Check, table
from control_plane.autoscale import History, PoolLoad, ServiceLoad, decide
from control_plane.autoscale.history import Recommended, stabilised
from tandem.spec.pool import Autoscaling, Pool, Role, ScheduledFloor
from tandem.spec.rollout import Slo
from tandem.spec.service import Spec

TTFT_S: Final = 3.0
TPOT_S: Final = 0.04
_WINDOW_S: Final = 300
_MOST: Final = 16
_KV_FULL: Final = 0.75
_ENDLESS: Final = 10_000
_ROLES: Final[tuple[Role, ...]] = ("prefill", "decode")
_TOLERANCE: Final = 0.1
_HOUR_S: Final = 3600.0

Policy = Callable[[ServiceLoad, float], tuple[int, int]]


class Day(NamedTuple):
    """A load: requests/s over time, how long it lasts, and when one worker of each pool is lost, if ever."""

    name: str
    rate: Rate
    seconds: float
    loss_s: float | None = None


def _sine(now: float) -> float:
    """A day in half a day: up and down twice as fast."""
    return 3.2 - 2.7 * sin(pi / 2 + 2 * pi * now / (12 * _HOUR_S))


def _bursts(now: float) -> float:
    """Quiet, and every hour four times as much for half of it, within a second."""
    return 5.0 if int(now // 1800) % 2 else 1.25


def _ramp(now: float) -> float:
    """From hardly anything to the most in a quarter of an hour, and down again as fast."""
    return max(0.3, min(8.0, now / 112, (5400 - now) / 112))


DAY: Final = Day("day", _sine, 12 * _HOUR_S)
RAMP: Final = Day("ramp", _ramp, 1.75 * _HOUR_S)
BURSTS: Final = Day("bursts", _bursts, 4 * _HOUR_S)
LOSS: Final = Day("loss", lambda now: min(5.0, 0.5 + now / 240), 1.5 * _HOUR_S, 1.0 * _HOUR_S)
_EVERY_BURST: Final = ScheduledFloor("30 * * * *", 1800, 5)


def spec(spare: int = 0, schedule: tuple[ScheduledFloor, ...] = ()) -> Spec:
    """The service that is scaled."""
    scaling = Autoscaling(_MOST, 1, scale_down_stabilization_seconds=_WINDOW_S, schedule=schedule)
    pools = tuple(Pool(name, name, autoscaling=scaling, spare=spare) for name in _ROLES)
    return Spec(pools=pools, slo=Slo(ttft_ms=round(TTFT_S * 1e3), tpot_ms=round(TPOT_S * 1e3)))


class Coupled:
    """What Tandem decides."""

    def __init__(self, hardware: Hardware, of: Spec | None = None) -> None:
        self._spec = of or spec()
        self._speeds = hardware.speeds()
        self._history = History()

    def __call__(self, load: ServiceLoad, now: float) -> tuple[int, int]:
        scaling = decide(self._spec, load, self._speeds, self._history, now)
        self._history = scaling.history
        return scaling.pools["prefill"].replicas, scaling.pools["decode"].replicas


class Uncoupled:
    """The same needs, each pool as if the other one could do anything: prefill beside a decode pool without end, and
    decode beside prefill of unknown speed."""

    def __init__(self, hardware: Hardware) -> None:
        self._speeds = hardware.speeds()
        endless = Pool("decode", "decode", replicas=_ENDLESS)
        service = spec()
        self._prefill = msgspec.structs.replace(service, pools=(service.pools[0], endless))
        self._decode = service
        self._histories = [History(), History()]

    def __call__(self, load: ServiceLoad, now: float) -> tuple[int, int]:
        beside = replace(load, pools={**load.pools, "decode": PoolLoad(_ENDLESS, _ENDLESS)})
        prefill = decide(self._prefill, beside, self._speeds, self._histories[0], now)
        decode = decide(self._decode, load, {"decode": self._speeds["decode"]}, self._histories[1], now)
        self._histories = [prefill.history, decode.history]
        return prefill.pools["prefill"].replicas, decode.pools["decode"].replicas


class PoolByPool:
    """Two autoscalers that know nothing of each other."""

    def __init__(self, hardware: Hardware, share: float = 1.0) -> None:
        """Targets are this share of what holds the SLO."""
        self._tokens = hardware.prefill_tokens_per_s * TTFT_S * share
        decode = hardware.speeds()["decode"].decode
        assert decode is not None
        self._sequences = decode.sequences_within(TPOT_S) * share
        self._past: dict[str, Recommended] = {"prefill": (), "decode": ()}

    def __call__(self, load: ServiceLoad, now: float) -> tuple[int, int]:
        prefill, decode = load.pools["prefill"], load.pools["decode"]
        tokens = load.outstanding_prompt_tokens / self._tokens
        sequences = max(load.decoding / self._sequences, decode.kv_used / _KV_FULL)
        return (
            self._scaled("prefill", tokens, prefill.wanted, now),
            self._scaled("decode", sequences, decode.wanted, now),
        )

    def _scaled(self, pool: str, load: float, wanted: int, now: float) -> int:
        needed = wanted if abs(load / wanted - 1) <= _TOLERANCE else min(_MOST, max(1, ceil(load)))
        replicas, self._past[pool] = stabilised(self._past[pool], needed, _WINDOW_S, now)
        return replicas


@dataclass(frozen=True)
class PolicyResult:
    """Of one policy on one day. Shares are of requests that held the SLO, the first one of both times."""

    held: float
    ttft_held: float
    tpot_held: float
    ttft_p99_s: float
    tpot_p99_s: float
    worker_hours: float
    changes: int


def play(
    policy: Policy, day: Day, requests: Sequence[ServiceRequest], hardware: Hardware, start: tuple[int, int]
) -> PolicyResult:
    """Until every request has ended, an hour after the last at most."""
    world, changes = World(hardware, requests, *start), 0
    last = requests[-1].at + _HOUR_S
    while not world.idle and world.now < last:
        if world.now % LOOK_S == 0:
            before = (world.prefill.wanted, world.decode.wanted)
            wanted = policy(world.load(), world.now)
            changes += wanted != before
            world.scale(*wanted)
        if world.now == day.loss_s:
            world.lose()
        world.tick()
    served = world.served
    never = [_HOUR_S] * (len(requests) - len(served.tpot_s))
    ttft, tpot = sorted(served.ttft_s) + never, sorted(served.tpot_s) + never
    both = sum(a <= TTFT_S and b <= TPOT_S for a, b in zip(served.ttft_s, served.tpot_s, strict=True))
    return PolicyResult(
        held=both / len(requests),
        ttft_held=sum(each <= TTFT_S for each in ttft) / len(requests),
        tpot_held=sum(each <= TPOT_S for each in tpot) / len(requests),
        ttft_p99_s=ttft[len(ttft) * 99 // 100],
        tpot_p99_s=tpot[len(tpot) * 99 // 100],
        worker_hours=(world.prefill.worked_s + world.decode.worked_s) / _HOUR_S,
        changes=changes,
    )


def contenders(day: Day, hardware: Hardware) -> dict[str, tuple[Policy, tuple[int, int]]]:
    """Policies by name, with the workers that they find at the beginning."""
    tandem: dict[str, tuple[Policy, tuple[int, int]]] = {"Tandem": (Coupled(hardware), (1, 1))}
    if day is LOSS:
        return tandem | {"Tandem, spare 1": (Coupled(hardware, spec(spare=1)), (1, 1))}
    if day is BURSTS:
        tandem["Tandem, schedule"] = (Coupled(hardware, spec(schedule=(_EVERY_BURST,))), (1, 1))
    return tandem | {
        "uncoupled": (Uncoupled(hardware), (1, 1)),
        "pool by pool": (PoolByPool(hardware), (1, 1)),
        "pool by pool, 60 %": (PoolByPool(hardware, 0.6), (1, 1)),
        "fixed": (lambda load, now: (7, 5), (7, 5)),
    }


def compare(day: Day, hardware: Hardware, seed: int = 1) -> dict[str, PolicyResult]:
    """Every policy on the same requests."""
    requests = arrivals(day.rate, day.seconds, seed)
    return {
        name: play(policy, day, requests, hardware, start)
        for name, (policy, start) in contenders(day, hardware).items()
    }


def _row(day: Day, name: str, result: PolicyResult) -> tuple[str, ...]:
    shares = (f"{share:.2%}" for share in (result.held, result.ttft_held, result.tpot_held))
    times = (f"{result.ttft_p99_s:.2f}", f"{result.tpot_p99_s * 1e3:.1f}")
    return (day.name, name, *shares, *times, f"{result.worker_hours:.1f}", f"{result.changes}")


def main() -> int:
    results = {day.name: compare(day, Hardware()) for day in (DAY, RAMP, BURSTS, LOSS)}
    rows = [_row(day, name, each) for day in (DAY, RAMP, BURSTS, LOSS) for name, each in results[day.name].items()]
    print(f"SLO: TTFT {TTFT_S:g} s, TPOT {TPOT_S * 1e3:g} ms, for 99 of 100 requests")
    header = (
        "load",
        "policy",
        "both held",
        "TTFT held",
        "TPOT held",
        "TTFT p99 s",
        "TPOT p99 ms",
        "hours",
        "steps",
    )
    print(table(header, rows))
    bursts, loss = results["bursts"], results["loss"]["Tandem, spare 1"]
    checks = (
        Check("share that held the SLO on the day", results["day"]["Tandem"].held, 0.99, at_least=True),
        Check("share that held the SLO on the ramp", results["ramp"]["Tandem"].held, 0.99, at_least=True),
        Check("share that held it in bursts with a schedule", bursts["Tandem, schedule"].held, 0.98, at_least=True),
        Check("share that held it with a worker of each pool lost", loss.held, 0.99, at_least=True),
        Check(
            "TPOT p99 in bursts over that of uncoupled pools",
            bursts["Tandem"].tpot_p99_s / bursts["uncoupled"].tpot_p99_s,
            0.5,
            at_least=False,
        ),
    )
    for check in checks:
        print(check.line())
    return 0 if all(check.met for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
