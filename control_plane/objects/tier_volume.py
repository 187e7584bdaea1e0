"""Room for the disk tier of a pool's workers, where that lies on what the node lends to their pods. Pure.

The kubelet evicts a pod whose emptyDir is fuller than its limit, however healthy it is. Claims and directories of
nodes that a template mounts are left alone.
"""

from pathlib import PurePosixPath
from typing import Final

from tandem.kube.kinds import Json
from tandem.spec.quantity import quantity
from tandem.spec.service import TiersSpec

VOLUME: Final = "kv-tier"
_MIB: Final = 1 << 20
_MARGIN: Final = 1 << 30
_MARGIN_SHARE: Final = 16


def with_tier(template: Json, tiers: TiersSpec, container: str, named: frozenset[str]) -> tuple[Json, int]:
    """The template in which the container has room for the tier, and the bytes that its pod takes of the node's disk
    for it: 0 where the tier lies on another volume. Volumes in `named` are as the pool wants them."""
    size = None if tiers.nvme is None else quantity(tiers.nvme)
    if tiers.nvme_dir is None or size is None:
        return template, 0
    room = size + size // _MARGIN_SHARE + _MARGIN
    spec = template["spec"]
    holder = _holder(spec, container, PurePosixPath(tiers.nvme_dir))
    if holder is None:
        return _with_volume(template, container, tiers.nvme_dir, room), room
    volume: Json = next((each for each in spec.get("volumes", ()) if each["name"] == holder), {})
    bound = quantity(volume.get("emptyDir", {}).get("sizeLimit", ""))
    if holder in named or bound is None or "medium" in volume["emptyDir"]:
        return template, 0
    larger = {**volume, "emptyDir": {"sizeLimit": mebibytes(bound + room)}}
    volumes = [larger if each is volume else each for each in spec["volumes"]]
    return {**template, "spec": {**spec, "volumes": volumes}}, room


def mebibytes(size: int) -> str:
    """A size as Kubernetes reads it, rounded up."""
    return f"{-(-size // _MIB)}Mi"


def _holder(spec: Json, container: str, directory: PurePosixPath) -> str | None:
    """The volume on which the directory lies in the container; None where it lies on none."""
    mounts = (
        mount
        for each in spec["containers"]
        if each["name"] == container
        for mount in each.get("volumeMounts", ())
        if directory.is_relative_to(mount["mountPath"])
    )
    found = max(mounts, key=lambda mount: len(PurePosixPath(mount["mountPath"]).parts), default=None)
    return None if found is None else str(found["name"])


def _with_volume(template: Json, container: str, directory: str, room: int) -> Json:
    spec, mount = template["spec"], {"name": VOLUME, "mountPath": directory}
    containers = [
        {**each, "volumeMounts": [*each.get("volumeMounts", ()), mount]} if each["name"] == container else each
        for each in spec["containers"]
    ]
    volume = {"name": VOLUME, "emptyDir": {"sizeLimit": mebibytes(room)}}
    return {**template, "spec": {**spec, "containers": containers, "volumes": [*spec.get("volumes", ()), volume]}}
