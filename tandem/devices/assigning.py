"""Assigns GPUs, and a share of their memory, to each worker, with the reasons. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Final

from tandem.core.errors import TandemError
from tandem.core.sizing import RUNTIME_SHARE
from tandem.devices.binding import nearest
from tandem.devices.topology import BUS_ORDER, ORDER, Gpu, Topology

SHARE_MAX: Final = 1 - RUNTIME_SHARE
"""The share of a GPU's memory that workers without a share of their own take together; the rest is for CUDA
itself."""
_SHARE_MIN: Final = 0.02
_STEPS: Final = 1000


@dataclass(frozen=True)
class Wanted:
    """A worker that needs `ranks` GPUs, and of each the given share of its memory; None takes what is its part."""

    name: str
    role: str
    ranks: int = 1
    share: float | None = None


@dataclass(frozen=True)
class Assignment:
    """The GPUs that a worker gets. `reasons` also say which CPUs and network devices lie next to its GPUs; the worker
    decides when it starts which of them it keeps to (`binding`)."""

    name: str
    role: str
    gpus: tuple[Gpu, ...]
    share: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The assignments of all workers that were asked for, in that order. `idle` names the GPUs that no worker got."""

    assignments: tuple[Assignment, ...]
    idle: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Placed:
    wanted: Wanted
    gpus: tuple[Gpu, ...]


def assign(topology: Topology, workers: Sequence[Wanted], taken: Sequence[Assignment] = ()) -> Plan:
    """Spread `workers` over the GPUs; `taken` are workers that run and keep what they have.

    Those with most ranks choose first: GPUs with the fewest workers, then on the fewest NUMA nodes. A worker that has
    to share a GPU does so with workers of its own role where it can: a prompt of a prefill worker would hold up the
    streams of a decode worker on the same GPU. Raises `bad_setting` with the arithmetic where they do not fit.
    """
    if not topology.gpus:
        raise TandemError("bad_setting", f"device cuda: no GPU is visible here ({topology.variable} may hide them)")
    placed: dict[str, _Placed] = {}
    for wanted in sorted(workers, key=lambda each: -each.ranks):
        placed[wanted.name] = _Placed(wanted, _choose(topology, wanted, placed.values(), taken))
    assignments = tuple(_assignment(topology, placed[each.name], placed.values(), taken) for each in workers)
    used = {gpu.token for each in (*assignments, *taken) for gpu in each.gpus}
    return Plan(assignments, tuple(f"{gpu} has no worker" for gpu in topology.gpus if gpu.token not in used))


