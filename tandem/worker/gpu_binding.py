"""A worker on GPUs keeps to what lies next to them, in a pod as under `tandem up`."""

from collections.abc import MutableMapping

from tandem.worker.process_settings import WorkerSettings

_RANKS_BIND = "numa_bind"
"""vLLM's own argument for it, which binds each rank to the node of its GPU."""


def bind_near_gpus(settings: WorkerSettings, environment: MutableMapping[str, str]) -> None:
    """Before the engine is made: what it starts inherits it. Nothing is done on CPUs, or where `bind` is off."""
    ranks = gpus_of(settings)
    if ranks and settings.bind:
        # Imported on use: only workers on GPUs look for them.
        from tandem.devices.applying import bind

        bind(ranks, environment, ranks_bind=settings.vllm.extra.get(_RANKS_BIND, "").lower() == "true")


def gpus_of(settings: WorkerSettings) -> int:
    """How many GPUs of this machine the worker takes."""
    if settings.engine == "vllm":
        return settings.vllm.ranks_here if settings.vllm.device == "cuda" else 0
    return int(settings.engine == "torch" and settings.torch.device.startswith("cuda"))
