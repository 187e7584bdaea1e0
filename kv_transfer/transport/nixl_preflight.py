"""Predicts what UCX will carry KV over on this machine, so that it is reported at the start instead of inferred from
throughput. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from kv_transfer.transport.locked_memory import LockedMemory

_RDMA: Final = (
    "rc",
    "rc_v",
    "rc_x",
    "rc_verbs",
    "rc_mlx5",
    "dc",
    "dc_x",
    "dc_mlx5",
    "ud",
    "ud_v",
    "ud_x",
    "ib",
    "all",
)


class Fabric(msgspec.Struct, frozen=True):
    """`name` is `ucx-rdma` or `ucx-tcp`; `reason` is why, in a sentence; `fast`, whether it is what nixl is for."""

    name: str
    reason: str
    fast: bool


def expected(
    devices: Sequence[str],
    environ: Mapping[str, str],
    locked: LockedMemory | None = None,
    unusable: Sequence[str] = (),
) -> Fabric:
    """The fabric to expect, given the RDMA devices that can be used and those that are there and cannot, the settings
    of UCX, and how much memory can be locked, where that was tried. On one host UCX uses shared memory in any
    case."""
    allowed = [each.strip() for each in environ.get("UCX_TLS", "all").split(",")]
    named = [each.partition(":")[0].strip() for each in environ.get("UCX_NET_DEVICES", "all").split(",")]
    usable = [device for device in devices if "all" in named or device in named]
    if not devices and unusable:
        problem = f"{', '.join(unusable)} cannot be opened here or has no port that is up: UCX uses TCP between hosts"
        return Fabric("ucx-tcp", problem, fast=False)
    if not devices:
        return Fabric("ucx-tcp", "this machine has no RDMA device, so UCX uses TCP between hosts", fast=False)
    if not usable:
        problem = f"UCX_NET_DEVICES={environ['UCX_NET_DEVICES']} names none of {', '.join(devices)}: UCX uses TCP"
        return Fabric("ucx-tcp", problem, fast=False)
    if not _allows_rdma(allowed):
        problem = f"UCX_TLS={environ['UCX_TLS']} leaves out RDMA although there is {', '.join(usable)}: UCX uses TCP"
        return Fabric("ucx-tcp", problem, fast=False)
    if locked is not None and not locked.enough:
        problem = f"{locked.sentence}, so that {', '.join(usable)} cannot register KV memory and UCX uses TCP"
        return Fabric("ucx-tcp", problem, fast=False)
    return Fabric("ucx-rdma", f"RDMA over {', '.join(usable)}", fast=True)


def _allows_rdma(allowed: Sequence[str]) -> bool:
    """A list that begins with `^` leaves out what it names."""
    if allowed[0].startswith("^"):
        left_out = [allowed[0][1:], *allowed[1:]]
        return not any(each in ("rc", "ib", "all") for each in left_out)
    return any(each in _RDMA for each in allowed)
