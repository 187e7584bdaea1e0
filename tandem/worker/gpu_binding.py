"""A worker on GPUs keeps to what lies next to them, in a pod as under `tandem up`."""

from collections.abc import MutableMapping
from typing import Final

from tandem.engine.vllm.extra_args import read_extra
from tandem.worker.process_settings import WorkerSettings

_RANKS_BIND: Final = "numa_bind"
"""vLLM's own argument for it, which binds each rank to the node of its GPU."""


def bind_near_gpus(settings: WorkerSettings, environment: MutableMapping[str, str]) -> str:
    """Bind this process near its GPUs before the engine is made, so that what the engine starts inherits the binding.
    Gives the name of the GPUs, or an empty string without a look at them: on CPUs, or where `bind` is off, nothing is
    done. Raises `bad_setting` for extra arguments that vLLM would not be given."""
    gpus = gpus_of(settings)
    if not gpus or not settings.bind:
        return ""
    # Imported on use: only workers on GPUs look for them.
    from tandem.devices.applying import bind

    ranks_bind = settings.engine == "vllm" and bool(read_extra(settings.vllm.extra).get(_RANKS_BIND))
    return bind(gpus, environment, ranks_bind=ranks_bind).hardware


def gpus_of(settings: WorkerSettings) -> range:
    """The positions of the worker's GPUs among those that its process sees."""
    if settings.engine == "vllm":
        return range(settings.vllm.ranks_here if settings.vllm.device == "cuda" else 0)
    kind, _, index = settings.torch.device.partition(":")
    if settings.engine != "torch" or kind != "cuda":
        return range(0)
    # A device that is no device is refused by the engine.
    first = int(index) if index.isdecimal() else 0
    return range(first, first + 1)
