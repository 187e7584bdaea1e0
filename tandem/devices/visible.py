"""Restricts a machine to what an outer visibility variable leaves of it, read as CUDA and HIP read it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tandem.core.errors import TandemError
from tandem.devices.topology import BUS_ORDER, ORDER, Gpu, Topology

_ROCR: Final = "ROCR_VISIBLE_DEVICES"


def restricted(topology: Topology, environment: Mapping[str, str]) -> Topology:
    """The GPUs a process with this environment sees, in its order, each under the name the variable gave it.

    As CUDA does it, what follows the first name that means no GPU is not seen. Raises `bad_setting` for a GPU that
    is named twice.
    """
    if topology.vendor == "amd" and (below := environment.get(_ROCR)) is not None:
        # HIP counts what the layer below it leaves.
        left = _named(topology.gpus, below, _ROCR)
        topology = replace(topology, gpus=tuple(replace(gpu, token=str(at)) for at, gpu in enumerate(left)))
    name, value = _outer(topology, environment)
    if value is None:
        return topology
    return replace(topology, gpus=_located(_named(topology.gpus, value, name), topology, environment))


def seen_at(topology: Topology, environment: Mapping[str, str], positions: range) -> tuple[Gpu, ...]:
    """The GPUs at these positions, from 0, among those that a process with this environment sees; fewer where it does
    not see so many. Raises `bad_setting` as `restricted` does."""
    seen = restricted(topology, environment).gpus[positions.start : positions.stop]
    return _located(seen, topology, environment)


def _outer(topology: Topology, environment: Mapping[str, str]) -> tuple[str, str | None]:
    """HIP listens to CUDA's variable too, where its own is not set."""
    names = [topology.variable, *(["CUDA_VISIBLE_DEVICES"] if topology.vendor == "amd" else [])]
    return next(((name, environment[name]) for name in names if name in environment), (names[0], None))


def _named(gpus: Sequence[Gpu], value: str, name: str) -> tuple[Gpu, ...]:
    found: list[Gpu] = []
    for token in value.split(","):
        gpu = _called(gpus, token.strip())
        if gpu is None:
            break
        if any(gpu.uuid == other.uuid and gpu.card == other.card for other in found):
            raise TandemError("bad_setting", f"{name}={value} names {gpu.name} twice: CUDA shows none then")
        found.append(replace(gpu, token=token.strip()))
    return tuple(found)


def _called(gpus: Sequence[Gpu], token: str) -> Gpu | None:
    """The GPU that `token` names, by its number among whole cards or by the beginning of its UUID."""
    if token.isdecimal():
        cards = list({gpu.card: gpu for gpu in gpus}.values())
        if int(token) >= len(cards):
            return None
        card = cards[int(token)].card
        return next(gpu for gpu in gpus if gpu.card == card)
    fitting = [gpu for gpu in gpus if token and gpu.uuid.startswith(token)]
    return fitting[0] if len(fitting) == 1 else None


def _located(gpus: tuple[Gpu, ...], topology: Topology, environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs, with place and memory size only where these are certain. Without CUDA_DEVICE_ORDER, CUDA numbers
    unlike cards by speed: the card behind a number is unknown then, so it has no place and no memory size."""
    by_bus = topology.vendor == "amd" or environment.get(ORDER) == BUS_ORDER
    if by_bus or len({gpu.name for gpu in topology.gpus}) == 1:
        return gpus
    return tuple(
        replace(gpu, name="of unlike ones", memory=None, numa=None, path=()) if gpu.token.isdecimal() else gpu
        for gpu in gpus
    )
