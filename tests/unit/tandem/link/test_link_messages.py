"""Messages of a link as bytes: every kind survives the trip, neighbours' versions do, garbage is refused."""

import struct
import typing
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core import messages
from tandem.core.errors import TandemError
from tandem.core.kv import Layout
from tandem.core.messages import (
    Alternative,
    Export,
    Hello,
    Load,
    Ping,
    Pong,
    RemoteKv,
    ResumeAttempt,
    SequenceOutput,
    StateRequest,
    StateUpdate,
    StepFit,
    StepOutputs,
    StepSums,
    Submit,
    TokenLogprob,
)
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.core.spans import Span
from tandem.link.messages import COMMANDS, ROUTER_MESSAGES, STATE_REQUESTS, STATE_UPDATES, MessageCodec

DIRECTIONS: tuple[tuple[MessageCodec[Any], Any], ...] = (
    (COMMANDS, messages.WorkerCommand),
    (ROUTER_MESSAGES, messages.RouterMessage),
    (STATE_REQUESTS, StateRequest),
    (STATE_UPDATES, StateUpdate),
)
SUBMIT = Submit(
    handle=7,
    request_id="chatcmpl-é",
    attempt=2,
    mode="decode",
    prompt=b"\x01\x00\x00\x00" * 300,
    branches=(ChildRequest(0, 2**64 - 1, (5, 6), 3), ChildRequest(1, 0)),
    sampling=Sampling(temperature=0.0, logit_bias=((5, -1.5),), logprobs=0),
    stopping=Stopping(20, stop=("END",), stop_token_ids=(2,)),
    deadline_s=600.0,
    remote=RemoteKv("p-0", 2**64 - 1, ("shm:///x", "tcp://h:1"), "lease", b"ticket"),
    export=Export("lease", 2**63, 30.0),
)


def _kinds(union: Any) -> set[type]:
    return set(typing.get_args(union) or (union,))


@pytest.mark.parametrize(("wording", "union"), DIRECTIONS)
def test_every_kind_of_message_has_a_number(wording: MessageCodec[Any], union: Any) -> None:
    assert set(wording.kinds) == _kinds(union)


def _round_trip(wording: MessageCodec[Any], *sent: Any) -> tuple[Any, ...]:
    return wording.decode(memoryview(b"".join(map(wording.encode, sent))))


def test_the_richest_messages_survive_the_trip() -> None:
    assert _round_trip(COMMANDS, SUBMIT, Ping(3), SUBMIT) == (SUBMIT, Ping(3), SUBMIT)
    layout = Layout("torch", "plain", "bfloat16", 2, 24, 16, 8, 64)
    hello = Hello(1, "d", 2**64 - 1, "decode", "m", "h", "r", layout, b"\xff" * 16, 9, 10, (1, 2), ("tcp://h:1",))
    step = StepOutputs(
        (
            SequenceOutput(2**60, 0, 1, (5,), "é", 0),
            SequenceOutput(2, 3, 9, (7, 8), "", 70_000, "stop", "END"),
            SequenceOutput(4, 0, 2, (), "", 3, "length"),
            SequenceOutput(4, 1, 2, (1,), "x", 3, "stop", 151_645, (TokenLogprob(-0.5, (Alternative(1, -0.5),)),)),
        )
    )
    attributes: dict[str, Any] = {"text": "t", "integer": -(2**40), "real": 1.0, "flag": True}
    report = messages.AttemptReport(1, 2, 3, 4, 2**40, (Span("t", "s", "p", "n", "w", 1.5, 2.5, attributes),))
    assert _round_trip(ROUTER_MESSAGES, hello, step, report) == (hello, step, report)
    kinds = [type(value) for value in _round_trip(ROUTER_MESSAGES, report)[0].spans[0].attributes.values()]
    assert kinds == [str, int, float, bool]
    load = Load(1, 2, 3, 4, 5, 6, 0.5, 7.5, 8.5, 9)
    fit = StepFit(
        0.01, 1e-4, 1e-9, 0.0, 4e-5, 1e-9, StepSums(7, 0.5, 9.0), StepSums(2, 0.1, 0.0, 0.0, 2.0, 99.0, 1e9)
    )
    assert _round_trip(STATE_UPDATES, load) == (load,)
    told = msgspec.structs.replace(load, fit=fit)
    assert _round_trip(STATE_UPDATES, told, load) == (told, load)


