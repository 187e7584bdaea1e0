"""Names from what is known are those of the whole prompt, within the bound, and everybody's own."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.naming import Naming
from tandem.core.kv import BlockNames, chain_names, child_name, pack_tokens, packed_names

ROOTS = (b"a" * 16, b"b" * 16)
PROMPTS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.integers(0, 900),
        st.lists(st.integers(0, 3), max_size=4),
        st.integers(0, 500),
        st.sampled_from(ROOTS),
    ),
    min_size=1,
    max_size=12,
)
"""Which prompt so far is taken up to which token, what follows it, how often, and whose it is."""


def prompts(changes: list[tuple[int, int, list[int], int, bytes]]) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    for which, kept, tokens, times, root in changes:
        before = found[-1 - which][1] if which < len(found) else b""
        found.append((root, before[: 4 * kept] + pack_tokens(tokens) * times))
    return found


@given(changes=PROMPTS, bound=st.sampled_from((0, 4_000, 1 << 20)), block_tokens=st.sampled_from((1, 3, 16)))
def test_names_are_those_of_the_whole_prompt(
    changes: list[tuple[int, int, list[int], int, bytes]], bound: int, block_tokens: int
) -> None:
    naming = Naming(bound)
    for root, packed in prompts(changes):
        assert tuple(naming.names(root, packed, block_tokens)) == chain_names(root, packed, block_tokens)
        assert naming.size_bytes <= bound


@given(tokens=st.lists(st.integers(0, (1 << 32) - 1), max_size=70), block_tokens=st.integers(1, 20))
def test_a_chain_is_made_of_children(tokens: list[int], block_tokens: int) -> None:
    parent, names = ROOTS[0], []
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        parent = child_name(parent, pack_tokens(tokens[start : start + block_tokens]))
        names.append(parent)
    assert chain_names(ROOTS[0], pack_tokens(tokens), block_tokens) == tuple(names)
    assert all(len(name) == 16 for name in names)


def test_a_name_stands_for_all_that_is_before_it() -> None:
    packed = struct.pack("<64I", *range(64))
    names = chain_names(ROOTS[0], packed, 16)
    for changed in range(4):
        other = bytearray(packed)
        other[64 * changed] ^= 1
        different = [
            ours != theirs for ours, theirs in zip(names, chain_names(ROOTS[0], bytes(other), 16), strict=True)
        ]
        assert different == [block >= changed for block in range(4)]
    assert not set(names) & set(chain_names(ROOTS[1], packed, 16))


@pytest.mark.parametrize(("length", "named"), [(0, 0), (60, 0), (64, 1), (100, 1), (128, 2)])
def test_only_full_blocks_have_names(length: int, named: int) -> None:
    assert len(chain_names(ROOTS[0], bytes(length), 16)) == named


def test_the_construction_of_names_is_fixed() -> None:
    assert child_name(bytes(16), bytes(64)).hex() == "b07fac3456977022318382f64e1aa2e8"


@given(names=st.lists(st.binary(min_size=16, max_size=16), max_size=9), data=st.data())
def test_packed_names_are_a_sequence_like_any_other(names: list[bytes], data: st.DataObject) -> None:
    packed = BlockNames(b"".join(names))
    assert (list(packed), len(packed)) == (names, len(names))
    assert packed_names(packed) == packed_names(names) == b"".join(names)
    chosen = data.draw(st.slices(len(names)))
    assert list(packed[chosen]) == names[chosen]
    for index in range(-len(names), len(names)):
        assert packed[index] == names[index]
    for index in (len(names), -len(names) - 1):
        with pytest.raises(IndexError):
            packed[index]


def test_what_is_known_is_not_named_again(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[int] = []

    def counting(root: bytes, packed: bytes, block_tokens: int) -> tuple[bytes, ...]:
        named.append(len(packed) // 64)
        return chain_names(root, packed, block_tokens)

    monkeypatch.setattr("router.dispatch.naming.chain_names", counting)
    naming, packed = Naming(1 << 20), pack_tokens(tuple(range(16 * 200)))
    naming.names(ROOTS[0], packed, 16)
    naming.names(ROOTS[0], packed, 16)
    naming.names(ROOTS[0], packed + bytes(64 * 3), 16)
    naming.names(ROOTS[0], packed[: 64 * 150] + bytes(64 * 100), 16)
    naming.names(ROOTS[0], packed[: 64 * 150] + bytes(64 * 101), 16)
    naming.names(ROOTS[1], packed, 16)
    assert named == [200, 0, 3, 100, 1, 200]
