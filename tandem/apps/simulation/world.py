"""One simulated platform under traffic and faults: the real router, workers, links and KV transfer, virtual time."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Final

from kv_transfer.tiers.settings import TierSettings
from router.settings import RouterSettings, SplitSettings
from tandem.apps.simulation.abusers import draw_abuse
from tandem.apps.simulation.agreement import disagreement
from tandem.apps.simulation.checks import Outcome, Violation
from tandem.apps.simulation.client import ClientEnvironment, ask
from tandem.apps.simulation.demand import demand_of
from tandem.apps.simulation.faults.drawing import FaultProfile, draw_faults
from tandem.apps.simulation.faults.injector import Fault, FaultInjector
from tandem.apps.simulation.faults.store_trials import draw_store_trials
from tandem.apps.simulation.invariants import Invariants
from tandem.apps.simulation.judge import first_objection
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.apps.simulation.network import NetworkProfile
from tandem.apps.simulation.platform import Platform, Shape, named_workers
from tandem.apps.simulation.quiet import quiet_logs
from tandem.apps.simulation.topology import PlatformTopology
from tandem.apps.simulation.trace import Trace
from tandem.apps.simulation.traffic import SimRequest, TrafficProfile, draw_traffic
from tandem.apps.simulation.truth import build_oracle
from tandem.core.deadlines import Deadlines
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel

_CALM: Final = TrafficProfile(
    requests=4, span_s=0.5, long_prompt_share=0.0, branches_share=0.25, cancel_share=0.0, output_tokens=(1, 8)
)
"""The traffic that follows when all faults are over."""
_CALM_WITHIN_S: Final = 10.0
_LEASE_S: Final = Deadlines().orphan_lease_s
"""Seconds for which a resumable attempt waits for another router after its own was lost."""
_FREE_WITHIN_S: Final = 2.0
_LOOK_S: Final = 0.4
"""Seconds between two looks at the split, in worlds where the split changes."""
_PAIRED_WITHIN_S: Final = 30.0
"""The longest back-off of a pair, and the canaries of all others before its own."""
_DECIDED_WITHIN_S: Final = 60.0
"""Seconds within which routers agree on a split: a lease that is not renewed, the time a router listens before
claiming it, and twice as much to spare."""
_AGREED_WITHIN_S: Final = 20.0
"""Seconds within which Redis states the truth about all nodes: the longest wait between two attempts, then all blocks
anew."""


@dataclass(frozen=True)
class WorldSettings:
    """One kind of world. A seed draws its traffic, delays and faults."""

    prefill: int = 2
    decode: int = 2
    auto: bool = False
    """All of them are of role `auto`, and the split among them changes all the time."""
    model: SimulatedModel = field(
        default_factory=lambda: SimulatedModel(blocks=160, token_s=0.0001, base_s=0.008, eos_rate=0.005)
    )
    scheduler: SchedulerSettings = field(default_factory=lambda: SchedulerSettings(max_batched_tokens=256))
    router: RouterSettings = field(default_factory=RouterSettings)
    network: NetworkProfile = field(default_factory=NetworkProfile)
    traffic: TrafficProfile = field(default_factory=TrafficProfile)
    faults: FaultProfile = field(default_factory=FaultProfile)
    tiers: TierSettings = field(default_factory=TierSettings)
    """The tiers of each worker below its pool; none by default."""
    fabric: PlatformTopology = field(default_factory=PlatformTopology)
    """Stores, Redis, more routers; none by default."""
    skew_s: float = 0.0
    """Wall clocks differ from the right time by at most this much."""
    check_every: int = 16
    """Rounds of the event loop between two looks at the invariants: about what a step of one worker takes."""
    settle_s: float = _LEASE_S + 2.0
    """Virtual time within which everything must be free again after the last request: the lease of a resumable
    attempt whose router was lost with it, and a moment to notice that."""
    timeout_s: float = 300.0
    stall_s: float = 8.0
    """Seconds that a request may make no progress: longer than a frozen process, a partition or a missing worker
    holds it up, shorter than any lease."""


@dataclass(frozen=True)
class Script:
    """The events of a world: its requests in order of arrival, those of abusers last; its faults in order of time."""

    requests: tuple[SimRequest, ...]
    faults: tuple[Fault, ...]


@dataclass(frozen=True)
class Report:
    """The result of one seed. `trace` is a digest over every output with its virtual time."""

    seed: int
    outcomes: tuple[Outcome, ...]
    faults: tuple[Fault, ...]
    corrupted: int
    """Blocks that were changed on their way or in their holder's memory."""
    handed_off: int
    """Attempts that went through prefill, transfer and decode."""
    refused: int
    """Pulled blocks that did not verify or did not come, and were computed instead."""
    brought: dict[str, int]
    """Blocks fetched instead of being computed, by where they were found."""
    virtual_s: float
    rounds: int
    trace: str
    features: tuple[str, ...] = ()
    """Features of the world beyond one router and workers with a pool."""
    looked_up: dict[str, int] = field(default_factory=dict)
    """Prompts looked up in Redis, by outcome."""


