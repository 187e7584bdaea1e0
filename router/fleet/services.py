"""The services a router serves, as the watcher of their specifications reports them; empty where there is no watcher.

They say what workers cannot: how new requests are split among revisions, how long a request may wait, which objective
the service must meet, and which models there are while none of their workers is up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from router.fleet.orphaned_holders import IndexScope
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
    reported ready, `pod` the name of its pod, empty where that is not known."""

    address: str
    service: str
    pool: str
    ready: bool
    pod: str = ""


FactsChanges = Mapping[str, ServiceFacts | None]
"""Services by the name of their model; None for one that is gone."""
MemberChanges = Mapping[str, MemberFacts | None]
"""Members by address; None for one that is gone."""


class ServiceRegistry:
    """The services of a router. The fleet owns it and passes on which members have introduced themselves; `of` is
    called for every request."""

    def __init__(self) -> None:
        self._facts: dict[str, ServiceFacts] = {}
        self._members: dict[str, MemberFacts] = {}
        self._ready: dict[str, None] = {}
        """Addresses of the members that are reported ready."""
        self.watched = False
        """Whether services are watched at all."""
        self.told = False
        """Whether the services have been reported at least once."""
        self.tenants = EVERYBODY
        """The names that the models of each namespace may have."""
        self.default_slo = DEFAULT
        """Supplies the bounds of TTFT and TPOT that a service does not set."""
        self.known: Mapping[str, Hello] = {}
        """For each model, the `Hello` of a worker that decodes for it."""
        self.served: tuple[ServedModel, ...] = ()
        """The models that clients may ask for, and the LoRA adapters beside them."""
        self._awake: dict[str, list[ServedModel]] = {}
        """By model, it and its adapters as their workers introduced themselves."""
        self._here: dict[str, ServedModel] = {}
        """The same by their own names, in order, with what their services state."""
        self._asleep: dict[str, tuple[ServedModel, ...]] = {}
        """By model, what services without any worker list."""
        self._remembered: dict[str, tuple[ServedModel, ...]] = {}

    @property
    def awaited(self) -> bool:
        """Whether any member is reported ready."""
        return bool(self._ready)

    def of(self, model: str) -> ServiceFacts | None:
        """The facts known of the service of a model; None where it has no service."""
        return self._facts.get(model)

    def scope(self, model: str) -> IndexScope:
        """What requests for a model may be told of by a shared index."""
        facts = self._facts.get(model)
        return IndexScope("" if facts is None else facts.index, model)

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

    def difference(
        self, facts: Iterable[ServiceFacts], members: Iterable[MemberFacts]
    ) -> tuple[dict[str, ServiceFacts | None], dict[str, MemberFacts | None]]:
        """What `change` has to be called with, so that these are all services and members."""
        return (
            {**dict.fromkeys(self._facts), **{each.model: each for each in facts}},
            {**dict.fromkeys(self._members), **{each.address: each for each in members}},
        )

    def namespace_at(self, address: str) -> str:
        """The namespace of the member at an address; empty where that is not known."""
        member = self._members.get(address)
        return "" if member is None else member.service.partition("/")[0]

    def namespace_of(self, model: str) -> str:
        """The namespace of the service of a model; empty where it has none."""
        facts = self._facts.get(model)
        return "" if facts is None else facts.name.partition("/")[0]

    def tell(self, facts: Iterable[ServiceFacts], members: Iterable[MemberFacts]) -> None:
        """Replace all services and members by these."""
        self.change(*self.difference(facts, members))

    def change(self, facts: FactsChanges, members: MemberChanges) -> None:
        """Change these services, by model, and these members, by address; None takes one away."""
        self.told = True
        for address, member in members.items():
            self._members.pop(address, None)
            self._ready.pop(address, None)
            if member is not None:
                self._members[address] = member
                if member.ready:
                    self._ready[address] = None
        for model, each in facts.items():
            if each is None:
                self._facts.pop(model, None)
                self._remembered.pop(model, None)
            else:
                self._facts[model] = each
        if facts:
            self._list(facts)

    def renew(self, hellos: Iterable[Hello]) -> None:
        """The members that have introduced themselves. What the workers of a service could do is remembered while
        it sleeps."""
        hellos = tuple(hellos)
        self.known = {hello.model: hello for hello in hellos if hello.role not in ("prefill", "store")}
        found = served_models(hellos, self.known)
        self._awake = {}
        for each in found:
            self._awake.setdefault(each.base, []).append(each)
        self._here = {each.name: each for each in found}
        self._asleep = {model: asleep for model, asleep in self._asleep.items() if model not in self.known}
        self._list({*self.known, *(model for model in self._facts if model not in self._asleep)})

    def _list(self, models: Iterable[str]) -> None:
        """List these models anew; the others are listed as they were."""
        for model in models:
            awake = tuple(self._as_told(each) for each in self._awake.get(model, ()))
            self._here.update({each.name: each for each in awake})
            self._asleep.pop(model, None)
            if model in self._facts and model in self.known:
                self._remembered[model] = awake
            elif model in self._facts:
                self._asleep[model] = self._of_sleeping(model)
        asleep = (each for model in sorted(self._asleep) for each in self._asleep[model])
        self.served = (*self._here.values(), *(each for each in asleep if each.name not in self._here))

    def nobody(self, model: str) -> str:
        """Why a model without any live worker cannot be served now."""
        facts = self._facts.get(model)
        if facts is None:
            return f"no worker serves {model}"
        return f"the service {facts.name} is asleep or starting: none of its workers is up yet"

    def _of_sleeping(self, model: str) -> tuple[ServedModel, ...]:
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
