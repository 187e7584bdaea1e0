"""The checks of a node or a pod by `tandem doctor`: what was read there in, findings out. Pure.

What is absent is "not checked"; that it was asked for is for the command to say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kv_transfer.transport.locked_memory import LockedMemory
from tandem.apps.cli.doctor.checks import QUEUE_BYTES
from tandem.apps.cli.doctor.findings import Finding, ok, problem, unchecked
from tandem.devices.topology import RdmaDevice

_APART_S: Final = 1.0
"""Seconds by which the clock may be off: tickets for KV blocks end half a minute after they were signed."""
_STEP_S: Final = 0.05
"""Seconds by which time of day and time that has passed may differ over the moment in which both are read."""
_MTU_MIN: Final = 1280
_MTU_GOOD: Final = 8000
_SLOW_BYTES_S: Final = 100e6
_MODEL_BYTES: Final = 140e9
"""Weights of a model with 70 billion parameters."""
_RDMA_TRANSPORTS: Final = ("rc_", "dc_", "ud_", "srd")
_GB: Final = 1e9
_MIB: Final = 1 << 20


@dataclass(frozen=True)
class Gpus:
    """GPUs as the vendor's tool names them, and the device files of GPUs that are there."""

    names: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClockReading:
    """`synchronized`, `offset_s` and `error_s` are what the kernel says of its clock, None where it does not, `why`
    the reason. `step_s` is by how much time of day and time that has passed differed over a moment."""

    synchronized: bool | None
    offset_s: float | None = None
    error_s: float | None = None
    step_s: float = 0.0
    went_back: bool = False
    source: str = ""
    why: str = ""


@dataclass(frozen=True)
class Interface:
    """A network interface that is up."""

    name: str
    mtu: int


@dataclass(frozen=True)
class Ucx:
    """Transports of UCX with their devices, such as `rc_mlx5/mlx5_0:1`. `why`: the reason why there are none."""

    version: str = ""
    resources: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class DiskSpeed:
    """Bytes per second at which a file was written to the device and read from it. `failed` is why it was not."""

    directory: str
    written: float = 0.0
    read: float = 0.0
    failed: str = ""


@dataclass(frozen=True)
class Access:
    """Whether a model's files could be listed where they are. `failed` is why not."""

    source: str
    files: int = 0
    seconds: float = 0.0
    failed: str = ""


def gpus(found: Gpus) -> Finding:
    """GPUs that the vendor's tool reports."""
    check = "gpus"
    if found.names:
        kinds = ", ".join(f"{found.names.count(name)} x {name}" for name in sorted(set(found.names)))
        return ok(check, "", kinds)
    if found.files:
        said = f"there is {', '.join(found.files)}, and neither nvidia-smi nor rocm-smi reports a GPU"
        return problem(check, "", said, "see what nvidia-smi or rocm-smi says, and give the pod the vendor's runtime")
    said = "neither nvidia-smi nor rocm-smi reports a GPU, and there is no device file of one"
    advice = "ask for nvidia.com/gpu or amd.com/gpu in the pod, and see that the node's device plugin runs"
    return unchecked(check, "", said, advice)


def rdma(devices: Sequence[RdmaDevice]) -> Finding:
    """Network devices with RDMA that this process may open and whose port is up."""
    check = "rdma"
    if not devices:
        advice = "name the device in the pool's network.resources; without one KV goes over TCP"
        said = "Linux lists no RDMA device here"
        return unchecked(check, "", said, advice)
    usable = [each.name for each in devices if each.usable]
    closed = [each.name for each in devices if not each.openable]
    down = [each.name for each in devices if each.openable and not each.active]
    reasons = [f"{', '.join(closed)} may not be opened"] if closed else []
    reasons += [f"no port of {', '.join(down)} is up"] if down else []
    if usable:
        return ok(check, "", "; ".join((f"{', '.join(usable)} can be used", *reasons)))
    if not down:
        advice = "name the device in the pool's network.resources, so that the pod gets its /dev/infiniband"
        return unchecked(check, "", f"{reasons[0]}: they are the node's, and were not given to this pod", advice)
    return problem(check, "", "; ".join(reasons), "see `ibstat`, its cable and its switch")


def memlock(found: LockedMemory, devices: Sequence[RdmaDevice]) -> Finding:
    """Whether as much memory can be locked as registering KV memory with an RDMA device takes."""
    check = "memlock"
    if found.enough:
        return ok(check, "", found.sentence)
    advice = "LimitMEMLOCK=infinity for the node's container runtime, or the pool's network.lockedMemory: unlimited"
    if any(each.openable for each in devices):
        return problem(check, "", found.sentence, advice)
    return unchecked(check, "", f"{found.sentence}; without an RDMA device nothing needs it", advice)


