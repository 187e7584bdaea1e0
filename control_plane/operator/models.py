"""Facts about a service's model, from every source that has them."""

from control_plane.observe.observed import DesiredSpec, ModelFacts
from control_plane.operator.model_facts import HubFacts, annotated
from tandem.kube.kinds import Json


class KnownModels:
    """An annotation goes before the hub; without `hub` nothing is looked up."""

    def __init__(self, hub: HubFacts | None) -> None:
        self._hub = hub

    def facts(self, obj: Json, wish: DesiredSpec) -> ModelFacts | None:
        """Facts about the model of a ModelService."""
        told = annotated(obj)
        if told is not None or self._hub is None or wish.service is None:
            return told
        spec = wish.service.spec
        accelerated = any(pool.accelerator is not None for pool in spec.pools)
        return self._hub.of(spec.model) if accelerated and spec.engine.type != "simulated" else None