def script(settings: WorldSettings, seed: int) -> Script:
    """Draw the requests and faults of a seed."""
    requests = draw_traffic(settings.traffic, seed)
    abuse = draw_abuse(settings.traffic, seed, requests)
    names = tuple(name for name, _ in workers(settings))
    fabric = settings.fabric
    faults = draw_faults(settings.faults, seed, names, fabric.store_names, fabric.router_names)
    trials = draw_store_trials(settings.faults, seed, names, fabric.store_names, fabric.router_names)
    return Script((*requests, *abuse), tuple(sorted((*faults, *trials), key=lambda fault: fault.at_s)))


def simulate(settings: WorldSettings, seed: int, given: Script | None = None) -> Report:
    """Run one seed, with the script `given` instead of its own when there is one.

    Raises `Violation`, `AssertionError`, `Deadlock` or `TimeLimit` when a promise is broken; `lines_of` gives the
    details.
    """
    world: list[World] = []

    async def main(loop: VirtualLoop) -> Report:
        world.append(World(settings, seed, loop, given or script(settings, seed)))
        loop.after_step = world[0].look
        return await world[0].live()

    try:
        with quiet_logs():
            return run(main, limit_s=settings.timeout_s + settings.settle_s + 600.0)
    except Exception as error:  # noqa: BLE001 - the edge of a simulation: whatever it is, its story goes with it
        cause = _leaf(error)
        if world:
            for line in world[0].story(cause):
                cause.add_note(line)
        raise cause from None