def test_a_worker_of_the_last_version_tells_no_fit_and_no_hardware() -> None:
    """Its map lacks the fields; one of the next version may add some to a fit."""
    older = msgspec.to_builtins(Load(1, 2, 3, 4, 5, 6, 0.5, 7.5, 8.5, 9))
    del older["fit"]
    newer = {**older, "fit": [0.01, 1e-4, 1e-9, 0.0, 4e-5, 1e-9, [7, 0.5, 9.0, 0, 0, 0, 0, "new"], [0], "new"]}
    number = STATE_UPDATES.encode(Load(1, 2, 3, 4, 5, 6, 0.5, 7.5, 8.5, 9))[0]
    plain, told = STATE_UPDATES.decode(memoryview(_raw(number, older) + _raw(number, newer)))
    assert plain.fit is None
    assert told.fit == StepFit(0.01, 1e-4, 1e-9, 0.0, 4e-5, 1e-9, StepSums(7, 0.5, 9.0), StepSums())


def _raw(number: int, body: Any) -> bytes:
    encoded = msgspec.msgpack.encode(body)
    return struct.pack("<BI", number, len(encoded)) + encoded


def test_a_kind_that_is_not_known_is_skipped() -> None:
    frame = COMMANDS.encode(Ping(1)) + _raw(200, {"new": [1, 2, {"deep": b"x"}]}) + COMMANDS.encode(Ping(2))
    assert COMMANDS.decode(memoryview(frame)) == (Ping(1), Ping(2))


def test_fields_of_the_next_version_are_ignored_and_those_of_the_last_are_filled_in() -> None:
    newer = {**msgspec.to_builtins(SUBMIT, builtin_types=(bytes,)), "thinking": {"budget": 3}}
    older = {name: value for name, value in newer.items() if name in ("handle", "request_id", "attempt", "mode")}
    older |= {name: newer[name] for name in ("prompt", "branches", "sampling", "stopping", "deadline_s")}
    frame = _raw(1, newer) + _raw(1, older)
    first, second = COMMANDS.decode(memoryview(frame))
    assert first == SUBMIT
    assert second == msgspec.structs.replace(SUBMIT, remote=None, export=None)


def test_an_array_may_be_longer_or_shorter_by_what_has_a_default() -> None:
    longer = [[[9, 0, 1, [5], "x", 0, None, None, [], "of the next version"]]]
    shorter = [[[9, 0, 1, [5], "x", 0]]]
    expected = StepOutputs((SequenceOutput(9, 0, 1, (5,), "x", 0),))
    assert ROUTER_MESSAGES.decode(memoryview(_raw(2, longer) + _raw(2, shorter))) == (expected, expected)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x01",
        b"\x06\x05\x00\x00\x00\x81",
        b"\x06\xff\xff\xff\xff" + b"\x00" * 40,
        _raw(6, {"count": "three"}),
        _raw(6, {}),
        _raw(6, [1]),
        b"\x06\x03\x00\x00\x00" + b"\xc1\xc1\xc1",
        b"\x01\x05\x00\x00\x00" + b"\xdd\xff\xff\xff\xff",
        b"\x01\x05\x00\x00\x00" + b"\xdf\xff\xff\xff\xff",
        struct.pack("<BI", 6, 200_004) + b"\x82\xa1x" + b"\x91" * 200_000 + b"\xc0",
        struct.pack("<BI", 8, 40) + b"\x82\xa6handle\x01\xa4keys" + b"\xdd\xff\xff\xff\xff" + b"\xc4\x00" * 11,
    ],
)
def test_garbage_is_refused_with_a_typed_error(garbage: bytes) -> None:
    with pytest.raises(TandemError) as caught:
        COMMANDS.decode(memoryview(garbage))
    assert caught.value.code == "link_lost"


def _decoded(wording: MessageCodec[Any], data: bytes) -> tuple[Any, ...]:
    """Nothing when it is refused, which has to be typed."""
    with suppress(TandemError):
        return wording.decode(memoryview(data))
    return ()


@given(st.binary(max_size=400), st.sampled_from(DIRECTIONS))
def test_any_bytes_are_messages_or_refused(data: bytes, direction: tuple[MessageCodec[Any], Any]) -> None:
    wording, union = direction
    assert {type(message) for message in _decoded(wording, data)} <= _kinds(union)


@given(st.data())
def test_a_damaged_message_is_some_message_or_refused(data: st.DataObject) -> None:
    whole = bytearray(COMMANDS.encode(SUBMIT) + COMMANDS.encode(ResumeAttempt(1, (b"k",))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    del whole[data.draw(st.integers(0, len(whole))) :]
    assert {type(message) for message in _decoded(COMMANDS, bytes(whole))} <= _kinds(messages.WorkerCommand)


def test_pongs_carry_whole_epochs() -> None:
    assert _round_trip(ROUTER_MESSAGES, Pong(2**64 - 1, 2**40)) == (Pong(2**64 - 1, 2**40),)
