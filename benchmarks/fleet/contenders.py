"""Everybody who competes in a simulated fleet, ours and peers, by name; and the workers that all of them get."""

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from benchmarks.fleet.auto import auto
from benchmarks.fleet.fleet import DeciderOf
from benchmarks.fleet.ours import OursSettings, ours
from benchmarks.fleet.peers.catalogue import PEERS, current, peer
from benchmarks.fleet.worker_settings import WorkerSettings
from tandem.engine.settings import SchedulerSettings

OURS: Final = "tandem"
EQUAL_TERMS: Final = "tandem equal terms"
"""Ours without fetches between workers and without prompts computed on decode workers, as peers are."""
AUTO: Final = "tandem auto"
"""Ours on workers of role `auto`, of which a planner says who takes prompts for others."""
OURSELVES: Final = (OURS, EQUAL_TERMS)
"""All others are peers."""
CONTENDERS: Final = (*OURSELVES, AUTO, *PEERS)
"""All names that `decider_of` knows."""
_BLIND: Final = ("random", "least loaded")
_ENGINE_BLOCK_TOKENS: Final = 16
_PRODUCTION: Final = SchedulerSettings()

CHUNKING: Final = MappingProxyType(
    {
        "ITL budget": (_PRODUCTION.max_batched_tokens, _PRODUCTION.itl_target_s),
        "8192": (8_192, None),
        "2048": (2_048, None),
    }
)
"""How workers cut prompts, by name: most tokens of a step, and the ITL target that bounds them further, if any."""


def contenders(roles: Sequence[str]) -> tuple[str, ...]:
    """Who competes on workers in these roles: ours, every peer as it is today, two that know nothing of caches."""
    return (*OURSELVES, *current(roles), *_BLIND)


def decider_of(name: str, settings: OursSettings, seed: int) -> DeciderOf:
    """The contender of that name for one run; `settings` are those of our router. Raises `KeyError` for a name that
    is not one of `CONTENDERS`."""
    if name == OURS:
        return ours(settings, seed)
    if name == EQUAL_TERMS:
        return ours(settings.equal_terms(), seed)
    if name == AUTO:
        return auto(settings, seed)
    return peer(name, seed)


def chunked(worker: WorkerSettings, chunking: str) -> WorkerSettings:
    """The worker with prompts cut in that way. Raises `KeyError` for a name that is not one of `CHUNKING`."""
    tokens, itl_target_s = CHUNKING[chunking]
    return replace(
        worker,
        max_batched_tokens=tokens,
        min_prefill_tokens=_PRODUCTION.min_prefill_tokens,
        itl_target_s=itl_target_s,
        engine_block_tokens=_ENGINE_BLOCK_TOKENS if itl_target_s is not None else 1,
    )
