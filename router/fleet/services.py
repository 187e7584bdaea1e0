"""The services a router serves, as the watcher of their specifications reports them; empty where there is no watcher.

They say what workers cannot: how new requests are split among revisions, how long a request may wait, which objective
the service must meet, and which models there are while none of their workers is up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from router.fleet.served import served_models
from router.generation import ServedModel
from router.placement.revisions import Weights
from tandem.core.messages import Hello
from tandem.core.slo import DEFAULT, UNBOUND, Slo
from tandem.spec.tenants import EVERYBODY

_CONTEXT_UNKNOWN: Final = 1 << 20
"""The context, in tokens, assumed for a model until one of its workers reports the real one."""


@dataclass(frozen=True)
class ServiceFacts:
    """One service. `name` is `namespace/name`; None stands for what it does not say."""

    name: str
    model: str
    weights: Weights | None = None
    """None while no revision has any: then all may be used."""
    queue_s: float | None = None
    """Seconds that a request waits for a worker."""
    policy: str | None = None
    """The policy that chooses a worker (`router.placement.policies`)."""
    slo: Slo = UNBOUND
    """The objective that a request must meet."""
    context_tokens: int = _CONTEXT_UNKNOWN
    revisions: tuple[str, ...] = ()
    """The service's revisions, with or without weight: requests may ask for them by name."""
    features: tuple[str, ...] = ()
    """Like the context, of workers that have not been seen yet (`tandem.core.messages.Hello.features`)."""
    aliases: tuple[str, ...] = ()
    """Other names by which clients may request the model."""
    index: str = ""
    """The name under which a shared index records the service's blocks; empty for the name in the index's own
    settings."""


class MemberFacts(NamedTuple):
    """The facts known of a member besides its address: `service` is `namespace/name`, `ready` whether the member is
    reported ready."""

    address: str
    service: str
    pool: str
    ready: bool


class ServiceRegistry:
    """The services of a router. The fleet owns it and passes on which members have introduced themselves; `of` is
    called for every request."""

    def __init__(self) -> None:
        self._facts: dict[str, ServiceFacts] = {}
        self._remembered: dict[str, tuple[ServedModel, ...]] = {}
        self.watched = False
        """Whether services are watched at all."""
        self.told = False
        """Whether the services have been reported at least once."""
        self.awaited = False
        """Whether any member is reported ready."""
        self.tenants = EVERYBODY
        """The names that the models of each namespace may have."""
        self.default_slo = DEFAULT
        """Supplies the bounds of TTFT and TPOT that a service does not set."""
        self._members: Mapping[str, MemberFacts] = {}
        self.known: Mapping[str, Hello] = {}
        """For each model, the `Hello` of a worker that decodes for it."""
        self.served: tuple[ServedModel, ...] = ()
        """The models that clients may ask for, and the LoRA adapters beside them."""

    def of(self, model: str) -> ServiceFacts | None:
        """The facts known of the service of a model; None where it has no service."""
        return self._facts.get(model)

    def queue_s(self, model: str, otherwise: float) -> float:
        """Seconds that a request for a model may wait for a worker; `otherwise` where its service does not say."""
        facts = self._facts.get(model)
        return otherwise if facts is None or facts.queue_s is None else facts.queue_s

    def slo(self, model: str) -> Slo:
        """The objective that requests for a model must meet."""
        facts = self._facts.get(model)
        return self.default_slo if facts is None else facts.slo.completed(self.default_slo)

    def itl_target_s(self, model: str) -> float | None:
        """Seconds that a step of the model's workers may take beside running sequences; None where its service does
        not say."""
        facts = self._facts.get(model)
        return None if facts is None else facts.slo.step_s

    def all(self) -> tuple[ServiceFacts, ...]:
        """Every service, by name of its model."""
        return tuple(self._facts[model] for model in sorted(self._facts))

    def knows(self, model: str) -> bool:
        """Whether the model is a service's, or some member's has ever been reached."""
        return model in self.known or model in self._facts

    def member(self, address: str) -> MemberFacts | None:
        """The facts known of the member at an address; None for no member."""
        return self._members.get(address)

    def namespace_at(self, address: str) -> str:
        """The namespace of the member at an address; empty where that is not known."""
        member = self._members.get(address)
        return "" if member is None else member.service.partition("/")[0]

    def namespace_of(self, model: str) -> str:
        """The namespace of the service of a model; empty where it has none."""
        facts = self._facts.get(model)
        return "" if facts is None else facts.name.partition("/")[0]

    def tell(self, facts: Iterable[ServiceFacts], members: Iterable[MemberFacts]) -> None:
        """Replace all services and members by these. The caller has to call `renew` next."""
        self._facts = {each.model: each for each in facts}
        self._remembered = {model: each for model, each in self._remembered.items() if model in self._facts}
        self._members = {member.address: member for member in members}
        self.told, self.awaited = True, any(member.ready for member in self._members.values())

    def renew(self, hellos: Iterable[Hello]) -> None:
        """The members that have introduced themselves. What the workers of a service could do is remembered while
        it sleeps."""
        hellos = tuple(hellos)
        self.known = {hello.model: hello for hello in hellos if hello.role not in ("prefill", "store")}
        here = [self._as_told(each) for each in served_models(hellos, self.known)]
        for model in self._facts.keys() & self.known.keys():
            self._remembered[model] = tuple(each for each in here if each.base == model)
        names = {each.name for each in here}
        asleep = [each for model in sorted(self._facts.keys() - self.known.keys()) for each in self._asleep(model)]
        self.served = (*here, *(each for each in asleep if each.name not in names))

    def nobody(self, model: str) -> str:
        """Why a model without any live worker cannot be served now."""
        facts = self._facts.get(model)
        if facts is None:
            return f"no worker serves {model}"
        return f"the service {facts.name} is asleep or starting: none of its workers is up yet"

    def _asleep(self, model: str) -> tuple[ServedModel, ...]:
        facts = self._facts[model]
        unseen = (ServedModel(model, facts.context_tokens, (), "", facts.features),)
        return tuple(self._as_told(each) for each in self._remembered.get(model, unseen))

    def _as_told(self, served: ServedModel) -> ServedModel:
        """The model with what only its service states."""
        facts = self._facts.get(served.base)
        if facts is None:
            return served
        aliases = () if served.parent else facts.aliases
        return msgspec.structs.replace(served, revisions=facts.revisions, aliases=aliases, slo=facts.slo)
