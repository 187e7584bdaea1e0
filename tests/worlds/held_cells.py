"""Small cells on virtual time: what a fleet keeps to when something out of the ordinary happens.

Each is compared with the same requests without what happened, or with a share that follows from the workers' speed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.fleet.fleet import Fleet, FleetSettings
from benchmarks.fleet.goodput import Window, judge
from benchmarks.fleet.ours import OursDecider, OursSettings
from benchmarks.fleet.router import Decider, Knowledge
from benchmarks.fleet.scenarios.generated import Kind, Traffic, fleet, generated, ours_settings
from benchmarks.fleet.workload import Request, Stage, Workload
from tandem.core.slo import Slo

SLO: Final = Slo(ttft_s=2.0, tpot_s=0.05)
CHATS: Final = Traffic("chats", (Kind((1, 1), (2_000, 2_000), (150, 150), (0.6, 0.6), (0.4, 0.4), (12, 12)),))
"""Prompts of 2,000 tokens in the median, four in ten of which one of twelve prefixes."""


@dataclass(frozen=True)
class Played:
    """A run that is over."""

    requests: Sequence[Request]
    fleet: Fleet
    routers: Sequence[OursDecider]

    def attainment(self, chosen: Callable[[Request], bool] = lambda request: True) -> float:
        """Of the chosen requests, the share in the objective; those that clients gave up are not counted."""
        return attained([request for request in self.requests if chosen(request)])

    def placed(self, chosen: Callable[[Request], bool] = lambda request: True) -> Counter[int]:
        """How many of the chosen requests each worker generates for."""
        return Counter(request.decode for request in self.requests if chosen(request))


def attained(requests: Sequence[Request]) -> float:
    """The share in the objective."""
    return judge(requests, SLO, Window.of(requests)).attainment


def requests_of(chosen: Traffic, seed: int, rate: float, duration_s: float) -> list[Request]:
    """Generated traffic, `rate` a second."""
    return list(generated(chosen, seed, rate, duration_s).workload.stages[0].requests)


def workers(count: int = 4, itl_target_s: float | None = 0.05, **changes: object) -> FleetSettings:
    """Unified workers as in production; `changes` are of `FleetSettings`."""
    return replace(fleet(("unified",) * count, itl_target_s), **changes)  # type: ignore[arg-type]


def router() -> OursSettings:
    """Ours, which is told the objective."""
    return ours_settings().holding(SLO)


def in_order(requests: Iterable[Request]) -> list[Request]:
    """By arrival, numbered anew."""
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    for number, request in enumerate(ordered):
        request.number = number
    return ordered


def play(
    settings: FleetSettings,
    requests: Sequence[Request],
    ours: OursSettings | None = None,
    made: Callable[[Knowledge, OursSettings], OursDecider] = lambda known, ours: OursDecider(known, ours, 1),
    around: Callable[[Callable[[Knowledge], OursDecider]], Callable[[Knowledge], Decider]] = lambda one: one,
) -> Played:
    """`made` makes a router, `around` what stands before all of them where there are several."""
    routers: list[OursDecider] = []

    def one(knowledge: Knowledge) -> OursDecider:
        routers.append(made(knowledge, ours or router()))
        return routers[-1]

    simulation = Fleet(settings, around(one))
    duration_s = max((request.arrival_s for request in requests), default=0.0)
    simulation.run(Workload("held", (Stage(1.0, duration_s, requests),)))
    return Played(requests, simulation, routers)
