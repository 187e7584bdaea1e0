"""`EnginePool`: one per pool of a service, made by the control plane so that each pool can be scaled by itself.

It has the scale subresource: `kubectl scale`, a HorizontalPodAutoscaler and KEDA all set `spec.replicas`.
"""

from typing import Annotated, Final

from msgspec import Meta

from tandem.spec.pool import Replicas, Role
from tandem.spec.service import Metadata
from tandem.spec.status import EnginePoolStatus
from tandem.spec.text import PoolName, Strict

KIND: Final = "EnginePool"


class EnginePoolSpec(Strict, frozen=True):
    """Which pool it is, and how many workers it is to have."""

    model_service_name: Annotated[str, Meta(min_length=1, max_length=40)]
    """The ModelService it belongs to."""
    pool: PoolName
    """The pool's name there."""
    role: Role
    replicas: Replicas = 1
    """How many workers are wanted. Whoever scales the pool has this number."""


class EnginePool(Strict, frozen=True):
    """Workers of one pool of a ModelService; scale this to have more or fewer of them."""

    api_version: str
    kind: str
    metadata: Metadata
    spec: EnginePoolSpec
    status: EnginePoolStatus = EnginePoolStatus()