def environment_of(topology: Topology, assignment: Assignment, outer: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that show a worker's process its GPUs."""
    tokens = ",".join(gpu.token for gpu in assignment.gpus)
    told = {topology.variable: tokens}
    if topology.vendor == "nvidia":
        # Numbers that were given from outside mean what they meant there.
        if topology.variable not in outer and ORDER not in outer:
            told[ORDER] = BUS_ORDER
    elif "CUDA_VISIBLE_DEVICES" in outer:
        told["CUDA_VISIBLE_DEVICES"] = tokens
    return told


def _choose(
    topology: Topology, wanted: Wanted, placed: Iterable[_Placed], taken: Sequence[Assignment]
) -> tuple[Gpu, ...]:
    gpus, ranks = topology.gpus, wanted.ranks
    if ranks > len(gpus):
        raise TandemError(
            "bad_setting",
            f"{wanted.name} spreads over {ranks} GPUs (parallelism) and {len(gpus)} are visible here: lower tensor x "
            "pipeline, or run it where there are more",
            param="parallelism",
        )
    if ranks > 1 and any(gpu.slice for gpu in gpus):
        raise TandemError(
            "bad_setting",
            f"{wanted.name} spreads over {ranks} GPUs, and a process sees one slice (MIG) of a GPU only: give it "
            "whole GPUs, or parallelism 1",
            param="parallelism",
        )
    roles = _roles_on(placed, taken)
    position = {gpu.token: at for at, gpu in enumerate(gpus)}

    def burden(gpu: Gpu) -> tuple[int, int, int]:
        there = roles.get(gpu.token, ())
        return len(there), sum(role != wanted.role for role in there), position[gpu.token]

    nodes = {gpu.numa for gpu in gpus}
    groups = [[gpu for gpu in gpus if gpu.numa == node] for node in nodes] + [list(gpus)]
    choices = [sorted(group, key=burden)[:ranks] for group in groups if len(group) >= ranks]

    def cost(choice: list[Gpu]) -> tuple[int, int, int, int, int]:
        burdens = [burden(gpu) for gpu in choice]
        return (
            max(each[0] for each in burdens),
            sum(each[0] for each in burdens),
            len({gpu.numa for gpu in choice}),
            sum(each[1] for each in burdens),
            min(each[2] for each in burdens),
        )

    best = min(choices, key=cost)
    return tuple(sorted(best, key=lambda gpu: position[gpu.token]))


def _roles_on(placed: Iterable[_Placed], taken: Iterable[Assignment]) -> dict[str, tuple[str, ...]]:
    roles: dict[str, tuple[str, ...]] = {}
    for role, gpus in [(each.wanted.role, each.gpus) for each in placed] + [(each.role, each.gpus) for each in taken]:
        for gpu in gpus:
            roles[gpu.token] = (*roles.get(gpu.token, ()), role)
    return roles


def _assignment(
    topology: Topology, own: _Placed, placed: Iterable[_Placed], taken: Sequence[Assignment]
) -> Assignment:
    shares = [_share(own.wanted, gpu, list(placed), taken) for gpu in own.gpus]
    share, why = min(shares, key=lambda each: each[0])
    where = f"{', '.join(map(str, own.gpus))} ({own.gpus[0].name})"
    reasons = (f"{where}, {why}", *nearest(topology, own.gpus).reasons)
    return Assignment(own.wanted.name, own.wanted.role, own.gpus, share, reasons)


def _share(wanted: Wanted, gpu: Gpu, placed: Sequence[_Placed], taken: Sequence[Assignment]) -> tuple[float, str]:
    """The worker's share of one GPU's memory, and its reason. Raises `bad_setting`."""
    new = [each.wanted for each in placed if gpu in each.gpus]
    fixed = [(each.name, each.share) for each in taken if gpu.token in {one.token for one in each.gpus}]
    fixed += [(each.name, each.share) for each in new if each.share is not None]
    free = [each.name for each in new if each.share is None]
    total = sum(share for _, share in fixed)
    parts = " + ".join(f"{name} {share:g}" for name, share in fixed)
    if total > 1 + 1e-9:
        raise TandemError(
            "bad_setting",
            f"{gpu} has not the memory for {wanted.name}: shares {parts} = {total:g} of it, more than 1; lower "
            "gpuMemoryShare, or run fewer workers",
            param="gpu_memory_share",
        )
    if wanted.share is not None:
        return wanted.share, f"share {wanted.share:g} as gpuMemoryShare says"
    # The last digit is cut off, so that shares never add up to more.
    left = floor((SHARE_MAX - total) / len(free) * _STEPS + 1e-6) / _STEPS
    if left < _SHARE_MIN:
        raise TandemError(
            "bad_setting",
            f"{gpu} has no memory left for {wanted.name}: {parts} of {SHARE_MAX:g} are taken; give those a smaller "
            "gpuMemoryShare, or run fewer workers",
            param="gpu_memory_share",
        )
    others = [name for name, _ in fixed] + [name for name in free if name != wanted.name]
    if not others:
        return left, f"alone on it: share {left:g}"
    rest = f"({SHARE_MAX:g} - {parts}) / {len(free)}" if fixed else f"{SHARE_MAX:g} / {len(free)} workers"
    return left, f"with {', '.join(others)}: share {rest} = {left:g}"
