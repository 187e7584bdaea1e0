"""Computes a prefix where it is to be kept, by an ordinary request for one token whose text is discarded.

The request is therefore admitted, placed, given up and tried elsewhere like any other; its answer names the workers
that keep the blocks.
"""

import asyncio

import msgspec

from router.api.core import ApiCore
from router.api.request_context import RequestContext
from router.api.response import ApiResponse, Part
from router.generation import Generation, Usage
from tandem.core.errors import TandemError
from tandem.core.messages import SequenceOutput


async def run_on_one(door: ApiCore, arrival: RequestContext, generation: Generation) -> Usage:
    """Run it to its end. Raises the error it ends with; cancelled, it lets go of everything."""
    outcome = _Outcome()
    exchange = door.start(arrival, (generation,), outcome)
    try:
        async with asyncio.timeout(generation.timeout_s + door.settings.settle_s):
            return await outcome.usage
    except TimeoutError:
        problem = f"the request was not finished within {generation.timeout_s:g} s"
        raise TandemError("deadline_exceeded", problem) from None
    finally:
        exchange.abandon("nobody waits for the prefix any more")


async def run_beside(door: ApiCore, first: RequestContext, generation: Generation, usages: list[Usage]) -> Usage:
    """Compute the prefix once more, on a worker that does not keep it yet. It is a request of its own, charged like
    one. Raises the same errors as `run_on_one`."""
    arrival = door.arrivals.arrive(None, first.trace.header(), "prefix")
    arrival.caller = first.caller
    try:
        door.charge(arrival, generation.prompt_tokens)
    except TandemError as error:
        door.refused(arrival, error)
        raise
    fields = {
        "request_id": arrival.request_id,
        "received": arrival.received,
        "received_wall": arrival.received_wall,
        "trace": arrival.trace,
        "avoid": tuple((kept.worker_id, kept.epoch) for usage in usages for kept in usage.kept),
    }
    return await run_on_one(door, arrival, msgspec.structs.replace(generation, **fields))


class _Outcome:
    """An `Answer` that this process itself awaits."""

    def __init__(self) -> None:
        self.usage: asyncio.Future[Usage] = asyncio.get_running_loop().create_future()

    def part(self, exchange: ApiResponse, number: int) -> Part:
        return _Unread(exchange, number, 1)

    def finish(self, usage: Usage) -> None:
        if not self.usage.done():
            self.usage.set_result(usage)

    def fail(self, error: TandemError) -> None:
        if not self.usage.done():
            self.usage.set_exception(error)


class _Unread(Part):
    """Counts the token and drops it."""

    __slots__ = ()

    def output(self, output: SequenceOutput) -> None:
        self.delivered += len(output.tokens)
        self.exchange.first_output()
