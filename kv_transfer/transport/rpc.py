"""Protobuf to and from the frames of a KV connection, and nothing else. Layout of the bytes: `protos/kv.proto`.

Decoders raise `transfer_failed` for bytes that are no frame and `protocol_mismatch` for a foreign version.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import iter_unpack, unpack
from typing import Final

from google.protobuf.message import DecodeError
from msgspec.structs import astuple

from kv_transfer.transport.frames import Acknowledge, Failed, HolderFrame, Offers, Pool, ReceiverFrame, Refused
from kv_transfer.transport.protocol import Alive, Missing, Offer, PullOpen
from protos import kv_pb2 as pb
from tandem.core.errors import TandemError
from tandem.core.kv import NAME_BYTES, Handle, Layout
from tandem.core.messages import PROTOCOL_VERSION
from tandem.engine.protocol import FirstTokens

_LAYOUT_FIELDS: Final = tuple(Layout.__dataclass_fields__)
_POOL_FIELDS: Final = tuple(Pool.__dataclass_fields__)
_LAYOUT_BYTES_MAX: Final = 512
"""Size in bytes of the longest packed layout that is remembered. Workers send fewer than 100 bytes; an unknown peer
may send any number."""
_PIECES_TOGETHER: Final = 64
"""Unpacked by one format: faster, but `struct` remembers formats, so none may be as long as a peer likes."""


def encode_open(request: PullOpen) -> bytes:
    message = pb.Open(
        protocol=PROTOCOL_VERSION,
        lease_id=request.lease_id,
        ticket=request.ticket,
        holder_epoch=request.holder_epoch,
        receiver_epoch=request.receiver_epoch,
        layout=_layout_sent(request.layout),
        names=b"".join(request.names),
    )
    return pb.ReceiverFrame(open=message).SerializeToString()


def encode_acknowledge(lease_id: str) -> bytes:
    return pb.ReceiverFrame(acknowledge=pb.Acknowledge(lease_id=lease_id)).SerializeToString()


def encode_refused(refused: Refused) -> bytes:
    message = pb.Refused(lease_id=refused.lease_id, name=refused.name)
    return pb.ReceiverFrame(refused=message).SerializeToString()


def decode_receiver(raw: bytes) -> ReceiverFrame:
    """The frame a receiver sent."""
    try:
        frame = pb.ReceiverFrame.FromString(raw)
    except DecodeError:
        raise _broken("bytes that are no receiver frame") from None
    match frame.WhichOneof("kind"):
        case "open":
            return _read_open(frame.open)
        case "acknowledge":
            return Acknowledge(frame.acknowledge.lease_id)
        case "refused":
            return Refused(frame.refused.lease_id, frame.refused.name)
        case _:
            raise _broken("a receiver frame of an unknown kind")


def encode_offers(offers: Sequence[Offer]) -> bytes:
    """One frame for all of `offers`; their digests must be of equal length."""
    epochs, names, slots, generations, digests = zip(*[astuple(offer.handle) for offer in offers], strict=True)
    frame = pb.HolderFrame()
    message = frame.offers
    message.index.extend([offer.index for offer in offers])
    message.epoch.extend(epochs)
    message.names = b"".join(names)
    message.slot.extend(slots)
    message.generation.extend(generations)
    message.digests = b"".join(digests)
    return frame.SerializeToString()


def encode_event(event: Missing | Alive | FirstTokens) -> bytes:
    match event:
        case Missing(index, reason):
            frame = pb.HolderFrame(missing=pb.Missing(index=index, reason=reason))
        case Alive():
            frame = pb.HolderFrame(alive=pb.Alive())
        case FirstTokens(tokens):
            frame = pb.HolderFrame(first_tokens=pb.FirstTokens())
            for sequence, token, finish in tokens:
                frame.first_tokens.tokens.add(sequence=sequence, token=token, finish=finish)
    return frame.SerializeToString()


def encode_failed(error: TandemError) -> bytes:
    return pb.HolderFrame(failed=pb.Failed(code=error.code, message=error.message)).SerializeToString()


def encode_pool(pool: Pool) -> bytes:
    return pb.HolderFrame(pool=pb.Pool(**{field: getattr(pool, field) for field in _POOL_FIELDS})).SerializeToString()


def decode_holder(raw: bytes) -> HolderFrame:
    """The frame a holder sent."""
    try:
        frame = pb.HolderFrame.FromString(raw)
    except DecodeError:
        raise _broken("bytes that are no holder frame") from None
    match frame.WhichOneof("kind"):
        case "offers":
            return _read_offers(frame.offers)
        case "missing":
            return Missing(frame.missing.index, frame.missing.reason)
        case "alive":
            return Alive()
        case "first_tokens":
            return FirstTokens(tuple(_read_first(row) for row in frame.first_tokens.tokens))
        case "failed":
            return Failed(frame.failed.code, frame.failed.message)
        case "pool":
            return Pool(**{field: getattr(frame.pool, field) for field in _POOL_FIELDS})
        case _:
            raise _broken("a holder frame of an unknown kind")


def _read_open(message: pb.Open) -> PullOpen:
    if message.protocol not in (PROTOCOL_VERSION, PROTOCOL_VERSION - 1):
        raise TandemError(
            "protocol_mismatch",
            f"the receiver speaks KV protocol {message.protocol}, this worker speaks {PROTOCOL_VERSION}",
        )
    return PullOpen(
        lease_id=message.lease_id,
        ticket=message.ticket,
        holder_epoch=message.holder_epoch,
        receiver_epoch=message.receiver_epoch,
        layout=_layout_of(message.layout.SerializeToString()),
        names=_pieces(message.names, NAME_BYTES),
    )


@lru_cache(maxsize=64)
def _layout_sent(layout: Layout) -> pb.Layout:
    return pb.Layout(**{field: getattr(layout, field) for field in _LAYOUT_FIELDS})


def _layout_of(packed: bytes) -> Layout:
    return _layout_heard(packed) if len(packed) <= _LAYOUT_BYTES_MAX else _read_layout(packed)


@lru_cache(maxsize=64)
def _layout_heard(packed: bytes) -> Layout:
    return _read_layout(packed)


def _read_layout(packed: bytes) -> Layout:
    message = pb.Layout.FromString(packed)
    return Layout(**{field: getattr(message, field) for field in _LAYOUT_FIELDS})


def _read_offers(message: pb.Offers) -> Offers:
    indices, packed = tuple(message.index), message.digests
    columns = list(message.epoch), _pieces(message.names, NAME_BYTES), list(message.slot), list(message.generation)
    count = len(indices)
    if count == 0 or any(len(column) != count for column in columns) or len(packed) % count:
        raise _broken("offers whose columns differ in length")
    digests = _pieces(packed, len(packed) // count) or (b"",) * count
    return Offers(indices, tuple(map(Handle, *columns, digests)))


def _read_first(row: pb.FirstToken) -> tuple[int, int, str | None]:
    return row.sequence, row.token, row.finish if row.HasField("finish") else None


def _pieces(packed: bytes, size: int) -> tuple[bytes, ...]:
    if not size:
        return ()
    if len(packed) % size:
        raise _broken(f"{len(packed)} packed bytes that are no multiple of {size}")
    count = len(packed) // size
    if count <= _PIECES_TOGETHER:
        return unpack(f"{size}s" * count, packed)
    return tuple([piece for (piece,) in iter_unpack(f"{size}s", packed)])


def _broken(what: str) -> TandemError:
    return TandemError("transfer_failed", f"the KV peer sent {what}")