class World:
    """The platform of one seed, its clients and its misfortunes."""

    def __init__(self, settings: WorldSettings, seed: int, loop: VirtualLoop, script: Script) -> None:
        self._settings = settings
        self._seed = seed
        self._loop = loop
        self._script = script
        self._clock = LoopClock(loop)
        self._trace = Trace(self._clock.now)
        self._router_settings = _router_settings(settings, seed)
        self._calm = draw_traffic(_CALM, seed, "calm")
        model = settings.model
        oracle = build_oracle(model, (*script.requests, *self._calm))
        shape = Shape(
            workers(settings),
            model,
            settings.scheduler,
            self._router_settings,
            settings.network,
            settings.skew_s,
            settings.tiers,
            settings.fabric,
        )
        self._platform = platform = Platform(shape, seed, loop, self._trace, oracle.names, self._note)
        self._clients = ClientEnvironment(
            seed, model.name, settings.timeout_s, self._clock, platform.routers, oracle, self._trace, self._note
        )
        self._injector = FaultInjector(loop, self._router_settings.deadlines, platform, self._trace)
        self._invariants = Invariants(
            platform, self._router_settings, model.name, settings.stall_s, self._injector.calm_s
        )
        self._outcomes: list[Outcome] = []
        self._rounds = 0
        self._violation: Violation | None = None

    # -- life --

    async def live(self) -> Report:
        """Start, serve all traffic through all faults, wait until nothing is held any more, and serve once more."""
        platform = self._platform
        platform.start()
        await platform.until(platform.ready, 30.0, "the platform is not ready")
        began = self._clock.now()
        async with asyncio.TaskGroup() as group:
            for fault in self._script.faults:
                group.create_task(self._injector.carry_out(fault, began), name=f"fault {fault}")
            for request in self._script.requests:
                group.create_task(ask(request, self._clients, began, self._outcomes.append), name=request.request_id)
        self._injector.calm()
        await platform.until(lambda: not platform.held(), self._settings.settle_s, "something is still held")
        self._judge()
        await self._agree()
        await self._serve_calm()
        return self._report(began)

    async def _agree(self) -> None:
        """Check that Redis soon states the truth about all nodes once there are no faults."""

        def wrong() -> str | None:
            return disagreement(self._platform)

        await self._platform.until(lambda: not wrong(), _AGREED_WITHIN_S, "Redis has not caught up", wrong)

    async def _serve_calm(self) -> None:
        """Check that without faults the platform serves as if there had never been any: correct answers, soon, and
        everything free at once."""
        platform = self._platform
        await platform.until(platform.ready, _CALM_WITHIN_S, "the platform has not recovered")
        await platform.until(platform.routers.paired, _PAIRED_WITHIN_S, "a pair of workers has not been proved again")
        if self._settings.auto:
            what = "not one router alone decides who takes prompts for others"
            await platform.until(platform.routers.agreed, _DECIDED_WITHIN_S, what, platform.routers.deciding)
        began, outcomes = self._clock.now(), list[Outcome]()
        async with asyncio.TaskGroup() as group:
            for request in self._calm:
                group.create_task(ask(request, self._clients, began, outcomes.append), name=request.request_id)
        for outcome in outcomes:
            if outcome.end != "done" or outcome.ended_s is None or outcome.ended_s > _CALM_WITHIN_S:
                reason = (
                    f"{outcome.request_id} was {outcome.end} {outcome.error} after {outcome.ended_s} s without faults"
                )
                raise Violation(reason, outcome.request_id)
        await platform.until(lambda: not platform.held(), _FREE_WITHIN_S, "something is still held without faults")

    def _report(self, began: float) -> Report:
        return Report(
            self._seed,
            tuple(self._outcomes),
            self._script.faults,
            self._platform.network.corrupted + self._injector.damaged + self._injector.rotten,
            self._platform.meter.sum("tandem_placements_total", "disaggregated"),
            self._platform.meter.refused_blocks(),
            self._platform.meter.onboarded_blocks(),
            self._clock.now() - began,
            self._loop.steps,
            self._trace.hexdigest(),
            features(self._settings),
            self._platform.meter.looked_up(),
        )

    def look(self) -> None:
        """Invariants, after a round of the event loop."""
        self._rounds += 1
        if self._violation is not None:
            raise self._violation
        if self._injector.damaging:
            self._injector.tick()
        if self._rounds % self._settings.check_every == 0:
            self._invariants.check()

    def story(self, cause: BaseException) -> tuple[str, ...]:
        """The latest lines about what went wrong."""
        return self._trace.tail(cause.request_id if isinstance(cause, Violation) else "")

    def _note(self, violation: Violation) -> None:
        if self._violation is None:
            self._violation = violation

    def _judge(self) -> None:
        requests = {request.request_id: request for request in self._script.requests}
        nodes, invariants = self._platform.nodes, self._invariants
        invariants.strikes = [at for at, name in self._injector.struck if name in nodes and nodes[name].decodes]
        pools = sum(node.decodes for node in nodes.values())
        invariants.demands = [
            demand_of(requests[outcome.request_id], outcome, self._settings.model, pools)
            for outcome in self._outcomes
        ]
        found = first_objection(requests, self._outcomes, self._router_settings, invariants.record)
        if found is not None:
            raise Violation(f"{found[0]}: {found[1]}", found[0])


def workers(settings: WorldSettings) -> tuple[tuple[str, str], ...]:
    """Names and roles of a world's workers."""
    if settings.auto:
        return tuple((f"a{index}", "auto") for index in range(settings.prefill + settings.decode))
    return named_workers(settings.prefill, settings.decode)


def features(settings: WorldSettings) -> tuple[str, ...]:
    """The features of a world beyond one router and workers with a pool, in words."""
    fabric = settings.fabric
    having = {
        "own tiers": settings.tiers.wanted,
        "store": fabric.stores > 0,
        "store without links": fabric.stores > 0 and not fabric.linked,
        "Redis": bool(fabric.redis.urls),
        "Redis never there": fabric.redis_down,
        "workers without events": bool(fabric.silent),
        "two routers": fabric.routers > 1,
        "a split that changes": settings.auto,
        "abusers": settings.traffic.abusers > 0,
    }
    return tuple(feature for feature, there in having.items() if there)


def _router_settings(settings: WorldSettings, seed: int) -> RouterSettings:
    """Every second seed hands off whatever can be handed off, so that short prompts travel too."""
    router = replace(settings.router, split=SplitSettings(look_s=_LOOK_S)) if settings.auto else settings.router
    if seed % 2 == 0:
        return router
    return replace(router, placement=replace(router.placement, prefer="disaggregated"))


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
