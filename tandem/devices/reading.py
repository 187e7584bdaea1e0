"""Reads what this machine has, from the vendors' tools and from sysfs. Nothing here loads a GPU library."""

import csv
import json
import logging
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tandem.devices.topology import Gpu, Nic, RdmaDevice, Topology
from tandem.devices.topology import Path as PciPath

_BOUND_S: Final = 20.0
"""Drivers without persistence initialise every card first."""
_NVIDIA: Final = (
    "nvidia-smi",
    "--query-gpu=index,uuid,name,memory.total,pci.bus_id,mig.mode.current",
    "--format=csv,noheader,nounits",
)
_NVIDIA_LIST: Final = ("nvidia-smi", "-L")
_AMD: Final = ("rocm-smi", "--showbus", "--showproductname", "--showuniqueid", "--showmeminfo", "vram", "--json")
_MIB: Final = 1 << 20
_CARD: Final = re.compile(r"GPU \d+: .*\(UUID: (?P<uuid>GPU-[\w-]+)\)")
_SLICE: Final = re.compile(r"\s+MIG (?P<profile>\S+)\s.*\(UUID: (?P<uuid>MIG-[\w/-]+)\)")
_SLICE_GB: Final = re.compile(r"\.(\d+)gb")

_log = logging.getLogger(__name__)

Run = Callable[[Sequence[str]], str | None]
"""A command's standard output; None where it cannot be run, fails or takes too long."""


def run(command: Sequence[str]) -> str | None:
    """Run a vendor's tool, for at most 20 s. One that hangs in its driver dies of no signal: it is left behind."""
    try:
        tool = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return None
    try:
        told, _ = tool.communicate(timeout=_BOUND_S)
    except subprocess.TimeoutExpired:
        _log.warning("devices: %s said nothing within %g s: its driver may hang", command[0], _BOUND_S)
        tool.kill()
        # Collects it if it ever ends.
        threading.Thread(target=tool.communicate, daemon=True, name="late device tool").start()
        return None
    return told if tool.returncode == 0 else None


def read_topology(ask: Run = run, root: Path = Path("/")) -> Topology | None:
    """The topology of this machine; None when neither vendor's tool reports a GPU. Blocks for at most a minute."""
    gpus = _nvidia(ask, root)
    if gpus:
        return Topology("nvidia", gpus, _nics(root), _numa_cpus(root))
    gpus = _amd(ask, root)
    return Topology("amd", gpus, _nics(root), _numa_cpus(root)) if gpus else None


def _nvidia(ask: Run, root: Path) -> tuple[Gpu, ...]:
    listed = ask(_NVIDIA)
    if listed is None:
        return ()
    rows = [[cell.strip() for cell in row] for row in csv.reader(listed.splitlines()) if len(row) == 6]
    slices = _slices(ask(_NVIDIA_LIST) or "") if any(row[5] == "Enabled" for row in rows) else {}
    return tuple(gpu for row in rows for gpu in _of_card(row, slices.get(row[1], ()), root))


def _of_card(row: Sequence[str], slices: Sequence[tuple[str, str]], root: Path) -> Iterator[Gpu]:
    index, uuid, name, memory, bus, mig = row
    path, numa = _place(root, bus)
    if mig != "Enabled":
        size = int(memory) * _MIB if memory.isdecimal() else None
        yield Gpu(index, name, uuid, uuid, size, numa, path)
    for profile, own in slices:
        size_gb = _SLICE_GB.search(profile)
        size = None if size_gb is None else int(size_gb[1]) * 10**9
        yield Gpu(own, f"{name} MIG {profile}", uuid, own, size, numa, path, slice=True)


def _slices(text: str) -> dict[str, list[tuple[str, str]]]:
    """Profile and UUID of the slices of each card."""
    found: dict[str, list[tuple[str, str]]] = {}
    card = ""
    for line in text.splitlines():
        if (match := _CARD.match(line)) is not None:
            card = match["uuid"]
        elif (match := _SLICE.match(line)) is not None:
            found.setdefault(card, []).append((match["profile"], match["uuid"]))
    return found


