"""Protobuf to messages and back, for every message of a link; frames that join; kinds from the future."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.kv import Layout
from tandem.core.messages import (
    Alternative,
    AttemptFailed,
    AttemptReport,
    Cancel,
    Drain,
    Draining,
    Export,
    Hello,
    KvDelta,
    KvSnapshot,
    Load,
    Ping,
    Pong,
    ProvideFirst,
    Ready,
    RemoteKv,
    RouterMessage,
    SampleFirst,
    SequenceOutput,
    SnapshotRequest,
    StateUpdate,
    StepOutputs,
    Submit,
    TokenLogprob,
    Transferred,
    WorkerCommand,
)
from tandem.core.request import Branch, Sampling, Stopping
from tandem.core.spans import Span
from tandem.service import link_rpc

BIG = 2**64 - 1

COMMANDS: list[WorkerCommand] = [
    Submit(
        handle=BIG,
        request_id="r",
        attempt=3,
        mode="decode",
        prompt=b"\x01\0\0\0",
        branches=(Branch(0, BIG), Branch(1, 5, (1, 2**32 - 1), 9)),
        sampling=Sampling(0.5, 0.9, 40, 0.1, 0.2, -0.3, 1.1, ((7, -100.0), (8, 1.5)), 0),
        stopping=Stopping(10, 2, ("a", "é"), (5, 6), True),
        deadline_s=1.5,
        tenant_salt="t",
        priority=-3,
        remote=RemoteKv("p", BIG, ("shm:///x", "tcp://h:1"), "lease", b"\xff"),
        export=Export("lease", BIG, 30.0),
        traceparent="00-x",
        canary=True,
    ),
    Submit(1, "r", 1, "local", b"", (), Sampling(), Stopping(1), 0.0),
    Cancel(4),
    Cancel(4, 0),
    ProvideFirst(5, 0, 77),
    SampleFirst(6),
    Drain(2.5),
    Ping(0),
]

SPAN = Span("a" * 32, "b" * 16, "c" * 16, "kv.pull", "decode", 1.5, 2.5, {"b": 1, "f": 0.5, "p": "shm", "y": True})

EVENTS: list[RouterMessage] = [
    Hello(1, "w", BIG, "decode", "m", "h", "v1", Layout("e", "p", "f32", 4, 2, 16, 2, 8, 1, 1, "avx"), b"r" * 16,
          9, 4096, (1, 2), ("shm://a",), True, True, "self", ("tcp: refused",)),
    StepOutputs((SequenceOutput(1, 0, 1, (5,), "x", 0), SequenceOutput(2, 1, 7, (6,), "", 3))),
    StepOutputs(
        (
            SequenceOutput(1, 0, 1, (), "rest", 0, "length"),
            SequenceOutput(1, 1, 1, (5, 6), "x", 0, "stop", "END"),
            SequenceOutput(1, 2, 1, (5,), "x", 0, "stop", 0),
            SequenceOutput(1, 3, 4, (5, 6), "x", 0, None, None,
                           (TokenLogprob(-0.1, (Alternative(5, -0.1), Alternative(9, -3.0))), TokenLogprob(-0.2))),
        )
    ),
    AttemptFailed(3, "kv_gone", "why"),
    AttemptReport(3, 1, 2, 3, 2**40, (SPAN,)),
    AttemptReport(3, 0, 0, 0, 0, ()),
    Pong(BIG, 3),
    Draining(0.0),
    Ready(("shm:///a", "tcp://b:1"), "self", ("ucx: transfer_failed: no device",)),
    Transferred(7, "prefill-0", (1 << 64) - 1, "tcp", 0.25, 1 << 40, "kv_corrupt", "as told", ("shm: refused",)),
    Transferred(8, "prefill-0", 1, "", 0.0, 0),
]  # fmt: skip

UPDATES: list[StateUpdate] = [
    Load(1, 2, 3, 4, 5, 6, 0.5, 1.5, 2.5, 7),
    Load(0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0),
    KvDelta(BIG, 1, b"s" * 32, b""),
    KvSnapshot(BIG, 2, b"", True, "dram"),
]


@pytest.mark.parametrize("message", COMMANDS, ids=lambda message: type(message).__name__)
def test_commands_come_back_as_they_were(message: WorkerCommand) -> None:
    assert link_rpc.decode_commands(link_rpc.encode_command(message)) == (message,)


@pytest.mark.parametrize("message", EVENTS, ids=lambda message: type(message).__name__)
def test_router_messages_come_back_as_they_were(message: RouterMessage) -> None:
    assert link_rpc.decode_router_messages(link_rpc.encode_router_message(message)) == (message,)


@pytest.mark.parametrize("message", UPDATES, ids=lambda message: type(message).__name__)
def test_state_updates_come_back_as_they_were(message: StateUpdate) -> None:
    assert link_rpc.decode_state_updates(link_rpc.encode_state_update(message)) == (message,)


def test_joined_frames_are_one_frame_in_order() -> None:
    joined = b"".join(link_rpc.encode_router_message(message) for message in EVENTS)
    assert link_rpc.decode_router_messages(joined) == tuple(EVENTS)
    assert link_rpc.decode_commands(b"".join(map(link_rpc.encode_command, COMMANDS))) == tuple(COMMANDS)
    asks = link_rpc.encode_state_request(SnapshotRequest()) * 2
    assert link_rpc.decode_state_requests(asks) == (SnapshotRequest(), SnapshotRequest())


def test_messages_of_a_kind_from_the_future_are_skipped() -> None:
    future = bytes([0x0A, 0x04, 0xFA, 0x07, 0x01, 0x78])  # field 1: a message whose only field is number 127
    known = link_rpc.encode_command(Ping(1))
    assert link_rpc.decode_commands(future + known + future) == (Ping(1),)
    assert link_rpc.decode_router_messages(future) == ()
    assert link_rpc.decode_state_updates(future) == ()
    assert link_rpc.decode_state_requests(future) == ()


def test_a_frame_is_never_empty_and_rubbish_is_no_frame() -> None:
    assert all(link_rpc.encode_router_message(message) for message in (StepOutputs(()), Draining(0.0)))
    assert link_rpc.encode_state_update(Load(0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0))
    with pytest.raises(DecodeError):
        link_rpc.decode_commands(b"\xff\xff\xff")


def test_a_negative_seed_stands_for_the_same_random_words() -> None:
    one = Submit(1, "r", 1, "local", b"", (Branch(0, -1),), Sampling(), Stopping(1), 0.0)
    (back,) = link_rpc.decode_commands(link_rpc.encode_command(one))
    assert isinstance(back, Submit)
    assert back.branches[0].seed == BIG


_TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=3).map(tuple)
_OUTPUT = st.builds(
    SequenceOutput,
    handle=st.integers(0, BIG),
    sequence=st.integers(0, 100),
    position=st.integers(0, 2**31),
    tokens=_TOKENS,
    text=st.text(max_size=5),
    offset=st.integers(0, 2**31),
    finish=st.sampled_from([None, "stop", "length"]),
    stop_reason=st.none(),
)


@given(st.lists(_OUTPUT, max_size=6))
def test_any_step_outputs_survive_the_columns(outputs: list[SequenceOutput]) -> None:
    step = StepOutputs(tuple(outputs))
    assert link_rpc.decode_router_messages(link_rpc.encode_router_message(step)) == (step,)
