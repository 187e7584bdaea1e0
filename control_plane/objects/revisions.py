"""The content of a revision, kept in a ControllerRevision.

It holds the rendered pods, not only the specification: as long as a revision lives its pods stay the same, whatever a
newer control plane would render. Applying its specification again brings a revision back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from control_plane.objects.installation import Installation
from control_plane.objects.names import (
    REVISION,
    labels_of,
    owner_reference,
    revision_name,
    service_labels,
)
from control_plane.objects.pods import pod_template
from control_plane.objects.scheduling import nodes_of
from control_plane.objects.worker_flags import settings_map
from tandem.kube.kinds import CONTROLLER_REVISION, Json
from tandem.spec.service import ModelService


@dataclass(frozen=True)
class PoolRecord:
    """One pool of a revision: its pods, over how many nodes each worker spreads, and its settings."""

    name: str
    role: str
    nodes: int
    template: Json
    settings: Mapping[str, str]
    pack: str | None = None


@dataclass(frozen=True)
class RevisionRecord:
    """One revision of a service; `number` gives the order in which revisions came, `defaults` are those parts of its
    pods that the installation gave to every service."""

    name: str
    number: int
    pools: Mapping[str, PoolRecord]
    spec: Json
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model_name(self) -> str:
        """The model's name in the spec; empty where the model has the service's name."""
        return str(self.spec.get("model", {}).get("name") or "")


def rendered(service: ModelService, revision: str, number: int, installation: Installation) -> RevisionRecord:
    """The record of a service's specification as it is now."""
    pools = {
        pool.name: PoolRecord(
            pool.name,
            pool.role,
            nodes_of(service, pool),
            pod_template(service, pool, revision, installation),
            settings_map(service, pool, revision, installation)["data"],
            pool.topology.pack,
        )
        for pool in service.spec.pools
    }
    spec: Json = msgspec.json.decode(msgspec.json.encode(service.spec))
    return RevisionRecord(revision, number, pools, spec, installation.worker_defaults.plain)


def controller_revision(record: RevisionRecord, owner: Json) -> Json:
    """The object; its data is never changed."""
    name = owner["metadata"]["name"]
    return {
        "apiVersion": CONTROLLER_REVISION.api_version,
        "kind": CONTROLLER_REVISION.kind,
        "metadata": {
            "name": revision_name(name, record.name),
            "namespace": owner["metadata"]["namespace"],
            "labels": {**service_labels(name), REVISION: record.name},
            "ownerReferences": [owner_reference(owner)],
        },
        "revision": record.number,
        "data": {
            "spec": record.spec,
            "pools": {name: _pool(pool) for name, pool in record.pools.items()},
            **({"defaults": dict(record.defaults)} if record.defaults else {}),
        },
    }


def read_revision(obj: Json) -> RevisionRecord:
    """A record from its object."""
    data: dict[str, Any] = obj.get("data") or {}
    pools = {name: _read_pool(name, each) for name, each in data.get("pools", {}).items()}
    name, number = labels_of(obj)[REVISION], int(obj.get("revision", 0))
    return RevisionRecord(name, number, pools, data.get("spec", {}), data.get("defaults", {}))


def _pool(pool: PoolRecord) -> Json:
    plain: Json = {
        "role": pool.role,
        "nodes": pool.nodes,
        "template": pool.template,
        "settings": dict(pool.settings),
    }
    return plain if pool.pack is None else {**plain, "pack": pool.pack}


def _read_pool(name: str, plain: Json) -> PoolRecord:
    return PoolRecord(
        name, plain["role"], int(plain["nodes"]), plain["template"], plain["settings"], plain.get("pack")
    )