def shared_memory(size: int | None, ranks: int) -> Finding:
    """Whether /dev/shm has room for the queues between so many ranks of vLLM."""
    check, needed = "shm", (1 + max(1, ranks)) * QUEUE_BYTES
    if size is None:
        said = "there is no /dev/shm"
        return unchecked(check, "", said, "mount a tmpfs there")
    said = f"/dev/shm has {size // _MIB} MiB; {max(1, ranks)} ranks may take {needed // _MIB} MiB"
    if size >= needed:
        return ok(check, "", said)
    return problem(check, "", said, "mount an emptyDir of medium Memory there, as the operator's pods do")


def clock(found: ClockReading) -> Finding:
    """Whether time only goes on, and is that of other machines: tickets for KV and deadlines go by it."""
    check, where = "clock", f" (clock source {found.source})" if found.source else ""
    if found.went_back or abs(found.step_s) > _STEP_S:
        moved = "the monotonic clock went back" if found.went_back else f"time of day jumped by {found.step_s:.2f} s"
        advice = "see which time daemon sets it, and that the clock source is tsc or the hypervisor's own"
        return problem(check, "", f"{moved} while it was read{where}", advice)
    if found.synchronized is None:
        advice = "run this on the node, or see `chronyc tracking` there"
        said = f"time goes on evenly{where}; whether it is right is not known: {found.why}"
        return unchecked(check, "", said, advice)
    if not found.synchronized:
        advice = "run chrony or another time daemon on the node; Tandem bears a second between machines"
        return problem(check, "", f"nothing keeps this machine's time{where}", advice)
    offset, error = found.offset_s or 0.0, found.error_s or 0.0
    said = f"{offset * 1e3:+.1f} ms off by the kernel's account, at most {error * 1e3:.0f} ms{where}"
    if abs(offset) > _APART_S:
        return problem(check, "", said, "see why the node's time daemon does not bring it nearer")
    return ok(check, "", said)


def mtu(interfaces: Sequence[Interface]) -> Finding:
    """Whether packets are large enough."""
    check = "mtu"
    if not interfaces:
        said = "no network interface but lo is up"
        return unchecked(check, "", said, "see the pod's network")
    said = ", ".join(f"{each.name} {each.mtu}" for each in interfaces)
    small = [each.name for each in interfaces if each.mtu < _MTU_MIN]
    if small:
        advice = "see the network plugin's MTU: it is the link's less what the overlay adds"
        return problem(check, "", f"{said}: {', '.join(small)} below {_MTU_MIN}", advice)
    largest = max(each.mtu for each in interfaces)
    return ok(check, "", said if largest >= _MTU_GOOD else f"{said}; KV over TCP takes less processor time with 9000")


def ucx(found: Ucx, devices: Sequence[RdmaDevice]) -> Finding:
    """What UCX, by which `nixl` moves KV, finds to send by."""
    check = "ucx"
    if found.why:
        advice = "install the extra `nixl`, or look with `ucx_info -d`"
        return unchecked(check, "", found.why, advice)
    said = f"UCX {found.version}: {', '.join(found.resources)}"
    usable = any(each.usable for each in devices)
    if usable and not any(each.startswith(_RDMA_TRANSPORTS) for each in found.resources):
        advice = "see UCX_TLS and UCX_NET_DEVICES, and that the image's rdma-core knows this device"
        return problem(check, "", f"{said}; none of them is RDMA, though there is a device", advice)
    return ok(check, "", said)


def disk(found: DiskSpeed | None) -> Finding:
    """How fast weights and blocks are written to and read from a directory."""
    check, advice = "disk", "give a directory with --disk DIRECTORY; 256 MiB are written there and removed"
    if found is None:
        return unchecked(check, "", "no directory was named", advice)
    if found.failed:
        return problem(check, "", f"{found.directory}: {found.failed}", "give one with room that this user may write")
    said = f"{found.directory}: writes {found.written / _GB:.2f} GB/s, reads {found.read / _GB:.2f} GB/s"
    if min(found.written, found.read) >= _SLOW_BYTES_S:
        return ok(check, "", said)
    minutes = _MODEL_BYTES / max(1.0, found.read) / 60
    advice = "use a local NVMe disk, or another class of volume"
    return problem(check, "", f"{said}: the weights of a 70B model would take {minutes:.0f} min", advice)


def registry(found: Access | None) -> Finding:
    """Whether a model's files can be listed with the credentials that are here."""
    check, advice = "registry", "name a model with --source SOURCE, as in model.source"
    if found is None:
        return unchecked(check, "", "no model was named", advice)
    if found.failed:
        advice = "see the credentials in the environment, HF_ENDPOINT, the proxy and the NetworkPolicy (modelSources)"
        return problem(check, "", f"{found.source}: {found.failed}", advice)
    return ok(check, "", f"{found.source}: {found.files} files, listed in {found.seconds:.1f} s")
