"""Sends an attempt to its workers: prefill and decode hear of it in the same tick."""

from typing import Final, NamedTuple

from kv_transfer.tickets import Claims, issue
from router.dispatch.attempt import Attempt, Leg
from router.dispatch.context import Tools
from router.dispatch.seal import resume_key, seal
from router.fleet.peer import Peer
from router.generation import Generation
from tandem.core.messages import Export, RemoteKv, SequenceOutput, Submit
from tandem.core.request import Branch
from tandem.core.spans import TraceContext


class _Keepsake(NamedTuple):
    """What makes an attempt resumable."""

    resume: bytes
    key: bytes
    kept: tuple[SequenceOutput, ...]


_NOTHING_KEPT: Final = _Keepsake(b"", b"", ())


def send_attempt(
    tools: Tools,
    generation: Generation,
    attempt: Attempt,
    branches: tuple[Branch, ...],
    left_s: float,
    kept: tuple[SequenceOutput, ...] = (),
) -> None:
    """`Submit` to every leg, with `left_s` until the request's deadline and a lease under a fresh id. Workers keep
    `kept`, the answer of a resumable request so far."""
    prefill, decode = attempt.prefill, attempt.decode
    keep = _NOTHING_KEPT if generation.resume is None else _keepsake(tools, generation, attempt, kept)
    if prefill is None:
        decode.send(_submit(generation, attempt, decode, "local", branches, left_s, keep))
        return
    export = Export(tools.entropy.token(12).hex(), decode.peer.epoch, tools.settings.deadlines.lease_s)
    remote = _remote(tools, generation, prefill.peer, export, left_s, attempt.placement.path)
    prefill.send(_submit(generation, attempt, prefill, "prefill", branches, left_s, keep, export=export))
    decode.send(_submit(generation, attempt, decode, "decode", branches, left_s, keep, remote=remote))


def _keepsake(tools: Tools, generation: Generation, attempt: Attempt, kept: tuple[SequenceOutput, ...]) -> _Keepsake:
    sealed = seal(tools.keyring, generation, attempt.placement.cached_tokens)
    return _Keepsake(sealed, resume_key(tools.keyring, generation), kept)


def _remote(tools: Tools, generation: Generation, holder: Peer, export: Export, left_s: float, path: str) -> RemoteKv:
    """Where the blocks are: the transport that carried last between the two is tried first."""
    claims = Claims(
        tenant=generation.tenant,
        holder_epoch=holder.epoch,
        lease_id=export.lease_id,
        receiver_epoch=export.decode_epoch,
        expires=tools.clock.wall() + left_s,
    )
    ticket = issue(tools.keyring, claims)
    return RemoteKv(holder.worker_id, holder.epoch, holder.addresses_by(path), export.lease_id, ticket)


def _submit(
    generation: Generation,
    attempt: Attempt,
    leg: Leg,
    mode: str,
    branches: tuple[Branch, ...],
    left_s: float,
    keep: _Keepsake,
    *,
    remote: RemoteKv | None = None,
    export: Export | None = None,
) -> Submit:
    return Submit(
        handle=leg.handle,
        request_id=generation.request_id,
        attempt=attempt.number,
        mode=mode,
        prompt=generation.prompt,
        branches=branches,
        sampling=generation.sampling,
        stopping=generation.stopping,
        deadline_s=left_s,
        tenant_salt=generation.tenant_salt,
        priority=generation.priority,
        remote=remote,
        export=export,
        traceparent=TraceContext(generation.trace.trace_id, attempt.span_id, generation.trace.sampled).header(),
        resume=keep.resume,
        resume_key=keep.key,
        kept=keep.kept,
    )
