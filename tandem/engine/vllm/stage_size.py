"""Size of a stage: from its settings, or from the memory of the pod, and enough for the engine's context. Pure."""

from typing import Final

from tandem.core.errors import TandemError
from tandem.engine.vllm.stage_settings import StageSettings

DEFAULT_SHARE: Final = 0.25
"""The share of the memory of a pod, or of a machine without pods, that its stages take together where no size is set.
Weights pass through the same memory while they load, and the page cache needs some."""
_SLOTS_MIN: Final = 2
_SET: Final = "set tiers.dram (tiers.dram_bytes of the worker)"


def default_bytes(memory_bytes: int, sharers: int) -> int:
    """The size of each stage where `sharers` workers have `memory_bytes` of host memory together."""
    return int(DEFAULT_SHARE * memory_bytes) // sharers


def slots_of(settings: StageSettings, block_bytes: int, block_tokens: int, context_tokens: int) -> int:
    """The number of blocks that the stage has. Raises `bad_setting` where a prompt of the whole context would not
    fit."""
    memory_bytes = settings.memory_bytes or 0
    slots = settings.blocks if settings.blocks is not None else memory_bytes // block_bytes
    needed = slots_needed(settings, block_tokens, context_tokens)
    if slots >= needed:
        return slots
    has = f"has {slots} slots" if settings.blocks is not None else f"has {_size(memory_bytes)}"
    token_bytes = block_bytes / block_tokens
    problem = (
        f"the stage {has} and needs {_size(needed * block_bytes)}: {needed} slots of {block_tokens} tokens of "
        f"{token_bytes:.0f} bytes{_why(settings, context_tokens)}; {_SET} to at least "
        f"{-(-needed * block_bytes >> 20)}Mi, or serve a shorter context (contextTokens)"
    )
    raise TandemError("bad_setting", problem, param="tiers.dram_bytes")


def slots_needed(settings: StageSettings, block_tokens: int, context_tokens: int) -> int:
    """The fewest slots with which no prompt within the context is refused for want of slots."""
    if settings.context_share is None:
        return _SLOTS_MIN
    blocks = -(-context_tokens // block_tokens)
    slots = max(_SLOTS_MIN, int(blocks / settings.context_share) - 1)
    while int(settings.context_share * slots) < blocks:
        slots += 1
    return slots


def _why(settings: StageSettings, context_tokens: int) -> str:
    if settings.context_share is None:
        return ""
    return f", as one prompt may have {context_tokens} tokens and {settings.context_share:.0%} of the slots"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.2f} GiB"
