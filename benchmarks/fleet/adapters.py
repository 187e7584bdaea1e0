"""LoRA adapters of a simulated fleet: which ones each worker has loaded, and how long loading takes."""

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True)
class AdapterSettings:
    """A worker has room for so many adapters; one that is not there is loaded first, in place of the one that was
    asked for the longest ago."""

    slots: int
    load_s: float


class Adapters:
    """Of all workers of a fleet."""

    def __init__(self, settings: AdapterSettings, workers: int) -> None:
        self._settings = settings
        self._loaded: list[OrderedDict[str, float]] = [OrderedDict() for _ in range(workers)]
        """By worker and adapter, when it is or was loaded; asked for last at the end."""
        self.loads = 0
        """How often an adapter was loaded, on all workers together."""

    def ready_s(self, worker: int, adapter: str, now: float) -> float:
        """When a request that comes now can begin there."""
        if not adapter:
            return now
        loaded = self._loaded[worker]
        if adapter not in loaded:
            self.loads += 1
            loaded[adapter] = now + self._settings.load_s
            if len(loaded) > self._settings.slots:
                loaded.popitem(last=False)
        loaded.move_to_end(adapter)
        return max(now, loaded[adapter])
