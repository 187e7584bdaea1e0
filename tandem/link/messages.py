"""Encode the messages of a worker link as bytes, and decode them.

A message is one byte for its kind, its length as a little-endian uint32, and its body: MessagePack of the struct in
`tandem.core.messages`, as a map by field name or, for what every token needs (`array_like`), as an array. Messages
follow one another; nothing stands around or between them.

Services of neighbouring protocol versions understand each other: an unknown kind is skipped, an unknown field of a
map and surplus elements of an array are ignored, and a missing field takes its default. So a kind's number and a
field's name are never given a new meaning, new fields come last and have a default, and a new kind is one line in a
table below.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from tandem.core.errors import TandemError
from tandem.core.messages import (
    AttemptFailed,
    AttemptReport,
    AttemptResumed,
    Cancel,
    Drain,
    Draining,
    Hello,
    KvDelta,
    KvSnapshot,
    Load,
    Ping,
    Pong,
    Progressed,
    ProvideFirst,
    PublishSplit,
    Ready,
    ResumeAttempt,
    ResumeNotFound,
    RetainOutputs,
    RouterMessage,
    SampleFirst,
    SnapshotRequest,
    SplitPublished,
    StateRequest,
    StateUpdate,
    StepOutputs,
    Submit,
    Transferred,
    Tune,
    Unpin,
    WorkerCommand,
)

Message = TypeVar("Message")

_HEAD: Final = struct.Struct("<BI")
_ENCODE: Final = msgspec.msgpack.Encoder().encode


class MessageCodec(Generic[Message]):
    """One direction of one stream: its kinds by number, 1 to 255."""

    def __init__(self, kinds: Mapping[int, type[Any]]) -> None:
        self.kinds = tuple(kinds.values())
        self._numbers: dict[type[Any], int] = {kind: number for number, kind in kinds.items()}
        self._decoders: dict[int, Callable[[memoryview | bytes], Message]] = {
            number: msgspec.msgpack.Decoder(kind).decode for number, kind in kinds.items()
        }

    def encode(self, message: Message) -> bytes:
        """One message."""
        body = _ENCODE(message)
        return _HEAD.pack(self._numbers[type(message)], len(body)) + body

    def decode(self, data: memoryview | bytes) -> tuple[Message, ...]:
        """All messages of a frame but those of unknown kinds. Raises `link_lost` for bytes that are none."""
        messages: list[Message] = []
        at, end = 0, len(data)
        try:
            while at < end:
                kind, size = _HEAD.unpack_from(data, at)
                start = at + _HEAD.size
                at = start + size
                if at > end:
                    raise TandemError("link_lost", f"a message of {size} bytes in a frame with {end - start} left")
                decode = self._decoders.get(kind)
                if decode is not None:
                    messages.append(decode(data[start:at]))
        except (struct.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TandemError("link_lost", f"a message that is none: {error}") from None
        return tuple(messages)


COMMANDS: Final[MessageCodec[WorkerCommand]] = MessageCodec(
    {
        1: Submit,
        2: Cancel,
        3: ProvideFirst,
        4: SampleFirst,
        5: Drain,
        6: Ping,
        7: RetainOutputs,
        8: ResumeAttempt,
        9: Unpin,
        10: Tune,
        11: PublishSplit,
    }
)

ROUTER_MESSAGES: Final[MessageCodec[RouterMessage]] = MessageCodec(
    {
        1: Hello,
        2: StepOutputs,
        3: AttemptFailed,
        4: AttemptReport,
        5: Pong,
        6: Draining,
        7: Ready,
        8: Transferred,
        9: AttemptResumed,
        10: ResumeNotFound,
        11: Progressed,
        12: SplitPublished,
    }
)

STATE_REQUESTS: Final[MessageCodec[StateRequest]] = MessageCodec({1: SnapshotRequest})

STATE_UPDATES: Final[MessageCodec[StateUpdate]] = MessageCodec({1: Load, 2: KvDelta, 3: KvSnapshot})
