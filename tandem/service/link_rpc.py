"""Protobuf to and from messages of a worker link, and nothing else.

Each `encode_*` gives a frame with one message; concatenated frames are one frame with all of them, which is how
the messages of a loop tick come to share one. Each `decode_*` gives a frame's messages and skips unknown kinds;
it raises `google.protobuf.message.DecodeError` for bytes that are no frame.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from protos import worker_pb2 as pb
from tandem.core.kv import Layout
from tandem.core.messages import (
    AttemptFailed,
    AttemptReport,
    Claimed,
    Draining,
    Hello,
    KvDelta,
    KvSnapshot,
    Load,
    Pong,
    Ready,
    RouterMessage,
    SnapshotRequest,
    StateRequest,
    StateUpdate,
    StepOutputs,
    Transferred,
    Unclaimed,
)
from tandem.core.spans import Attribute, Span
from tandem.service.commands_rpc import decode_commands, encode_command
from tandem.service.outputs_rpc import fill_step, read_step

__all__ = [
    "SERVICE",
    "decode_commands",
    "decode_router_messages",
    "decode_state_requests",
    "decode_state_updates",
    "encode_command",
    "encode_router_message",
    "encode_state_request",
    "encode_state_update",
]

SERVICE: Final[str] = pb.DESCRIPTOR.services_by_name["WorkerLink"].full_name


def encode_router_message(message: RouterMessage) -> bytes:
    frame = pb.RouterFrame()
    _FILL_EVENT[type(message)](frame.events.add(), message)
    return frame.SerializeToString()


def decode_router_messages(frame: bytes) -> tuple[RouterMessage, ...]:
    events = pb.RouterFrame.FromString(frame).events
    kinds = ((event, event.WhichOneof("kind")) for event in events)
    return tuple(_READ_EVENT[kind](getattr(event, kind)) for event, kind in kinds if kind is not None)


def encode_state_request(message: StateRequest) -> bytes:
    frame = pb.StateRequestFrame()
    frame.requests.add().snapshot_request.SetInParent()
    return frame.SerializeToString()


def decode_state_requests(frame: bytes) -> tuple[StateRequest, ...]:
    requests = pb.StateRequestFrame.FromString(frame).requests
    return tuple(SnapshotRequest() for request in requests if request.HasField("snapshot_request"))


def encode_state_update(message: StateUpdate) -> bytes:
    frame = pb.StateFrame()
    update = frame.updates.add()
    if isinstance(message, Load):
        _copy_fields(update.load, message)
    elif isinstance(message, KvDelta):
        _copy_fields(update.kv_delta, message)
    else:
        _copy_fields(update.kv_snapshot, message)
    return frame.SerializeToString()


def decode_state_updates(frame: bytes) -> tuple[StateUpdate, ...]:
    updates = pb.StateFrame.FromString(frame).updates
    kinds = ((update, update.WhichOneof("kind")) for update in updates)
    return tuple(_READ_UPDATE[kind](getattr(update, kind)) for update, kind in kinds if kind is not None)


def _copy_fields(out: Any, message: msgspec.Struct) -> None:
    """Scalars whose names are equal on both sides."""
    for name in message.__struct_fields__:
        setattr(out, name, getattr(message, name))
    out.SetInParent()


def _read_fields(kind: type[Any]) -> Callable[[Any], Any]:
    names = kind.__struct_fields__
    return lambda message: kind(*[getattr(message, name) for name in names])


def _fill_hello(out: pb.RouterEvent, message: Hello) -> None:
    hello = out.hello
    for name in ("protocol", "worker_id", "epoch", "role", "model", "model_hash", "revision", "root", "blocks"):
        setattr(hello, name, getattr(message, name))
    hello.context_tokens = message.context_tokens
    hello.eos_token_ids.extend(message.eos_token_ids)
    hello.addresses.extend(message.addresses)
    hello.draining = message.draining
    hello.unready = message.unready
    hello.canary = message.canary
    hello.problems.extend(message.problems)
    for name in Layout.__dataclass_fields__:
        setattr(hello.layout, name, getattr(message.layout, name))


def _read_hello(hello: pb.Hello) -> Hello:
    return Hello(
        protocol=hello.protocol,
        worker_id=hello.worker_id,
        epoch=hello.epoch,
        role=hello.role,
        model=hello.model,
        model_hash=hello.model_hash,
        revision=hello.revision,
        layout=Layout(**{name: getattr(hello.layout, name) for name in Layout.__dataclass_fields__}),
        root=hello.root,
        blocks=hello.blocks,
        context_tokens=hello.context_tokens,
        eos_token_ids=tuple(hello.eos_token_ids),
        addresses=tuple(hello.addresses),
        draining=hello.draining,
        unready=hello.unready,
        canary=hello.canary,
        problems=tuple(hello.problems),
    )


def _fill_report(out: pb.RouterEvent, message: AttemptReport) -> None:
    report = out.attempt_report
    report.handle = message.handle
    report.tokens_computed = message.tokens_computed
    report.tokens_reused = message.tokens_reused
    report.tokens_pulled = message.tokens_pulled
    report.bytes_pulled = message.bytes_pulled
    for span in message.spans:
        _fill_span(report.spans.add(), span)


def _fill_span(out: pb.Span, span: Span) -> None:
    for name in ("trace_id", "span_id", "parent_id", "name", "service", "start_s", "end_s"):
        setattr(out, name, getattr(span, name))
    for key, value in span.attributes.items():
        setattr(out.attributes[key], _attribute_kind(value), value)


def _attribute_kind(value: Attribute) -> str:
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, int):
        return "integer"
    return "real" if isinstance(value, float) else "text"


def _read_report(report: pb.AttemptReport) -> AttemptReport:
    return AttemptReport(
        handle=report.handle,
        tokens_computed=report.tokens_computed,
        tokens_reused=report.tokens_reused,
        tokens_pulled=report.tokens_pulled,
        bytes_pulled=report.bytes_pulled,
        spans=tuple(_read_span(span) for span in report.spans),
    )


def _read_span(span: pb.Span) -> Span:
    kinds = ((key, value, value.WhichOneof("value")) for key, value in sorted(span.attributes.items()))
    attributes: dict[str, Attribute] = {key: getattr(value, kind) for key, value, kind in kinds if kind is not None}
    return Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_id,
        name=span.name,
        service=span.service,
        start_s=span.start_s,
        end_s=span.end_s,
        attributes=attributes,
    )


def _fill_ready(out: pb.RouterEvent, message: Ready) -> None:
    out.ready.SetInParent()
    out.ready.addresses.extend(message.addresses)
    out.ready.canary = message.canary
    out.ready.problems.extend(message.problems)


def _fill_transferred(out: pb.RouterEvent, message: Transferred) -> None:
    for name in message.__struct_fields__[:-1]:
        setattr(out.transferred, name, getattr(message, name))
    out.transferred.passed_over.extend(message.passed_over)


def _read_transferred(message: pb.Transferred) -> Transferred:
    scalars: dict[str, Any] = {name: getattr(message, name) for name in Transferred.__struct_fields__[:-1]}
    return Transferred(**scalars, passed_over=tuple(message.passed_over))


def _fill_claimed(out: pb.RouterEvent, message: Claimed) -> None:
    claimed = out.claimed
    for name in ("handle", "resume", "attempt", "mode", "left_s", "transferred"):
        setattr(claimed, name, getattr(message, name))
    claimed.sequences.extend([sequence for sequence, _ in message.starts])
    claimed.starts.extend([start for _, start in message.starts])


def _read_claimed(message: pb.Claimed) -> Claimed:
    starts = tuple(zip(message.sequences, message.starts, strict=False))
    told = (message.handle, message.resume, message.attempt, message.mode, message.left_s)
    return Claimed(*told, starts, message.transferred)


def _fill_step(out: pb.RouterEvent, message: StepOutputs) -> None:
    out.step_outputs.SetInParent()
    fill_step(out.step_outputs, message.outputs)


_FILL_EVENT: Final[Mapping[type, Callable[[pb.RouterEvent, Any], None]]] = MappingProxyType(
    {
        StepOutputs: _fill_step,
        Hello: _fill_hello,
        AttemptFailed: lambda out, message: _copy_fields(out.attempt_failed, message),
        AttemptReport: _fill_report,
        Pong: lambda out, message: _copy_fields(out.pong, message),
        Draining: lambda out, message: _copy_fields(out.draining, message),
        Ready: _fill_ready,
        Transferred: _fill_transferred,
        Claimed: _fill_claimed,
        Unclaimed: lambda out, message: _copy_fields(out.unclaimed, message),
    }
)

_READ_EVENT: Final[Mapping[str, Callable[[Any], RouterMessage]]] = MappingProxyType(
    {
        "step_outputs": read_step,
        "hello": _read_hello,
        "attempt_failed": _read_fields(AttemptFailed),
        "attempt_report": _read_report,
        "pong": _read_fields(Pong),
        "draining": _read_fields(Draining),
        "ready": lambda ready: Ready(tuple(ready.addresses), ready.canary, tuple(ready.problems)),
        "transferred": _read_transferred,
        "claimed": _read_claimed,
        "unclaimed": _read_fields(Unclaimed),
    }
)

_READ_UPDATE: Final[Mapping[str, Callable[[Any], StateUpdate]]] = MappingProxyType(
    {"load": _read_fields(Load), "kv_delta": _read_fields(KvDelta), "kv_snapshot": _read_fields(KvSnapshot)}
)
