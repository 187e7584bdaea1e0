"""What `tandem up --drills` changes about a platform, so that every stage of a request can be struck. Pure values."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tandem.apps.cli.restart import RestartPolicy
from tandem.spec.engine import EngineSpec

_LEASE_S: Final = 8.0
"""How long the answer of a client that does not come back is kept: longer than a router takes to start."""
_RESTART_S: Final = 0.0
"""What workers add for that. Platforms for drills are idle, and freed blocks are waited for."""

ROUTER: Final[Mapping[str, object]] = MappingProxyType(
    {
        # Few places on each worker, so that a handful of requests makes a queue.
        "core.placement.sequences_per_worker_max": 24,
        # Placement may find, rightly, that a small model computes a prompt faster than it hands it over.
        "core.placement.prefer": "disaggregated",
        "core.deadlines.resumable_lease_s": _LEASE_S,
    }
)

RESTART: Final = RestartPolicy(first_s=0.2, max_s=0.5)
"""Who is killed over and over, on purpose, need not wait longer and longer."""

_SLOW: Final[Mapping[str, Mapping[str, object]]] = {
    # Chunks of 0.12 s: prefill and transfer last. Steps of 0.02 s: the first token is alone for a while.
    "simulated": {
        "simulated.base_s": 0.02,
        "simulated.token_s": 0.0001,
        "scheduler.max_batched_tokens": 1024,
    },
    # A real model takes the time it takes; smaller chunks let the transfer begin before the prompt is computed.
    "torch": {"scheduler.max_batched_tokens": 256},
    "vllm": {"scheduler.max_batched_tokens": 256},
}


def notice(url: str, engine: EngineSpec) -> str:
    """What whoever starts such a platform is to know."""
    lines = [
        "DRILLS ARE ALLOWED: not for serving. Workers can be told to damage what they receive, and everything is",
        f"slower and smaller than it could be. Try: tandem drill kill-decode --during decode --url {url}",
    ]
    if engine.type != "simulated" and engine.dtype != "float32":
        lines.append("Answers repeat exactly in float32 only: start it with --dtype float32 to have them compared.")
    return "\n".join(lines) + "\n"


def worker_settings(engine: str) -> Mapping[str, object]:
    """Settings of every worker of a platform for drills."""
    deadlines = {"deadlines.resumable_lease_s": _LEASE_S, "deadlines.router_restart_s": _RESTART_S}
    return {"drills": "true", **deadlines, **_SLOW.get(engine, {})}
