"""Sends an attempt to its workers: prefill and decode receive it in the same tick."""

from collections.abc import Callable
from typing import Final, NamedTuple

from kv_transfer.tickets import Claims, issue
from kv_transfer.transport.protocol import reuse_lease
from router.dispatch.attempt import Attempt, WorkerStream
from router.dispatch.deps import DispatchDeps
from router.dispatch.resume_token import encode_resume_token, resume_key
from router.fleet.orphaned_holders import OrphanedHolder
from router.fleet.peer import Peer
from router.generation import Generation
from tandem.core.messages import Export, RemoteKv, SequenceOutput, Source, Submit
from tandem.core.request import ChildRequest, spec_fields
from tandem.core.spans import TraceContext


class _Keepsake(NamedTuple):
    """The parts of a submitted attempt that make it resumable."""

    resume: bytes
    key: bytes
    kept: tuple[SequenceOutput, ...]


_NOTHING_KEPT: Final = _Keepsake(b"", b"", ())


def send_attempt(
    tools: DispatchDeps,
    generation: Generation,
    attempt: Attempt,
    branches: tuple[ChildRequest, ...],
    left_s: float,
    kept: tuple[SequenceOutput, ...] = (),
    *,
    peer: Callable[[str, str], Peer | OrphanedHolder | None],
) -> None:
    """Send `Submit` to every leg, with `left_s` until the request's deadline and leases under fresh ids. Workers keep
    `kept`, the answer of a resumable request so far. `peer` gives the live incarnation of a worker, or a holder that
    is known without a link to requests for a model."""
    prefill, decode = attempt.prefill, attempt.decode
    keep = _NOTHING_KEPT if generation.resume is None else _keepsake(tools, generation, attempt, kept)
    trace = TraceContext(generation.trace.trace_id, attempt.span_id, generation.trace.sampled).header()
    if prefill is None:
        sources = _sources(tools, generation, attempt, decode, left_s, peer)
        decode.send(_submit(generation, attempt, decode, "local", branches, left_s, keep, trace, sources=sources))
        return
    sources = _sources(tools, generation, attempt, prefill, left_s, peer)
    export = Export(tools.entropy.token(12).hex(), decode.peer.epoch, tools.settings.deadlines.lease_s)
    remote = _remote(tools, generation, prefill.peer, export, decode.peer, left_s, attempt.placement.path)
    computing = _submit(
        generation, attempt, prefill, "prefill", branches, left_s, keep, trace, export=export, sources=sources
    )
    prefill.send(computing)
    decode.send(_submit(generation, attempt, decode, "decode", branches, left_s, keep, trace, remote=remote))


def _keepsake(
    tools: DispatchDeps, generation: Generation, attempt: Attempt, kept: tuple[SequenceOutput, ...]
) -> _Keepsake:
    sealed = encode_resume_token(tools.keyring, generation, attempt.placement.cached_tokens)
    return _Keepsake(sealed, resume_key(tools.keyring, generation), kept)


def _remote(
    tools: DispatchDeps,
    generation: Generation,
    holder: Peer,
    export: Export,
    decode: Peer,
    left_s: float,
    path: str,
) -> RemoteKv:
    """The location of the blocks. The transport that last carried blocks between the two workers is tried first."""
    ticket = _ticket(tools, generation, holder, export.lease_id, decode, left_s)
    return RemoteKv(holder.worker_id, holder.epoch, holder.addresses_by(path), export.lease_id, ticket)


def _sources(
    tools: DispatchDeps,
    generation: Generation,
    attempt: Attempt,
    receiver: WorkerStream,
    left_s: float,
    peer: Callable[[str, str], Peer | OrphanedHolder | None],
) -> tuple[Source, ...]:
    """The sources from which the worker that computes the prompt may fetch, as placement chose. Holders that have
    gone since are left out."""
    if not attempt.placement.sources:
        return ()
    sources = []
    for choice in attempt.placement.sources:
        holder = peer(choice.holder, generation.model)
        if holder is None or holder is receiver.peer:
            continue
        lease_id = reuse_lease(tools.entropy.token(12).hex())
        ticket = _ticket(tools, generation, holder, lease_id, receiver.peer, left_s)
        addresses = holder.addresses_by("")
        sources.append(
            Source(holder.worker_id, holder.epoch, addresses, lease_id, ticket, choice.blocks, choice.kind)
        )
    return tuple(sources)


def _ticket(
    tools: DispatchDeps,
    generation: Generation,
    holder: Peer | OrphanedHolder,
    lease_id: str,
    receiver: Peer,
    left_s: float,
) -> bytes:
    """The right of one incarnation to read under one lease of another, which serves the same model."""
    claims = Claims(
        tenant=generation.tenant,
        holder_epoch=holder.epoch,
        lease_id=lease_id,
        receiver_epoch=receiver.epoch,
        expires=tools.clock.wall() + left_s,
    )
    return issue(tools.ticket_keys(receiver.view.model), claims)


def _submit(
    generation: Generation,
    attempt: Attempt,
    leg: WorkerStream,
    mode: str,
    branches: tuple[ChildRequest, ...],
    left_s: float,
    keep: _Keepsake,
    traceparent: str,
    *,
    remote: RemoteKv | None = None,
    export: Export | None = None,
    sources: tuple[Source, ...] = (),
) -> Submit:
    return Submit(
        **spec_fields(generation),
        handle=leg.handle,
        request_id=generation.request_id,
        attempt=attempt.number,
        mode=mode,
        branches=branches,
        deadline_s=left_s,
        remote=remote,
        export=export,
        traceparent=traceparent,
        resume=keep.resume,
        resume_key=keep.key,
        kept=keep.kept,
        pin=generation.pin if mode != "decode" else None,
        sources=sources,
        images=generation.images,
        confirm_recompute=mode == "decode",
    )
