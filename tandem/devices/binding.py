"""Which CPUs, memory and network devices a process on some GPUs keeps to, with the reasons. Pure.

The same decision whoever starts the process: `tandem up` and the operator give it GPUs, it binds itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from tandem.devices.topology import Gpu, Nic, Topology, distance

NET_DEVICES: Final = "UCX_NET_DEVICES"
"""The network devices that UCX, and nixl with it, may use."""


@dataclass(frozen=True)
class Near:
    """What lies next to some GPUs: NUMA nodes with their CPUs, and RDMA ports. Empty where nothing is nearer than
    the rest."""

    nodes: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    nics: tuple[Nic, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Binding:
    """What a process does to itself: run on `cpus`, take memory of `nodes` first, and set `environment`. Empty parts
    stay as they are."""

    cpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


def nearest(topology: Topology, gpus: Sequence[Gpu]) -> Near:
    """By NUMA node and PCI path, as sysfs tells them."""
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
    """What a process on `gpus` does, which may run on the CPUs `allowed`.

    What was chosen outside stays: a list of network devices, and CPUs of which less than half of those next to the
    GPUs are left. `ranks_bind`: vLLM binds each of its ranks itself, so that CPUs and memory are its affair.
    """
    near = nearest(topology, gpus)
    where = f"{', '.join(map(str, gpus))}: "
    cpus, why_cpus = ((), "CPUs and memory: vLLM binds its ranks itself") if ranks_bind else _kept(near, allowed)
    told, why_nics = _net_devices(topology, near, environment)
    return Binding(cpus, near.nodes if cpus else (), told, (f"{where}{why_cpus}", f"{where}{why_nics}"))


def ranges(numbers: Iterable[int]) -> str:
    """`0-3,8`, as Linux writes lists of processors."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _kept(near: Near, allowed: Iterable[int]) -> tuple[tuple[int, ...], str]:
    if not near.cpus:
        return (), "CPUs and memory stay as they are: no NUMA node is nearer than the others"
    usable = tuple(sorted(set(near.cpus) & set(allowed)))
    nodes = f"NUMA node {' and '.join(map(str, near.nodes))}"
    if 2 * len(usable) < len(near.cpus):
        left = f"of the {len(near.cpus)} of {nodes} this process was given {len(usable)}"
        return (), f"CPUs and memory stay as they are: {left}"
    return usable, f"CPUs {ranges(usable)} and memory of {nodes}"


def _net_devices(topology: Topology, near: Near, environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    if NET_DEVICES in environment:
        return {}, f"network devices stay as {NET_DEVICES}={environment[NET_DEVICES]} says"
    if not topology.nics:
        return {}, "no RDMA port that is up and given to this process"
    if not near.nics:
        return {}, f"every RDMA port ({', '.join(nic.name for nic in topology.nics)}) is as near as the others"
    names = ",".join(nic.name for nic in near.nics)
    return {
        NET_DEVICES: names
    }, f"{NET_DEVICES}={names}, of {len(topology.nics)} ports those with the fewest PCI links"


def _cpus(topology: Topology, gpus: Sequence[Gpu]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]:
    """Nodes and their CPUs, where there are several nodes."""
    nodes = tuple(sorted({gpu.numa for gpu in gpus if gpu.numa is not None}))
    known = all(gpu.numa is not None and topology.cpus.get(gpu.numa) for gpu in gpus)
    if len(topology.cpus) < 2 or not known:
        return (), (), ()
    cpus = tuple(sorted(cpu for node in nodes for cpu in topology.cpus[node]))
    if set(cpus) == {cpu for each in topology.cpus.values() for cpu in each}:
        return (), (), ()
    return nodes, cpus, (f"CPUs {ranges(cpus)} of NUMA node {' and '.join(map(str, nodes))}",)


def _nics(topology: Topology, gpus: Sequence[Gpu]) -> tuple[tuple[Nic, ...], tuple[str, ...]]:
    """Of each GPU those at the shortest PCI distance."""
    near: dict[str, tuple[Nic, int]] = {}
    for gpu in gpus:
        ways = [(distance(gpu.path, nic.path), nic) for nic in topology.nics if gpu.path and nic.path]
        # Without a bridge in common it is the NUMA node that tells.
        same = [way for way in ways if way[1].numa == gpu.numa]
        for links, nic in same or ways:
            if links == min(way[0] for way in same or ways):
                near[nic.name] = nic, links
    chosen = tuple(nic for nic in topology.nics if nic.name in near)
    if not chosen or len(chosen) == len(topology.nics):
        return (), ()
    told = ", ".join(f"{nic.name} ({near[nic.name][1]} PCI links away)" for nic in chosen)
    return chosen, (f"network devices {told}",)
