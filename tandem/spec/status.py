"""What the control plane says of a service and of its pools. Read without strictness: a newer one may say more."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

LIST_BY_NAME: Final = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
_LIST_BY_TYPE: Final = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
Time = Annotated[str, Meta(max_length=40, extra_json_schema={"format": "date-time"})]
Revision = Annotated[str, Meta(max_length=10)]
Number = Annotated[int, Meta(ge=0)]
WORD_MAX: Final = 1024
"""Characters of a text that a status keeps; the API server refuses a status with a longer one."""
_PoolName = Annotated[str, Meta(max_length=20)]
_Word = Annotated[str, Meta(max_length=WORD_MAX)]


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """As `metav1.Condition`."""

    type: Annotated[str, Meta(min_length=1, max_length=316)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, Meta(min_length=1, max_length=1024)]
    """One word for machines."""
    message: Annotated[str, Meta(max_length=32768)]
    """A sentence for people."""
    last_transition_time: Time
    """When `status` last changed."""
    observed_generation: Number = 0
    """Of which generation of the object this is said."""


Conditions = Annotated[tuple[Condition, ...], Meta(max_length=16, extra_json_schema=_LIST_BY_TYPE)]


class RevisionStatus(msgspec.Struct, frozen=True, rename="camel"):
    """One revision that has workers."""

    name: Revision
    weight: Annotated[int, Meta(ge=0, le=100)] = 0
    """Percentage of new requests."""
    routable: bool = False
    """Whether every pool of it has a worker that is ready."""


class PoolStatus(msgspec.Struct, frozen=True, rename="camel"):
    """One pool, over all revisions."""

    name: _PoolName
    replicas: Number = 0
    ready_replicas: Number = 0
    updated_replicas: Number = 0
    """Of the newest revision."""
    draining_replicas: Number = 0
    """That leave and still run something."""


class RolloutStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the rollout remembers from one step to the next. Losing it costs time, never traffic."""

    failed_revision: Revision = ""
    """The revision that must not go on; empty when nothing speaks against it."""
    failure_kind: Literal["", "gate", "deadline", "errors", "slo"] = ""
    failure_message: _Word = ""
    aim: Annotated[str, Meta(max_length=128)] = ""
    """What it is heading for."""
    wanted: _Word = ""
    """Replicas of its pools when it last came nearer."""
    left: Number = 0
    """Pods that have yet to change."""
    since: Annotated[float, Meta(ge=0)] = 0.0
    """Since when it has not come nearer, in seconds since 1970."""
    in_place_revision: Revision = ""
    """The revision for which old workers give way before new ones start; empty when none do."""
    in_place_pools: Annotated[tuple[_PoolName, ...], Meta(max_length=32)] = ()
    """The pools in which they do."""


class ModelServiceStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What there is. Conditions are Ready, Reconciling, Stalled, Available, FieldsIgnored,
    AwaitsNextRevision, NetworkNotNamed and SurgeWithoutRoom."""

    observed_generation: Number = 0
    url: _Word = ""
    """Where clients find it."""
    current_revision: Revision = ""
    update_revision: Revision = ""
    """What is being rolled out; empty when nothing is."""
    update_weight: Annotated[int, Meta(ge=0, le=100)] | None = None
    """Percentage of new requests that it has."""
    ready_workers: Number = 0
    """Workers of all pools that take work."""
    wanted_workers: Number = 0
    """Workers that all pools are to have."""
    revisions: Annotated[tuple[RevisionStatus, ...], Meta(max_length=32, extra_json_schema=LIST_BY_NAME)] = ()
    pools: Annotated[tuple[PoolStatus, ...], Meta(max_length=32, extra_json_schema=LIST_BY_NAME)] = ()
    rollout: RolloutStatus | None = None
    conditions: Conditions = ()


class Load(msgspec.Struct, frozen=True, rename="camel"):
    """What a pool's workers are busy with."""

    queued_tokens: Number = 0
    """Prompt tokens that wait or are being computed."""
    running_sequences: Number = 0
    kv_used_percent: Annotated[int, Meta(ge=0, le=100)] = 0
    """Of the KV memory of the fullest worker."""
    probed_at: Time | None = None


class EnginePoolStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What there is. Conditions are Ready, Reconciling, Stalled, ScalingActive, WorkersFailing, InsufficientCapacity,
    DoesNotFit."""

    observed_generation: Number = 0
    replicas: Number = 0
    """What `/scale` reads."""
    selector: Annotated[str, Meta(max_length=1024)] = ""
    """Of one pod per worker; what `/scale` reads."""
    ready_replicas: Number = 0
    updated_replicas: Number = 0
    draining_replicas: Number = 0
    load: Load | None = None
    conditions: Conditions = ()
