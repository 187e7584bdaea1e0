"""Segments: which records are where, what makes room, and what a page must say to be believed."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kv_transfer.tiers.mac import Seals
from kv_transfer.tiers.record import (
    ALIGN,
    RecordHead,
    SegmentHead,
    Unreadable,
    decode_record,
    decode_segment,
    encode_record,
    encode_segment,
    fits,
    shape_of,
)
from kv_transfer.tiers.segment_log import SegmentLog, index_of, place_of, segment_of
from tests.contract.block_space import block_layout
from tests.worlds.tier_stage import KEYRING, ROOT

SEALS = Seals(KEYRING)
SHAPE = shape_of(block_layout(2048), ROOT)
SEGMENT = SegmentHead(b"s" * 16, 7, 8, SEALS.current)
RECORD = RecordHead(b"n" * 16, "tenant", b"w" * 32, b"t" * 32)


class Log(RuleBasedStateMachine):
    """Appending, freeing, reclaiming in any order: places never mix up, counts stay right."""

    def __init__(self) -> None:
        super().__init__()
        self.log = SegmentLog(5)
        self.names: dict[int, bytes] = {}
        self.pending: list[int] = []
        self.count = 0

    @rule()
    def append(self) -> None:
        if self.log.full:
            if self.log.crowded:
                victim = self.log.oldest()
                if victim is None:
                    return
                assert not any(segment_of(place) == victim for place in self.pending)
                kept = {place for place in self.names if segment_of(place) == victim}
                assert [name for _, name in self.log.live(victim)] == [self.names[place] for place in sorted(kept)]
                self.names = {place: name for place, name in self.names.items() if place not in kept}
                self.log.drop(victim)
            self.log.begin(self.log.next_number(), 3)
        self.count += 1
        name = b"%016d" % self.count
        place = self.log.append(name)
        assert place not in self.names
        self.names[place] = name
        self.pending.append(place)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def written(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.pending))
        self.pending.remove(place)
        self.log.written(place)

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.names)))
        del self.names[place]
        self.log.free(place)
        self.log.free(place)

    @invariant()
    def holds(self) -> None:
        self.log.check()
        assert sorted(self.log.names()) == sorted(self.names.values())


Log.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestLog = Log.TestCase


def test_the_empty_go_before_the_oldest() -> None:
    log = SegmentLog(6)
    places = []
    for number in range(4):
        log.begin(number, 1)
        places.append(log.append(b"%016d" % number))
        log.written(places[-1])
    assert log.oldest() == 0
    log.free(places[2])
    assert log.oldest() == 2


def test_found_segments_come_before_what_is_written_later() -> None:
    log = SegmentLog(6)
    log.adopt(9, 2)
    log.adopt(4, 1)
    log.put(place_of(9, 0), b"a" * 16)
    log.put(place_of(4, 0), b"b" * 16)
    log.check()
    assert log.next_number() == 10
    assert log.full
    log.begin(10, 2)
    assert index_of(log.append(b"c" * 16)) == 0
    assert log.oldest() == 4


def test_after_the_open_segment_is_gone_the_next_record_needs_a_new_one() -> None:
    """As after a disk failed: what is written then must not be put into a segment that is not there."""
    log = SegmentLog(6)
    log.begin(0, 2)
    log.written(log.append(b"a" * 16))
    assert not log.full
    log.drop(0)
    assert log.full
    log.begin(log.next_number(), 2)
    assert segment_of(log.append(b"b" * 16)) == 1


def reason(page: bytes) -> str:
    with pytest.raises(Unreadable) as problem:
        decode_segment(page, SHAPE, SEALS)
    return problem.value.reason


def test_a_segment_head_comes_back() -> None:
    page = encode_segment(SEGMENT, SHAPE)
    assert len(page) == ALIGN
    assert decode_segment(page, SHAPE, SEALS) == SEGMENT
    again = replace(SEGMENT, segment_id=b"j" * 16, before=SEGMENT.segment_id)
    assert decode_segment(encode_segment(again, SHAPE), SHAPE, SEALS) == again
    assert decode_record(encode_record(RECORD, SEGMENT, 3), again.left, 3) == RECORD
    assert reason(page[:100]) == "damaged"
    assert reason(bytes(ALIGN)) == "damaged"
    with pytest.raises(Unreadable, match="foreign"):
        decode_segment(page, shape_of(block_layout(2048, isa="other", block_tokens=16), ROOT), SEALS)


def test_heads_keep_the_version_that_is_on_disks() -> None:
    """After an update a worker finds what it had only where both say the same: a new version is for a new layout."""
    assert encode_segment(SEGMENT, SHAPE)[:10] == b"TANDEMKV\x02\x00"
    assert encode_record(RECORD, SEGMENT, 3)[:6] == b"TdKv\x01\x00"


@given(st.integers(0, 163), st.integers(1, 255))
@settings(deadline=None)
def test_any_changed_byte_of_a_segment_head_is_noticed(at: int, change: int) -> None:
    page = bytearray(encode_segment(SEGMENT, SHAPE))
    page[at] ^= change
    assert reason(bytes(page)) in ("damaged", "other_version", "other_key", "forged")


@given(st.text(max_size=200), st.binary(max_size=512), st.integers(0, 7))
@settings(deadline=None)
def test_a_record_head_comes_back_where_it_was_written(tenant: str, words: bytes, index: int) -> None:
    head = RecordHead(b"n" * 16, tenant, words, b"t" * 32)
    assert fits(tenant, words)
    page = encode_record(head, SEGMENT, index)
    assert decode_record(page, SEGMENT, index) == head
    for segment, other in ((SEGMENT, index + 1), (SegmentHead(b"x" * 16, 7, 8, SEALS.current), index)):
        with pytest.raises(Unreadable, match="forged"):
            decode_record(page, segment, other)


@given(st.integers(0, 129), st.integers(1, 255))
@settings(deadline=None)
def test_any_changed_byte_of_a_record_head_is_noticed(at: int, change: int) -> None:
    page = bytearray(encode_record(RECORD, SEGMENT, 3))
    page[at] ^= change
    with pytest.raises(Unreadable) as problem:
        decode_record(bytes(page), SEGMENT, 3)
    assert problem.value.reason in ("torn", "forged", "empty")


def test_what_does_not_fit_into_a_head_is_known_before() -> None:
    assert not fits("t" * 4000, b"w" * 64)
    with pytest.raises(Unreadable, match="empty"):
        decode_record(bytes(ALIGN), SEGMENT, 0)
    with pytest.raises(Unreadable, match="torn"):
        decode_record(bytes(100), SEGMENT, 0)


def test_a_head_that_fills_its_page_is_believed_and_one_that_would_be_longer_is_torn() -> None:
    """An operator looks for an intruder where a head is forged: lengths that cannot be are damage, not forgery."""
    words = b"w" * 64
    most = max(size for size in range(ALIGN) if fits("t" * size, words))
    head = RecordHead(b"n" * 16, "t" * most, words, b"t" * 32)
    page = encode_record(head, SEGMENT, 3)
    assert len(page) == ALIGN
    assert decode_record(page, SEGMENT, 3) == head
    for more in (1, 32, 64, 65, 500):
        longer = page[:6] + (most + more).to_bytes(2, "little") + page[8:]
        with pytest.raises(Unreadable, match="torn"):
            decode_record(longer, SEGMENT, 3)
