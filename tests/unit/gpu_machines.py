"""Machines as their tools and sysfs tell of them, written by hand: tests have no GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.devices.reading import read_topology
from tandem.devices.topology import Topology

H100 = "NVIDIA H100 80GB HBM3"
H100_MIB = 81559


@dataclass(frozen=True)
class Card:
    """A GPU: its PCI path below the root complex, and the NUMA node sysfs tells of (-1: none)."""

    path: str
    numa: int
    name: str = H100
    slices: tuple[str, ...] = ()
    """Profiles of its MIG devices."""

    def uuid(self, index: int) -> str:
        return f"GPU-{index:08x}-1234-5678-9abc-def012345678"


@dataclass(frozen=True)
class Machine:
    """What the tools print and sysfs holds. `nics`: name, PCI path, NUMA node and state of port 1."""

    cards: tuple[Card, ...]
    nics: tuple[tuple[str, str, int, str], ...] = ()
    nodes: tuple[str, ...] = ("0-1",)

    def ask(self, command: Sequence[str]) -> str | None:
        """What a vendor's tool prints."""
        if command[0] != "nvidia-smi":
            return None
        return self._list() if command[1] == "-L" else self._query()

    def read(self, root: Path) -> Topology:
        """The topology, from a sysfs made in the empty folder `root`."""
        for card in self.cards:
            _device(root, card.path, card.numa)
        for name, path, numa, state in self.nics:
            target = _device(root, path, numa)
            port = root / "sys/class/infiniband" / name / "ports/1"
            port.mkdir(parents=True)
            (port / "state").write_text(f"{state}\n")
            (root / "sys/class/infiniband" / name / "device").symlink_to(target)
        for node, cpus in enumerate(self.nodes):
            folder = root / f"sys/devices/system/node/node{node}"
            folder.mkdir(parents=True)
            (folder / "cpulist").write_text(f"{cpus}\n")
        found = read_topology(self.ask, root)
        assert found is not None
        return found

    def _query(self) -> str:
        rows = []
        for index, card in enumerate(self.cards):
            bus = "0000" + card.path.split("/")[-1].upper()
            mig = "Enabled" if card.slices else "Disabled"
            rows.append(f"{index}, {card.uuid(index)}, {card.name}, {H100_MIB}, {bus}, {mig}")
        return "\n".join(rows) + "\n"

    def _list(self) -> str:
        lines = []
        for index, card in enumerate(self.cards):
            lines.append(f"GPU {index}: {card.name} (UUID: {card.uuid(index)})")
            for at, profile in enumerate(card.slices):
                lines.append(f"  MIG {profile}     Device  {at}: (UUID: MIG-{index}{at}11-2222)")
        return "\n".join(lines) + "\n"


def _device(root: Path, path: str, numa: int) -> Path:
    target = root / "sys/devices" / path
    target.mkdir(parents=True, exist_ok=True)
    (target / "numa_node").write_text(f"{numa}\n")
    link = root / "sys/bus/pci/devices" / path.split("/")[-1]
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.symlink_to(target)
    return target


def _switch(node: int, at: int) -> str:
    """A PCI switch below a root port of its own, as boards with a NIC beside each GPU have it."""
    root = f"{node}{at}"
    return f"pci0000:{root}/0000:{root}:01.0/0000:{root}:02.0"


DGX = Machine(
    tuple(Card(f"{_switch(at // 4, at % 4)}/0000:{at // 4}{at % 4}:10.0", at // 4) for at in range(8)),
    tuple(
        (f"mlx5_{at}", f"{_switch(at // 4, at % 4)}/0000:{at // 4}{at % 4}:20.0", at // 4, "4: ACTIVE")
        for at in range(8)
    ),
    ("0-55,112-167", "56-111,168-223"),
)
"""8 GPUs on 2 NUMA nodes, each with a NIC below its own switch."""
ONE = Machine((Card("pci0000:00/0000:00:05.0", -1),))
TWO = Machine((Card("pci0000:00/0000:00:05.0", -1), Card("pci0000:00/0000:00:06.0", -1)))
FOUR = Machine(tuple(Card(f"pci0000:00/0000:00:0{5 + at}.0", -1) for at in range(4)))
SLICED = Machine(
    (
        Card("pci0000:00/0000:00:05.0", -1, slices=("3g.40gb", "1g.10gb")),
        Card("pci0000:00/0000:00:06.0", -1),
    )
)
"""Two cards, the first cut into two slices."""
UNLIKE = Machine((Card("pci0000:00/0000:00:05.0", -1, "NVIDIA A10"), Card("pci0000:00/0000:00:06.0", 0)))
