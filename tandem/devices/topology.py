"""The topology of a machine: GPUs, network devices with RDMA, and the CPUs of its NUMA nodes. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Vendor = Literal["nvidia", "amd"]
VISIBLE: Final[Mapping[Vendor, str]] = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
"""The environment variable, by vendor, that says which GPUs a process sees and in which order."""
ORDER: Final = "CUDA_DEVICE_ORDER"
BUS_ORDER: Final = "PCI_BUS_ID"
"""The order in which nvidia-smi counts GPUs. CUDA's own default puts the fastest first."""

Path = tuple[str, ...]
"""PCI addresses from the root complex down to a device."""


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a slice of one (MIG). `token` is how the visibility variable names it."""

    token: str
    name: str
    card: str
    """The identifier of the physical card: slices of one card have the same."""
    uuid: str = ""
    memory: int | None = None
    """The memory of the GPU in bytes; None when the driver does not report it."""
    numa: int | None = None
    """The NUMA node of the GPU; None when the machine has only one, or does not report it."""
    path: Path = ()
    slice: bool = False

    def __str__(self) -> str:
        return f"GPU {self.token}"


@dataclass(frozen=True)
class Nic:
    """A port of a network device with RDMA, called as UCX calls it: `mlx5_0:1`."""

    name: str
    numa: int | None = None
    path: Path = ()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class RdmaDevice:
    """A network device with RDMA that Linux lists. `active`: one of its ports is up; `openable`: this process may
    open it, as in a pod those that were given to it."""

    name: str
    active: bool
    openable: bool

    @property
    def usable(self) -> bool:
        return self.active and self.openable


@dataclass(frozen=True)
class Topology:
    """A machine. `cpus` are the processors of each NUMA node."""

    vendor: Vendor
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...] = ()
    cpus: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def variable(self) -> str:
        """The one that restricts what a process sees."""
        return VISIBLE[self.vendor]


def distance(one: Path, other: Path) -> int:
    """Links between two PCI devices: up from the one to the last bridge they share, and down to the other."""
    shared = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        shared += 1
    return len(one) + len(other) - 2 * shared
