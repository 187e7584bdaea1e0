"""A `ModelService` as the router sees it: split of new requests, bounds, and where its tokenizer is. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import msgspec

from router.fleet.services import ServiceFacts
from router.placement.revisions import Weights
from tandem.core.errors import TandemError
from tandem.core.messages import ITL_TARGET
from tandem.core.slo import Slo
from tandem.kube.kinds import Json
from tandem.process.workers_file import ServiceEntry
from tandem.spec.model import Model
from tandem.spec.model_names import Claim, holders
from tandem.spec.reading import readable
from tandem.spec.service import ModelService

_FEATURES: Final = {
    "torch": (ITL_TARGET,),
    "simulated": (ITL_TARGET,),
    "vllm": ("adapters", "grammar", "prompt_logprobs"),
}
"""Features of each engine type beyond the common ones, for models that no worker has reported yet."""


@dataclass(frozen=True)
class TextSource:
    """The source of the text side of a model. `simulated` models have no files."""

    service: str
    model: Model
    simulated: bool
    settled: bool
    """Whether no rollout is under way, so that all workers run what the specification says."""
    preset: str | None = None
    """The preset of a simulated model."""
    context_tokens: int | None = None
    """How much of the model's context, in tokens, the engine is configured to serve."""

    @property
    def place(self) -> tuple[object, ...]:
        """The values that determine the content of the source."""
        return msgspec.structs.replace(self.model, aliases=()), self.simulated, self.preset, self.context_tokens


@dataclass(frozen=True)
class DiscoveredService:
    """One service. `since` is when it was made, as the API server writes times, which sort as text."""

    facts: ServiceFacts
    text: TextSource
    since: str


def service_of(obj: Json) -> DiscoveredService:
    """Raises `bad_setting` for what is not a service as this version knows them."""
    name = f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"
    try:
        service = msgspec.convert(obj, ModelService)
    except msgspec.ValidationError as error:
        raise TandemError("bad_setting", f"{name}: {readable(str(error), obj)}") from error
    spec, status = service.spec, service.status
    facts = ServiceFacts(
        name=name,
        model=service.model_name,
        weights=Weights.of(name, {each.name: each.weight for each in status.revisions}),
        queue_s=float(spec.routing.max_queue_seconds),
        policy=spec.routing.policy,
        slo=spec.slo.bounds,
        revisions=tuple(each.name for each in status.revisions),
        features=_FEATURES.get(spec.engine.type, ()),
        aliases=spec.model.aliases,
        index=name.replace("/", "."),
    )
    engine, settled = spec.engine, not status.update_revision
    text = TextSource(name, spec.model, engine.type == "simulated", settled, engine.preset, engine.context_tokens)
    return DiscoveredService(facts, text, str(obj["metadata"].get("creationTimestamp", "")))


def facts_of(entry: ServiceEntry) -> ServiceFacts:
    """The service of an entry in a workers file."""
    return ServiceFacts(
        name=entry.name,
        model=entry.model,
        weights=Weights.of(entry.name, entry.weights),
        queue_s=entry.queue_s,
        policy=entry.policy,
        slo=Slo(entry.ttft_s, entry.tpot_s, entry.itl_s),
        revisions=tuple(sorted(entry.weights)),
        aliases=entry.aliases,
    )


class NameProblem(NamedTuple):
    """Why a service, as `namespace/name`, is not served by one of its names."""

    service: str
    sentence: str


def by_model(found: Iterable[DiscoveredService]) -> tuple[dict[str, DiscoveredService], list[NameProblem]]:
    """The services by the name of their model, and what to say for each service or alias that another one's name
    keeps out: a model's name goes before an alias, and of two the oldest service's."""
    claims = {Claim(each.since, each.facts.name, each.facts.model): each for each in found}
    held_by = holders(claims)
    named = {model: claims[claim] for model, claim in held_by.items()}
    problems = [
        NameProblem(
            claim.service,
            f"{claim.service} is not served: {held_by[claim.model].service} serves a model called {claim.model!r} "
            "already",
        )
        for claim in sorted(claims)
        if held_by[claim.model] != claim
    ]
    aliases: dict[str, str] = {model: each.facts.name for model, each in named.items()}
    for model, each in named.items():
        name, own = each.facts.name, tuple(alias for alias in each.facts.aliases if alias != model)
        for alias in own:
            if (holder := aliases.setdefault(alias, name)) != name:
                why = f"{name} is not served as {alias!r}: {holder} has that name already"
                problems.append(NameProblem(name, why))
        held = tuple(alias for alias in own if aliases[alias] == name)
        named[model] = replace(each, facts=replace(each.facts, aliases=held))
    return named, problems
