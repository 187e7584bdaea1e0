"""Determines the revisions on which a request may be placed, and their order. Pure."""

from collections.abc import Collection, Iterable

from router.fleet.services import ServiceFacts
from router.generation import Generation
from router.placement.revisions import Route, routes
from router.placement.view import WorkerView


def routes_of(
    generation: Generation,
    begun: str,
    facts: ServiceFacts | None,
    here: Collection[str],
    workers: Iterable[WorkerView],
) -> tuple[Route, ...]:
    """The routes of a request; empty where any worker may take it, because no weights say how requests are split or
    all `workers` are of the one revision that gets everything. `begun` is the revision that the request has begun on,
    empty for a new request; `here` are the revisions of all workers."""
    if generation.revision:
        return (Route(generation.revision, f"revision {generation.revision} was asked for by name"),)
    if facts is None or facts.weights is None:
        return ()
    weights = facts.weights
    if weights.only is not None and len(here) == 1 and weights.only in here:
        return ()
    return routes(weights, key_of(generation), begun, usable(workers) if begun else ())


def key_of(generation: Generation) -> str:
    """The key that stays the same over a conversation: the client's own key, else how the conversation began. Without
    either, the request stands alone under its id."""
    if generation.cache_key:
        return generation.cache_key
    return f"{generation.tenant_salt}\x00{generation.beginning}" if generation.beginning else generation.request_id


def usable(workers: Iterable[WorkerView]) -> frozenset[str]:
    """The revisions that a request which has begun on one of them can go on with."""
    return frozenset(
        worker.revision
        for worker in workers
        if worker.role not in ("prefill", "store") and worker.ready and not worker.draining
    )
