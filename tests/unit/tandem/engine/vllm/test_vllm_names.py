"""vLLM's events about its prefix cache under our names."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.kv import chain_names, pack_tokens
from tandem.engine.protocol import KvChange
from tandem.engine.vllm.names import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CachedNames,
    Event,
    EventBatch,
    NameUnion,
    decode_batch,
)

ROOT = bytes(range(16))
SIZE = 4
TOKENS = list(range(100, 112))
NAMES = chain_names(ROOT, pack_tokens(TOKENS), SIZE)
HASHES = [bytes([number]) * 8 for number in (1, 2, 3)]


def stored(first: int, end: int, salt: str | None = ROOT.hex()) -> BlockStored:
    """Blocks `first` to before `end` of the chain."""
    return BlockStored(
        HASHES[first:end],
        HASHES[first - 1] if first else None,
        TOKENS[first * SIZE : end * SIZE],
        SIZE,
        [[salt] if salt is not None and first == 0 else None, *[None] * (end - first - 1)],
        "9",
    )


def batch(*events: Event) -> EventBatch:
    return EventBatch(0.0, list(events))


def test_a_chain_is_named_from_its_salt_and_its_tokens() -> None:
    cached = CachedNames(SIZE)
    assert cached.apply(batch(stored(0, 2))) == KvChange(NAMES[:2])
    assert cached.apply(batch(stored(2, 3))) == KvChange(NAMES[2:])
    assert cached.apply(batch(BlockRemoved([HASHES[1]]))).removed == (NAMES[1],)
    assert cached.snapshot() == (NAMES[0], NAMES[2])
    assert set(cached.apply(batch(AllBlocksCleared())).removed) == {NAMES[0], NAMES[2]}


def test_copies_count_and_a_batch_tells_only_what_came_of_it() -> None:
    cached = CachedNames(SIZE)
    cached.apply(batch(stored(0, 1), stored(0, 1)))
    assert cached.apply(batch(BlockRemoved([HASHES[0]]))) == KvChange()
    assert cached.apply(batch(BlockRemoved([HASHES[0]]), stored(0, 1))) == KvChange()
    assert cached.snapshot() == NAMES[:1]


def test_what_has_no_known_beginning_has_no_name() -> None:
    cached = CachedNames(SIZE)
    assert cached.apply(batch(stored(1, 3), stored(0, 1, None))) == KvChange()
    assert cached.apply(batch(BlockRemoved(HASHES))) == KvChange()
    assert cached.apply(batch(stored(0, 3, "private-4"))) == KvChange()
    assert len(cached) == 3
    assert cached.forget() == KvChange()
    assert len(cached) == 0


def test_events_are_read_as_vllm_writes_them() -> None:
    event = {
        "type": "BlockStored", "block_hashes": HASHES[:1], "parent_block_hash": None, "token_ids": TOKENS[:SIZE],
        "block_size": SIZE, "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": [[ROOT.hex()]],
    }  # fmt: skip
    packed = msgspec.msgpack.encode([1.5, [event, {"type": "AllBlocksCleared"}], 0])
    found = decode_batch(packed)
    assert CachedNames(SIZE).apply(EventBatch(found.ts, found.events[:1])).stored == NAMES[:1]
    assert found.events[1] == AllBlocksCleared()


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.booleans()), max_size=40))
def test_a_union_tells_first_and_last_only(steps: list[tuple[int, int, bool]]) -> None:
    union, sources, told = NameUnion(), (dict[bytes, None](), dict[bytes, None]()), dict[bytes, None]()
    for source, number, add in steps:
        name, held = bytes([number]), sources[source]
        if add == (name in held):
            continue
        if add:
            held[name] = None
        else:
            del held[name]
        change = union.apply(KvChange((name,)) if add else KvChange((), (name,)))
        for gone in change.removed:
            del told[gone]
        for came in change.stored:
            assert came not in told
            told[came] = None
    assert sorted(told) == sorted(union.snapshot()) == sorted(sources[0] | sources[1])
