"""A simulated client: asks, listens, and goes away when it wants to or when its time is over."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from router.generation import Generation, Running
from tandem.apps.simulation.checks import CheckingSink, Outcome, Violation
from tandem.apps.simulation.resuming import ResumingClient
from tandem.apps.simulation.router_node import RouterNode
from tandem.apps.simulation.routers import Routers
from tandem.apps.simulation.slow_client import StallingClient
from tandem.apps.simulation.trace import Trace
from tandem.apps.simulation.traffic import SimRequest
from tandem.apps.simulation.truth import Oracle
from tandem.apps.simulation.watch import Broken
from tandem.core.clock import Clock
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.messages import SequenceOutput
from tandem.core.spans import TraceContext

_LATE_S = 0.05
"""Seconds by which a typed end may miss its deadline; on virtual time every timer is punctual."""
_FIND_ROUTER_S = 30.0


@dataclass(frozen=True)
class ClientEnvironment:
    """The environment that all clients of a world share."""

    seed: int
    model: str
    timeout_s: float
    clock: Clock
    routers: Routers
    oracle: Oracle
    trace: Trace
    broken: Broken


class TracingSink(CheckingSink):
    """A checking client whose every observation goes into the world's trace."""

    def __init__(self, request: SimRequest, ground: ClientEnvironment) -> None:
        now = ground.clock.now
        super().__init__(request.request_id, ground.oracle.truths[request.request_id], now, now())
        self._note = ground.trace.note

    def output(self, output: SequenceOutput) -> None:
        told = f"{output.sequence} {output.position} {output.tokens} {output.text!r} {output.finish or ''}"
        self._note(self.outcome.request_id, told)
        super().output(output)

    def _end(self, end: str, error: str) -> None:
        self._note(self.outcome.request_id, f"ended: {end} {error} {self.outcome.reason}")
        super()._end(end, error)


async def ask(
    request: SimRequest, ground: ClientEnvironment, began: float, arrived: Callable[[Outcome], None]
) -> None:
    """Be this client, from `began` on. Raises `Violation` when there is no end in time."""
    clock = ground.clock
    await asyncio.sleep(max(0.0, began + request.arrive_s - clock.now()))
    router = await _router_found(request, ground)
    ended = asyncio.Event()
    sink = TracingSink(request, ground)
    sink.ended = ended.set
    sink.broken = ground.broken
    arrived(sink.outcome)
    sink.outcome.routers.append(router.name)
    if request.steals:
        await _steal(request, ground, router, sink)
        return
    if request.resumable:
        await ResumingClient(request, sink, ground.routers, clock).live(_generation(request, ground), router)
        return
    running: Running | None = None

    def too_slow() -> None:
        router.cancel(running, "slow_client")

    stalls = request.stalls_after > 0
    way_out = StallingClient(sink, request.stalls_after, request.stalls_s, too_slow) if stalls else None
    try:
        running = await router.ask(_generation(request, ground), sink, way_out)
    except TandemError as error:
        sink.failed(error)
        return
    patience_s = _timeout_s(request, ground) + _LATE_S
    if await _ended_within(ended, min(request.cancel_after_s or patience_s, patience_s), router, clock):
        return
    if request.cancel_after_s is None or request.cancel_after_s > patience_s:
        reason = f"{request.request_id} had no end {_LATE_S:g} s after its deadline"
        raise Violation(reason, request.request_id)
    router.cancel(running, "client went away")
    sink.cancelled()


async def _steal(request: SimRequest, ground: ClientEnvironment, router: RouterNode, sink: TracingSink) -> None:
    """Try to read the answer of another tenant. Raises `Violation` when the router gives it away."""
    theirs = msgspec.structs.replace(_generation(request, ground), request_id=request.steals)
    try:
        await router.rejoin(theirs, sink, sink)
    except TandemError as error:
        sink.failed(error)
        return
    raise Violation(f"{request.request_id} may read {request.steals}, another tenant's", request.request_id)


async def _ended_within(ended: asyncio.Event, seconds: float, router: RouterNode, clock: Clock) -> bool:
    """Wait for the end, and longer by as long as the router is stopped: a stopped router can neither answer nor be
    notified."""
    began = clock.now()
    while not ended.is_set():
        left_s = began + seconds + router.frozen_s(began) - clock.now()
        if left_s <= 0 and router.frozen_since is None:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(max(left_s, 0.01)):
                await ended.wait()
    return True


async def _router_found(request: SimRequest, ground: ClientEnvironment) -> RouterNode:
    """A load balancer holds a request until there is a router that knows its workers."""
    for _ in range(int(_FIND_ROUTER_S / 0.02)):
        router = ground.routers.choose(request.request_id)
        if router is not None:
            return router
        await asyncio.sleep(0.02)
    raise Violation(f"no router could be asked for {_FIND_ROUTER_S:g} s")


def _timeout_s(request: SimRequest, ground: ClientEnvironment) -> float:
    return ground.timeout_s if request.timeout_s is None else request.timeout_s


def _generation(request: SimRequest, ground: ClientEnvironment) -> Generation:
    context = TraceContext(SeededEntropy(ground.seed, request.request_id).token(16).hex(), "00" * 7 + "01")
    return Generation(
        request_id=request.request_id,
        model=ground.model,
        tenant=request.tenant,
        tenant_salt="",
        prompt=request.prompt,
        n=request.n,
        seed=request.seed,
        sampling=request.sampling,
        stopping=request.stopping,
        timeout_s=_timeout_s(request, ground),
        received=ground.clock.now(),
        received_wall=ground.clock.wall(),
        trace=context,
        priority=request.priority,
        resume=b"" if request.resumable else None,
    )
