"""Protobuf to and from messages: what a router sends on the tokens stream, and nothing else."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from protos import worker_pb2 as pb
from tandem.core.messages import (
    Cancel,
    Claim,
    Drain,
    Export,
    Keep,
    Ping,
    ProvideFirst,
    RemoteKv,
    SampleFirst,
    Submit,
    WorkerCommand,
)
from tandem.core.request import Branch, Sampling, Stopping
from tandem.service.outputs_rpc import fill_step, read_step

_U64: Final = (1 << 64) - 1


def encode_command(message: WorkerCommand) -> bytes:
    """A frame with one command. Frames may be concatenated."""
    frame = pb.CommandFrame()
    _FILL[type(message)](frame.commands.add(), message)
    return frame.SerializeToString()


def decode_commands(frame: bytes) -> tuple[WorkerCommand, ...]:
    """The commands of a frame, in order. Raises `google.protobuf.message.DecodeError`."""
    commands = pb.CommandFrame.FromString(frame).commands
    kinds = ((command, command.WhichOneof("kind")) for command in commands)
    return tuple(_READ[kind](getattr(command, kind)) for command, kind in kinds if kind is not None)


def _fill_submit(out: pb.Command, message: Submit) -> None:
    submit = out.submit
    submit.handle = message.handle
    submit.request_id = message.request_id
    submit.attempt = message.attempt
    submit.mode = message.mode
    submit.prompt = message.prompt
    for branch in message.branches:
        submit.branches.add(
            sequence=branch.sequence,
            seed=branch.seed & _U64,
            forced=branch.forced,
            sent_chars=branch.sent_chars,
        )
    _fill_sampling(submit.sampling, message.sampling)
    _fill_stopping(submit.stopping, message.stopping)
    submit.deadline_s = message.deadline_s
    submit.tenant_salt = message.tenant_salt
    submit.priority = message.priority
    submit.traceparent = message.traceparent
    submit.canary = message.canary
    if message.resume:
        submit.resume = message.resume
        submit.resume_key = message.resume_key
        fill_step(submit.kept, message.kept)
    if message.remote is not None:
        _fill_remote(submit.remote, message.remote)
    if message.export is not None:
        submit.export.lease_id = message.export.lease_id
        submit.export.decode_epoch = message.export.decode_epoch
        submit.export.lease_s = message.export.lease_s


def _fill_sampling(out: pb.Sampling, sampling: Sampling) -> None:
    out.temperature = sampling.temperature
    out.top_p = sampling.top_p
    out.top_k = sampling.top_k
    out.min_p = sampling.min_p
    out.presence_penalty = sampling.presence_penalty
    out.frequency_penalty = sampling.frequency_penalty
    out.repetition_penalty = sampling.repetition_penalty
    if sampling.logit_bias:
        out.bias_token.extend(token for token, _ in sampling.logit_bias)
        out.bias.extend(bias for _, bias in sampling.logit_bias)
    if sampling.logprobs is not None:
        out.logprobs = sampling.logprobs


def _fill_stopping(out: pb.Stopping, stopping: Stopping) -> None:
    out.max_tokens = stopping.max_tokens
    out.min_tokens = stopping.min_tokens
    out.stop.extend(stopping.stop)
    out.stop_token_ids.extend(stopping.stop_token_ids)
    out.ignore_eos = stopping.ignore_eos


def _fill_remote(out: pb.RemoteKv, remote: RemoteKv) -> None:
    out.worker_id = remote.worker_id
    out.epoch = remote.epoch
    out.addresses.extend(remote.addresses)
    out.lease_id = remote.lease_id
    out.ticket = remote.ticket


def _fill_cancel(out: pb.Command, message: Cancel) -> None:
    out.cancel.handle = message.handle
    if message.sequence is not None:
        out.cancel.sequence = message.sequence


def _fill_first(out: pb.Command, message: ProvideFirst) -> None:
    first = out.provide_first
    first.handle, first.sequence, first.token = message.handle, message.sequence, message.token


def _fill_sample_first(out: pb.Command, message: SampleFirst) -> None:
    out.sample_first.handle = message.handle


def _fill_keep(out: pb.Command, message: Keep) -> None:
    out.keep.handle = message.handle
    fill_step(out.keep.outputs, message.outputs)


def _fill_claim(out: pb.Command, message: Claim) -> None:
    out.claim.handle = message.handle
    out.claim.keys.extend(message.keys)


def _fill_drain(out: pb.Command, message: Drain) -> None:
    out.drain.within_s = message.within_s


def _fill_ping(out: pb.Command, message: Ping) -> None:
    out.ping.count = message.count


def _read_submit(submit: pb.Submit) -> Submit:
    return Submit(
        handle=submit.handle,
        request_id=submit.request_id,
        attempt=submit.attempt,
        mode=submit.mode,
        prompt=submit.prompt,
        branches=tuple(
            Branch(branch.sequence, branch.seed, tuple(branch.forced), branch.sent_chars)
            for branch in submit.branches
        ),
        sampling=_read_sampling(submit.sampling),
        stopping=_read_stopping(submit.stopping),
        deadline_s=submit.deadline_s,
        tenant_salt=submit.tenant_salt,
        priority=submit.priority,
        remote=_read_remote(submit.remote) if submit.HasField("remote") else None,
        export=_read_export(submit.export) if submit.HasField("export") else None,
        traceparent=submit.traceparent,
        canary=submit.canary,
        resume=submit.resume,
        resume_key=submit.resume_key,
        kept=read_step(submit.kept).outputs if submit.HasField("kept") else (),
    )


def _read_sampling(sampling: pb.Sampling) -> Sampling:
    return Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=tuple(zip(sampling.bias_token, sampling.bias, strict=False)),
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
    )


def _read_stopping(stopping: pb.Stopping) -> Stopping:
    return Stopping(
        max_tokens=stopping.max_tokens,
        min_tokens=stopping.min_tokens,
        stop=tuple(stopping.stop),
        stop_token_ids=tuple(stopping.stop_token_ids),
        ignore_eos=stopping.ignore_eos,
    )


def _read_remote(remote: pb.RemoteKv) -> RemoteKv:
    return RemoteKv(remote.worker_id, remote.epoch, tuple(remote.addresses), remote.lease_id, remote.ticket)


def _read_export(export: pb.Export) -> Export:
    return Export(export.lease_id, export.decode_epoch, export.lease_s)


def _read_cancel(cancel: pb.Cancel) -> Cancel:
    return Cancel(cancel.handle, cancel.sequence if cancel.HasField("sequence") else None)


_FILL: Final[Mapping[type, Callable[[pb.Command, Any], None]]] = MappingProxyType(
    {
        Submit: _fill_submit,
        Cancel: _fill_cancel,
        ProvideFirst: _fill_first,
        SampleFirst: _fill_sample_first,
        Keep: _fill_keep,
        Claim: _fill_claim,
        Drain: _fill_drain,
        Ping: _fill_ping,
    }
)

_READ: Final[Mapping[str, Callable[[Any], WorkerCommand]]] = MappingProxyType(
    {
        "submit": _read_submit,
        "cancel": _read_cancel,
        "provide_first": lambda first: ProvideFirst(first.handle, first.sequence, first.token),
        "sample_first": lambda first: SampleFirst(first.handle),
        "keep": lambda keep: Keep(keep.handle, read_step(keep.outputs).outputs),
        "claim": lambda claim: Claim(claim.handle, tuple(claim.keys)),
        "drain": lambda drain: Drain(drain.within_s),
        "ping": lambda ping: Ping(ping.count),
    }
)
