"""Frames survive the wire, and bytes that are no frame are refused with a type."""

import tracemalloc
from collections.abc import Iterable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.transport import rpc
from kv_transfer.transport.frames import Acknowledge, Failed, Offers, Pool, Refused
from kv_transfer.transport.protocol import Alive, Missing, Offer, PullOpen
from protos import kv_pb2 as pb
from tandem.core.errors import TandemError
from tandem.core.kv import Handle, Layout
from tandem.core.messages import PROTOCOL_VERSION
from tandem.engine.protocol import FirstTokens

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
NAME = st.binary(min_size=16, max_size=16)
LAYOUT = Layout("torch", "plain", "bfloat16", 2, 4, 16, 2, 64, 2, 1, "avx512")

opens = st.builds(
    PullOpen,
    lease_id=st.text(max_size=20),
    ticket=st.binary(max_size=80),
    holder_epoch=U64,
    receiver_epoch=U64,
    layout=st.just(LAYOUT),
    names=st.lists(NAME, max_size=20).map(tuple),
)
digest_rows = st.integers(0, 4).flatmap(
    lambda heads: st.lists(
        st.builds(
            Offer, U32, st.builds(Handle, U64, NAME, U32, U64, st.binary(min_size=8 * heads, max_size=8 * heads))
        ),
        min_size=1,
        max_size=10,
    )
)
firsts = st.lists(st.tuples(U32, U32, st.sampled_from((None, "stop", "length", ""))), max_size=5)


@given(request=opens)
def test_an_open_survives_the_wire(request: PullOpen) -> None:
    assert rpc.decode_receiver(rpc.encode_open(request)) == request


@given(offers=digest_rows)
def test_offers_survive_the_wire(offers: list[Offer]) -> None:
    decoded = rpc.decode_holder(rpc.encode_offers(offers))
    assert decoded == Offers(tuple(offer.index for offer in offers), tuple(offer.handle for offer in offers))


@given(tokens=firsts, index=U32, reason=st.text(max_size=20))
def test_events_survive_the_wire(tokens: list[tuple[int, int, str | None]], index: int, reason: str) -> None:
    for event in (FirstTokens(tuple(tokens)), Missing(index, reason), Alive()):
        assert rpc.decode_holder(rpc.encode_event(event)) == event


def test_the_rest_survives_the_wire() -> None:
    assert rpc.decode_receiver(rpc.encode_acknowledge("l")) == Acknowledge("l")
    refused = Refused("l", b"n" * 16)
    assert rpc.decode_receiver(rpc.encode_refused(refused)) == refused
    assert rpc.decode_holder(rpc.encode_failed(TandemError("kv_gone", "why"))) == Failed("kv_gone", "why")
    assert rpc.decode_holder(rpc.encode_pool(Pool(4096, 7))) == Pool(4096, 7)


@given(raw=st.binary(max_size=200))
def test_any_bytes_give_a_frame_or_a_typed_error(raw: bytes) -> None:
    for decode in (rpc.decode_receiver, rpc.decode_holder):
        with suppress(TandemError):
            decode(raw)


def test_a_foreign_version_is_a_mismatch_and_the_neighbour_is_not() -> None:
    for version, fits in ((PROTOCOL_VERSION, True), (PROTOCOL_VERSION - 1, True), (PROTOCOL_VERSION + 1, False)):
        raw = pb.ReceiverFrame(open=pb.Open(protocol=version)).SerializeToString()
        if fits:
            assert isinstance(rpc.decode_receiver(raw), PullOpen)
            continue
        with pytest.raises(TandemError) as caught:
            rpc.decode_receiver(raw)
        assert caught.value.code == "protocol_mismatch"


def test_columns_of_different_length_are_refused() -> None:
    ragged = pb.HolderFrame(offers=pb.Offers(index=[0, 1], slot=[1], generation=[1, 1], epoch=[1, 1]))
    short_names = pb.HolderFrame(offers=pb.Offers(index=[0], slot=[1], generation=[1], epoch=[1], names=b"x"))
    for frame in (ragged, short_names, pb.HolderFrame()):
        with pytest.raises(TandemError):
            rpc.decode_holder(frame.SerializeToString())


def kept_bytes(frames: Iterable[bytes]) -> int:
    """What decoding the receiver frames leaves behind."""
    rpc.decode_receiver(rpc.encode_open(PullOpen("l", b"t", 1, 2, LAYOUT, ())))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for frame in frames:
            rpc.decode_receiver(frame)
        del frame
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before


def test_no_number_of_names_leaves_anything_behind() -> None:
    """A receiver is not known to be one of ours before its frame is read."""
    opens = (pb.Open(protocol=PROTOCOL_VERSION, names=bytes(16 * count)) for count in range(20_000, 20_020))
    assert kept_bytes(pb.ReceiverFrame(open=each).SerializeToString() for each in opens) < 1 << 20


def test_no_layout_of_a_stranger_is_kept() -> None:
    def frames() -> Iterable[bytes]:
        for number in range(20):
            layout = pb.Layout(engine=f"{number}".ljust(256 << 10, "x"))
            yield pb.ReceiverFrame(open=pb.Open(protocol=PROTOCOL_VERSION, layout=layout)).SerializeToString()

    assert kept_bytes(frames()) < 1 << 20


def test_a_long_layout_is_read_as_a_short_one() -> None:
    long = Layout("e" * 1000, "plain", "bfloat16", 2, 4, 16, 2, 64)
    request = PullOpen("l", b"t", 1, 2, long, (b"n" * 16,))
    assert rpc.decode_receiver(rpc.encode_open(request)) == request


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 128, 1000])
def test_any_number_of_names_survives_the_wire(count: int) -> None:
    """They are unpacked in two ways."""
    names = tuple(number.to_bytes(16, "little") for number in range(count))
    request = PullOpen("l", b"t", 1, 2, LAYOUT, names)
    assert rpc.decode_receiver(rpc.encode_open(request)) == request
