"""Whether an engine gets a KV connector and a stage: whether blocks of the model can be exchanged at all. Pure.

The stage exchanges keys and values, or latents, of every layer for every position. vLLM keeps other things for other
models: recurrent state, indexes, and of layers with a sliding window only what lies in it. With a connector that does
not know these vLLM would not start, or would keep more than it needs; so such models are served without one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem.core.config_facts import CacheKinds, Windows, cannot_exchange
from tandem.core.errors import TandemError

TRANSFERS: Final = ("auto", "always", "never")
"""The values that `kv_transfer` can have."""
_PLAIN_DTYPES: Final = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
"""Types of KV whose pages hold numbers and nothing else."""
_ROTATION: Final = "rotary_embedding"
"""vLLM's name for the kernel that turns queries and keys by their positions."""


@dataclass(frozen=True)
class Exchange:
    """`connector`: the engine gets one. `kv_events`: its prefix cache is made of blocks of one kind, so the names of
    cached blocks say what can be reused. `reason` is why it gets no connector; empty where it gets one."""

    connector: bool
    kv_events: bool = True
    reason: str = ""


def impossible(kinds: CacheKinds, kv_dtype: str = "auto", *, drafts: bool = False) -> str:
    """Why blocks cannot be exchanged whatever is asked for, in words; empty where they can. `drafts`: what drafts
    tokens has KV of its own."""
    if why := cannot_exchange(kinds):
        return why
    if drafts:
        return "what drafts tokens keeps KV of its own, which blocks of the model do not carry"
    if kv_dtype not in _PLAIN_DTYPES:
        return f"KV of type {kv_dtype} has scales in its pages, which blocks do not carry"
    return ""


def wrong_rotation(rope: Mapping[str, Any] | None, compilation: object) -> str:
    """Why latents of a model with these rotary parameters cannot be exchanged on a CPU; empty where they can.

    vLLM 0.32 gives its CPU kernel views of tokens x heads x width there, and the kernel takes the stride of heads for
    that of tokens: a token is turned otherwise in a prompt than alone. Scaled rotations (DeepSeek-V2, V3, R1, Kimi
    K2) do not use the kernel. `compilation` is vLLM's `compilation_config`, which can turn the kernel off.
    """
    if (rope or {}).get("rope_type", "default") != "default":
        return ""
    named = compilation.get("custom_ops") if isinstance(compilation, Mapping) else None
    operations = named if isinstance(named, list) else []
    if f"-{_ROTATION}" in operations or ("none" in operations and f"+{_ROTATION}" not in operations):
        return ""
    setting = f'compilation_config = {{"custom_ops": ["-{_ROTATION}"]}} among the extra arguments'
    return f"vLLM's CPU kernel turns the positions of unscaled latents wrongly, which {setting} mends"


def decide(kinds: CacheKinds, transfer: str, role: str, kv_dtype: str = "auto", *, drafts: bool = False) -> Exchange:
    """Whether a worker of `role` whose `kv_transfer` is `transfer` exchanges blocks. Raises `bad_setting` for a
    worker that would have to hand over or take over KV, and cannot."""
    refuse_contradiction(transfer, role)
    one_kind = not kinds.other and kinds.windows is Windows.NONE
    why = impossible(kinds, kv_dtype, drafts=drafts)
    if why:
        if role != "unified" or transfer == "always":
            raise TandemError("bad_setting", refusal(why, role), param="role")
        return Exchange(False, one_kind, why)
    if transfer == "never":
        return Exchange(False, one_kind, "kv_transfer is never")
    if kinds.windows is Windows.SOME and role == "unified" and transfer == "auto":
        why = (
            "some layers see a sliding window only, and vLLM keeps no more of them without a connector "
            "(kv_transfer: always keeps everything, and exchanges it)"
        )
        return Exchange(False, one_kind, why)
    return Exchange(True)


def refusal(why: str, role: str) -> str:
    """The error message for a role that hands KV over, or for `kv_transfer: always`, where the KV cannot be handed
    over."""
    asked = "kv_transfer = 'always'" if role == "unified" else f"role {role}"
    return f"{asked} needs KV that can be handed over, and this is not: {why}; use role unified with kv_transfer auto"


def refuse_contradiction(transfer: str, role: str) -> None:
    """Raise `bad_setting` for a role that hands KV over in a worker whose `kv_transfer` is `never`."""
    if transfer == "never" and role != "unified":
        problem = f"kv_transfer = 'never': role {role} hands KV over; use role unified, or kv_transfer auto"
        raise TandemError("bad_setting", problem, param="kv_transfer")
