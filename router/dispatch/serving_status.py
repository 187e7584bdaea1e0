"""Describes the state of a router's services, per revision and altogether: `GET /v1/revisions`."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from router.dispatch.deps import DispatchDeps
from router.dispatch.phase import Phase
from router.dispatch.request_state import RequestState
from router.dispatch.tallies import ModelTally, Tallies, Tally
from router.fleet.services import ServiceRegistry


class RevisionListing(msgspec.Struct, frozen=True):
    """One revision of a model. `requests`, `errors` and `slo_misses` only grow while `incarnation` stays."""

    service: str
    """`namespace/name`; where services are not known it is the model."""
    namespace: str
    model: str
    revision: str
    weight: int | None
    """Parts of new requests; None while weights are not known."""
    requests: int
    errors: int
    slo_misses: int
    in_flight_requests: int


class ServiceListing(msgspec.Struct, frozen=True):
    """One model, whether it has workers or not. What is queued is not placed on any worker yet, what is in flight
    is; `in_flight_prompt_tokens` are of prompts whose first token has not come. The last four only grow."""

    service: str
    namespace: str
    model: str
    queued_requests: int
    queued_prompt_tokens: int
    oldest_wait_s: float
    in_flight_requests: int
    in_flight_prompt_tokens: int
    requests: int
    """Requests that have arrived."""
    prompt_tokens: int
    """Prompt tokens that placed requests were expected to have computed."""
    output_tokens: int
    """Output tokens of requests that have ended."""
    unplaced: int
    """Requests that failed without ever being placed."""


class ServingStatus(msgspec.Struct, frozen=True):
    """The answer. `incarnation` is drawn anew by every router process: its counters begin at 0."""

    object: str
    incarnation: str
    data: tuple[RevisionListing, ...]
    services: tuple[ServiceListing, ...]

    def of(self, models: Sequence[str]) -> "ServingStatus":
        """The part of the status that concerns these models; all of it where none is named."""
        if not models:
            return self
        data = tuple(each for each in self.data if each.model in models)
        return ServingStatus(
            self.object, self.incarnation, data, tuple(s for s in self.services if s.model in models)
        )


def serving_status(
    requests: Iterable[RequestState], tallies: Tallies, services: ServiceRegistry, tools: DispatchDeps
) -> ServingStatus:
    """The status of every model that belongs to a service or has been asked for. Each request that is held is looked
    at once."""
    tallies.incarnation = tallies.incarnation or tools.entropy.token(8).hex()
    now = tools.clock.now()
    held: dict[str, list[RequestState]] = {}
    for request in requests:
        if request.phase is not Phase.OVER:
            held.setdefault(request.generation.model, []).append(request)
    known = (each.model for each in services.all())
    models = sorted({*held, *tallies.by_model, *services.known, *known})
    revisions = [each for model in models for each in _revisions(model, held.get(model, ()), tallies, services)]
    listed = [_service(model, held.get(model, ()), tallies, services, now) for model in models]
    return ServingStatus("list", tallies.incarnation, tuple(revisions), tuple(listed))


def _service(
    model: str, requests: Sequence[RequestState], tallies: Tallies, services: ServiceRegistry, now: float
) -> ServiceListing:
    queued = [request for request in requests if _waits(request)]
    begun = [request for request in requests if not _waits(request) and not request.accepted]
    counted = tallies.by_model.get(model) or ModelTally()
    return ServiceListing(
        *_called(model, services),
        model=model,
        queued_requests=len(queued),
        queued_prompt_tokens=sum(request.generation.prompt_tokens for request in queued),
        oldest_wait_s=max((now - request.arrived for request in queued), default=0.0),
        in_flight_requests=len(requests) - len(queued),
        in_flight_prompt_tokens=sum(request.generation.prompt_tokens for request in begun),
        requests=counted.requests,
        prompt_tokens=counted.prompt_tokens,
        output_tokens=counted.output_tokens,
        unplaced=counted.unplaced,
    )


def _revisions(
    model: str, requests: Sequence[RequestState], tallies: Tallies, services: ServiceRegistry
) -> list[RevisionListing]:
    facts = services.of(model)
    weights = None if facts is None or facts.weights is None else dict(facts.weights.shares)
    counted: Mapping[str, Tally] = {
        revision: tally for (of, revision), tally in tallies.by_revision.items() if of == model
    }
    running: dict[str, int] = {}
    for request in requests:
        if not _waits(request):
            running[request.revision] = running.get(request.revision, 0) + 1
    return [
        RevisionListing(
            *_called(model, services),
            model=model,
            revision=revision,
            weight=None if weights is None else weights.get(revision, 0),
            requests=tally.requests,
            errors=tally.errors,
            slo_misses=tally.slo_misses,
            in_flight_requests=running.get(revision, 0),
        )
        for revision in sorted({*counted, *running, *(weights or ())})
        for tally in (counted.get(revision) or Tally(),)
    ]


def _called(model: str, services: ServiceRegistry) -> tuple[str, str]:
    facts = services.of(model)
    return (model, "") if facts is None else (facts.name, facts.name.partition("/")[0])


def _waits(request: RequestState) -> bool:
    return request.phase in (Phase.QUEUED, Phase.WAITING)
