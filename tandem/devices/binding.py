"""Decides which CPUs, memory and network devices a process on some GPUs keeps to, with the reasons. Pure.

The decision is the same whatever starts the process: `tandem up` and the operator give it GPUs, and the process binds
itself.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from tandem.devices.topology import Gpu, Nic, Path, Topology, distance

NET_DEVICES: Final = "UCX_NET_DEVICES"
"""The network devices that UCX, and nixl with it, may use."""
_UNCHOSEN: Final = 7 / 8
"""A process that has this part of a machine's CPUs has all but those that are kept for the system."""
_NEAR_ENOUGH: Final = 3 / 4
"""The least share of the CPUs chosen for a process to which it is bound; with fewer it would leave too many idle."""


@dataclass(frozen=True)
class Near:
    """The hardware next to some GPUs: NUMA nodes with their CPUs, and RDMA ports. Empty where nothing is nearer than
    the rest."""

    nodes: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    nics: tuple[Nic, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Binding:
    """The binding that a process applies to itself: run on `cpus`, take memory of `nodes` first, and set
    `environment`. Empty parts stay as they are."""

    cpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    hardware: str = ""
    """The names of the GPUs, and how many they are."""


def nearest(topology: Topology, gpus: Sequence[Gpu]) -> Near:
    """The hardware next to `gpus`, by NUMA node and PCI path as sysfs states them."""
    nodes, cpus, of_nodes = _cpus(topology, gpus)
    nics, how_near = _nics(topology, gpus)
    return Near(nodes, cpus, nics, (*of_nodes, *how_near))


def binding_of(
    topology: Topology,
    gpus: Sequence[Gpu],
    allowed: Iterable[int],
    environment: Mapping[str, str],
    *,
    ranks_bind: bool = False,
) -> Binding:
    """The binding of a process on `gpus` that may run on the CPUs `allowed`.

    Choices made outside stay: a list of network devices, and CPUs where too few of them lie next to the GPUs
    (`_left_alone`). With `ranks_bind` vLLM binds each of its ranks itself, so CPUs and memory are left alone.
    """
    near = nearest(topology, gpus)
    where = f"{', '.join(map(str, gpus))}: "
    leave = (), "CPUs and memory: vLLM binds its ranks itself"
    cpus, why_cpus = leave if ranks_bind else _kept(topology, near, frozenset(allowed))
    told, why_nics = _net_devices(topology, near, environment)
    reasons = (f"{where}{why_cpus}", f"{where}{why_nics}")
    return Binding(cpus, near.nodes if cpus else (), told, reasons, called(gpus))


def called(gpus: Sequence[Gpu]) -> str:
    """`NVIDIA H100 80GB HBM3 x 4`; unlike ones each by their own name."""
    counts = Counter(gpu.name for gpu in gpus)
    return " + ".join(f"{name} x {count}" for name, count in sorted(counts.items()))


def ranges(numbers: Iterable[int]) -> str:
    """`0-3,8`, as Linux writes lists of processors."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _kept(topology: Topology, near: Near, allowed: frozenset[int]) -> tuple[tuple[int, ...], str]:
    stay = "CPUs and memory stay as they are"
    if not near.cpus:
        return (), f"{stay}: no NUMA node is nearer than the others"
    usable = tuple(sorted(allowed.intersection(near.cpus)))
    nodes = f"NUMA node {' and '.join(map(str, near.nodes))}"
    if why := _left_alone(topology, near, allowed, len(usable)):
        return (), f"{stay}: {why} of {nodes}"
    return usable, f"CPUs {ranges(usable)} and memory of {nodes}"


def _left_alone(topology: Topology, near: Near, allowed: frozenset[int], usable: int) -> str:
    """Why CPUs that were given from outside stay as they are; empty where `usable` of them are enough.

    A choice of clearly fewer CPUs than the machine has may be this process's alone: those elsewhere would be idle.
    """
    if 2 * usable < len(near.cpus):
        return f"this process was given {usable} of the {len(near.cpus)}"
    given = [cpu for each in topology.cpus.values() for cpu in each if cpu in allowed]
    every = sum(map(len, topology.cpus.values()))
    if len(given) < _UNCHOSEN * every and usable < _NEAR_ENOUGH * len(given):
        return f"only {usable} of the {len(given)} that this process was given are"
    return ""


def _net_devices(topology: Topology, near: Near, environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    if NET_DEVICES in environment:
        return {}, f"network devices stay as {NET_DEVICES}={environment[NET_DEVICES]} says"
    if not topology.nics:
        return {}, "no RDMA port that is up and given to this process"
    if not near.nics:
        return {}, f"no RDMA port is known to be nearer than the others ({', '.join(map(str, topology.nics))})"
    names = ",".join(map(str, near.nics))
    return {NET_DEVICES: names}, f"{NET_DEVICES}={names}, the nearest of {len(topology.nics)} ports"


def _cpus(topology: Topology, gpus: Sequence[Gpu]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]:
    """Nodes and their CPUs, where there are several nodes."""
    nodes = tuple(sorted({gpu.numa for gpu in gpus if gpu.numa is not None}))
    known = bool(gpus) and all(gpu.numa is not None and topology.cpus.get(gpu.numa) for gpu in gpus)
    if len(topology.cpus) < 2 or not known:
        return (), (), ()
    cpus = tuple(sorted(cpu for node in nodes for cpu in topology.cpus[node]))
    if set(cpus) == {cpu for each in topology.cpus.values() for cpu in each}:
        return (), (), ()
    return nodes, cpus, (f"next to CPUs {ranges(cpus)} of NUMA node {' and '.join(map(str, nodes))}",)


def _nics(topology: Topology, gpus: Sequence[Gpu]) -> tuple[tuple[Nic, ...], tuple[str, ...]]:
    """The network devices next to at least one of the GPUs, with the reason; none where these are all devices, or
    where none is known for one of the GPUs."""
    near: dict[str, str] = {}
    for gpu in gpus:
        found = _ports_next_to(gpu, topology.nics)
        if not found:
            return (), ()
        near |= found
    chosen = tuple(nic for nic in topology.nics if nic.name in near)
    if not chosen or len(chosen) == len(topology.nics):
        return (), ()
    told = ", ".join(f"{nic} ({near[nic.name]})" for nic in chosen)
    return chosen, (f"next to network devices {told}",)


def _ports_next_to(gpu: Gpu, nics: Sequence[Nic]) -> dict[str, str]:
    """The names of the ports next to the GPU, each with how near it is: the ports the fewest PCI links away below a
    common bridge, otherwise all ports of the GPU's NUMA node. Without such a bridge the number of links says how deep
    a device lies, and nothing about how near it is."""
    if not gpu.path:
        return {}
    links = {nic.name: distance(gpu.path, nic.path) for nic in nics if _bridge_in_common(gpu.path, nic.path)}
    if links:
        fewest = min(links.values())
        return {name: f"{fewest} PCI links away" for name, count in links.items() if count == fewest}
    return {nic.name: f"NUMA node {gpu.numa}" for nic in nics if gpu.numa is not None and nic.numa == gpu.numa}


def _bridge_in_common(one: Path, other: Path) -> bool:
    """Below the root complex, with which a path begins."""
    return len(one) > 1 and one[:2] == other[:2]
