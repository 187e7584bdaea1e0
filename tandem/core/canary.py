"""The canary: a request that no client sent, which proves that KV blocks can travel from one worker to another.

Its prompt has one full block and a part of another. The holder computes them and the receiver fetches them, under a
lease and a ticket like those of any request. The blocks get no public name (`Submit.canary`), so they never appear in
an index, event or prefix cache. The salt is new each time, so the blocks are computed, digested and sent each time.
"""

from typing import Final

from tandem.core.kv import pack_tokens
from tandem.core.messages import Export, RemoteKv, Submit
from tandem.core.request import ChildRequest, Sampling, Stopping

CANARY: Final = "canary"
"""The tenant of canaries, and the beginning of their request ids."""

PRIORITY: Final = 1 << 20
"""The priority of a canary, above that of every request: a busy worker takes a canary among its next requests, not
among its last."""

_SEQUENCE: Final = ChildRequest(0, 1)
_STOPPING: Final = Stopping(max_tokens=2, min_tokens=2, ignore_eos=True)
"""The second token is decode's: where the first is the last, prefill lets its blocks go at once."""
_SAMPLING: Final = Sampling(temperature=0.0)


def canary_prompt(block_tokens: int, blocks: int, context_tokens: int) -> bytes:
    """Packed token ids, as many as fill a block and a half; fewer where a pool or context is too small for that."""
    tokens = block_tokens + max(1, block_tokens // 2)
    tokens = max(1, min(tokens, blocks * block_tokens - 1, context_tokens - _STOPPING.max_tokens))
    return pack_tokens([index & 1 for index in range(tokens)])


def canary_submit(
    handle: int,
    mode: str,
    prompt: bytes,
    nonce: str,
    deadline_s: float,
    *,
    remote: RemoteKv | None = None,
    export: Export | None = None,
) -> Submit:
    """One side of a canary: mode `prefill` with `export`, or `decode` with `remote`; both with the same `nonce`."""
    return Submit(
        handle=handle,
        request_id=f"{CANARY}-{nonce}",
        attempt=1,
        mode=mode,
        prompt=prompt,
        branches=(_SEQUENCE,),
        sampling=_SAMPLING,
        stopping=_STOPPING,
        deadline_s=deadline_s,
        tenant_salt=f"{CANARY}/{nonce}",
        priority=PRIORITY,
        remote=remote,
        export=export,
        canary=True,
    )