def _amd(ask: Run, root: Path) -> tuple[Gpu, ...]:
    text = ask(_AMD)
    try:
        cards: dict[str, dict[str, Any]] = json.loads(text or "{}")
    except ValueError:
        return ()
    numbered = sorted((int(key[4:]), card) for key, card in cards.items() if re.fullmatch(r"card\d+", key))
    told = [{key.lower(): str(value) for key, value in card.items()} for _, card in numbered]
    opened = [card for card in told if _may_open(root, card.get("pci bus", ""))]
    return tuple(_amd_card(index, card, root) for index, card in enumerate(opened))


def _may_open(root: Path, bus: str) -> bool:
    """Whether this process may open an AMD card. In a pod rocm-smi lists the cards of the whole machine, but HIP
    counts only those that the process may open. True when sysfs does not say."""
    nodes = [each.name for each in (_device_link(root, bus) / "drm").glob("renderD*")]
    return not nodes or any(os.access(root / "dev/dri" / name, os.R_OK | os.W_OK) for name in nodes)


def _amd_card(index: int, told: Mapping[str, str], root: Path) -> Gpu:
    bus, unique = told.get("pci bus", ""), told.get("unique id", "").removeprefix("0x")
    size = told.get("vram total memory (b)", "")
    path, numa = _place(root, bus)
    name = told.get("card series") or told.get("card model") or "AMD GPU"
    uuid = f"GPU-{unique}" if unique else ""
    return Gpu(str(index), name, uuid or bus, uuid, int(size) if size.isdecimal() else None, numa, path)


def _place(root: Path, bus: str) -> tuple[PciPath, int | None]:
    """PCI path and NUMA node of an address such as `00000000:1B:00.0`."""
    return _of_device(_device_link(root, bus))


def _device_link(root: Path, bus: str) -> Path:
    domain, _, rest = bus.lower().partition(":")
    return root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}"


def _of_device(link: Path) -> tuple[PciPath, int | None]:
    try:
        parts = link.resolve(strict=True).parts
    except OSError:
        return (), None
    path = tuple(part for part in parts if re.fullmatch(r"pci[\da-f:]+|[\da-f]{4}:[\da-f]{2}:[\da-f]{2}\.\d", part))
    node = _text(link / "numa_node")
    return path, int(node) if node.isdecimal() else None


def _nics(root: Path) -> tuple[Nic, ...]:
    """Ports that are up, of devices that this process may open: in a pod sysfs shows those of the whole machine."""
    found = []
    for device in sorted((root / "sys/class/infiniband").glob("*"), key=lambda each: _natural(each.name)):
        if not _may_open_nic(device, root):
            continue
        path, numa = _of_device(device / "device")
        for port in sorted((device / "ports").glob("*")):
            if "ACTIVE" in _text(port / "state"):
                found.append(Nic(f"{device.name}:{port.name}", numa, path))
    return tuple(found)


def read_rdma(root: Path = Path("/")) -> tuple[RdmaDevice, ...]:
    """All RDMA devices that Linux lists, those that were not given to this pod included."""
    devices = sorted((root / "sys/class/infiniband").glob("*"), key=lambda each: _natural(each.name))
    return tuple(
        RdmaDevice(
            device.name,
            active=any("ACTIVE" in _text(port / "state") for port in (device / "ports").glob("*")),
            openable=_may_open_nic(device, root),
        )
        for device in devices
    )


def _may_open_nic(device: Path, root: Path) -> bool:
    verbs = [each.name for each in (device / "device/infiniband_verbs").glob("uverbs*")]
    return any(os.access(root / "dev/infiniband" / name, os.R_OK | os.W_OK) for name in verbs)


def _numa_cpus(root: Path) -> dict[int, tuple[int, ...]]:
    nodes = (root / "sys/devices/system/node").glob("node*")
    return {
        int(node.name[4:]): _listed(_text(node / "cpulist"))
        for node in sorted(nodes, key=lambda each: _natural(each.name))
        if node.name[4:].isdecimal()
    }


def _listed(text: str) -> tuple[int, ...]:
    """Processors of a list such as `0-3,8`."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal():
            numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def _natural(name: str) -> tuple[str, int]:
    number = re.search(r"\d+$", name)
    return (name, 0) if number is None else (name[: number.start()], int(number[0]))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
