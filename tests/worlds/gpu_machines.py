"""Machines as their tools and sysfs tell of them, written by hand: tests have no GPU."""

import json
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
    vendor: str = "nvidia"
    given: frozenset[str] | None = None
    """In a pod: the RDMA devices that it may open, of all that sysfs shows. None: all."""
    opened: frozenset[int] | None = None
    """Likewise the cards of AMD, of all that rocm-smi tells of."""

    def ask(self, command: Sequence[str]) -> str | None:
        """What a vendor's tool prints."""
        if command[0] == "rocm-smi" and self.vendor == "amd":
            return self._rocm()
        if command[0] != "nvidia-smi" or self.vendor != "nvidia":
            return None
        return self._list() if command[1] == "-L" else self._query()

    def read(self, root: Path) -> Topology:
        """The topology, from a sysfs made in the empty folder `root`."""
        for at, card in enumerate(self.cards):
            target = _device(root, card.path, card.numa)
            if self.vendor == "amd":
                (target / f"drm/renderD{128 + at}").mkdir(parents=True)
                if self.opened is None or at in self.opened:
                    _may_open(root / f"dev/dri/renderD{128 + at}")
        for at, (name, path, numa, state) in enumerate(self.nics):
            target = _device(root, path, numa)
            (target / f"infiniband_verbs/uverbs{at}").mkdir(parents=True)
            if self.given is None or name in self.given:
                _may_open(root / f"dev/infiniband/uverbs{at}")
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

    def _rocm(self) -> str:
        return json.dumps(
            {
                f"card{index}": {
                    "Unique ID": f"0x{0xF00D + index:016x}",
                    "VRAM Total Memory (B)": str(191 << 30),
                    "PCI Bus": card.path.split("/")[-1].upper(),
                    "Card Series": card.name,
                }
                for index, card in enumerate(self.cards)
            }
        )

    def _list(self) -> str:
        lines = []
        for index, card in enumerate(self.cards):
            lines.append(f"GPU {index}: {card.name} (UUID: {card.uuid(index)})")
            for at, profile in enumerate(card.slices):
                lines.append(f"  MIG {profile}     Device  {at}: (UUID: MIG-{index}{at}11-2222)")
        return "\n".join(lines) + "\n"


def _may_open(device: Path) -> None:
    device.parent.mkdir(parents=True, exist_ok=True)
    device.touch()


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


def _dgx_switch(gpu: int) -> str:
    """Root port, switch and the switch's two ports of one GPU: a DGX H100 has a NIC below each, too."""
    bus = int(_DGX_NICS[gpu][1], 16)
    return f"pci0000:{bus - 3:02x}/0000:{bus - 3:02x}:01.0/0000:{bus - 2:02x}:00.0/0000:{bus - 1:02x}"


_DGX_NICS = (
    ("mlx5_0", "18"), ("mlx5_3", "40"), ("mlx5_4", "4f"), ("mlx5_5", "5e"),
    ("mlx5_6", "9a"), ("mlx5_9", "c0"), ("mlx5_10", "ce"), ("mlx5_11", "dc"),
)  # fmt: skip
"""Of each GPU of a DGX H100 in order: its compute NIC and that NIC's bus, as the user guide of the machine lists them
(ibp24s0 is bus 24, and so on)."""
_DGX_GPUS = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
_DGX_STORAGE = (
    ("mlx5_1", "29:00.0", 0),
    ("mlx5_2", "29:00.1", 0),
    ("mlx5_7", "aa:00.0", 1),
    ("mlx5_8", "aa:00.1", 1),
)
DGX_H100 = Machine(
    tuple(Card(f"{_dgx_switch(at)}:00.0/0000:{bus}:00.0", at // 4) for at, bus in enumerate(_DGX_GPUS)),
    (
        *(
            (name, f"{_dgx_switch(at)}:01.0/0000:{bus}:00.0", at // 4, "4: ACTIVE")
            for at, (name, bus) in enumerate(_DGX_NICS)
        ),
        *(
            (name, f"pci0000:{bus[0]}0/0000:{bus[0]}0:05.0/0000:{bus}", node, "4: ACTIVE")
            for name, bus, node in _DGX_STORAGE
        ),
    ),
    ("0-55,112-167", "56-111,168-223"),
)
"""As its user guide describes it: two processors of 56 cores, four GPUs and their NICs below each, and four storage
ports elsewhere. Addresses of bridges are made up."""
PCIE = Machine(
    (
        Card("pci0000:3a/0000:3a:00.0/0000:3b:00.0", 0, "NVIDIA L40S"),
        Card("pci0000:ae/0000:ae:00.0/0000:af:00.0", 1, "NVIDIA L40S"),
    ),
    (
        ("mlx5_0", "pci0000:17/0000:17:02.0/0000:18:00.0", 0, "4: ACTIVE"),
        ("mlx5_1", "pci0000:5d/0000:5d:00.0/0000:5e:00.0/0000:5f:08.0/0000:60:00.0", 0, "4: ACTIVE"),
        ("mlx5_2", "pci0000:c0/0000:c0:00.0/0000:c1:00.0", 2, "4: ACTIVE"),
    ),
    ("0-15", "16-31", "32-47", "48-63"),
)
"""Every card and every port has a root complex of its own; of the first card's NUMA node are an on-board port and one
behind a riser's switch, of the second card's none."""
L4 = Machine((Card("pci0000:00/0000:00:03.0", -1, "NVIDIA L4"),), (), ("0-7",))
"""A cloud machine with one card, one NUMA node and no RDMA."""
MI300X = Machine(
    tuple(
        Card(path, int(path[8:10], 16) // 0x80, "AMD Instinct MI300X OAM")
        for path in (
            "pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:00.0/0000:03:00.0/0000:04:00.0/0000:05:00.0",
            "pci0000:18/0000:18:01.1/0000:19:00.0/0000:1a:04.0/0000:29:00.0/0000:2a:00.0/0000:2b:00.0",
            "pci0000:88/0000:88:01.1/0000:89:00.0/0000:8a:00.0/0000:8b:00.0/0000:8c:00.0/0000:8d:00.0",
            "pci0000:b8/0000:b8:01.1/0000:b9:00.0/0000:ba:04.0/0000:c9:00.0/0000:ca:00.0/0000:cb:00.0",
        )
    ),
    (
        ("bnxt_re0", "pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:01.0/0000:06:00.0", 0, "4: ACTIVE"),
        ("bnxt_re1", "pci0000:18/0000:18:01.1/0000:19:00.0/0000:1a:00.0/0000:1b:00.0", 0, "4: ACTIVE"),
        ("bnxt_re2", "pci0000:88/0000:88:01.1/0000:89:00.0/0000:8a:01.0/0000:8e:00.0", 1, "4: ACTIVE"),
        ("bnxt_re3", "pci0000:b8/0000:b8:01.1/0000:b9:00.0/0000:ba:00.0/0000:bb:00.0", 1, "4: ACTIVE"),
    ),
    ("0-47,96-143", "48-95,144-191"),
    "amd",
)
"""Four cards, each behind three bridges of its own below a switch that it shares with a NIC, as AMD's guide for
acceptance tests shows the first two; the others are like them."""
