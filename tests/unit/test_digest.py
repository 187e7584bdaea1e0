"""Content words find every single changed word and swaps, are the same on every implementation, and are fast."""

from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.kv import Layout
from tandem.engine.digest import Digester, bind, row_weights, unbind, word_bytes, word_weights


def layout(layers: int, block_tokens: int, kv_heads: int, head_dim: int, item_bytes: int) -> Layout:
    return Layout("test", "plain", "x", item_bytes, layers, block_tokens, kv_heads, head_dim)


def sample(size: int, label: str) -> bytes:
    """Reproducible bytes."""
    out = b""
    while len(out) < size:
        out += blake2b(len(out).to_bytes(8, "little"), key=label.encode(), digest_size=64).digest()
    return out[:size]


def by_definition(block: bytes, shape: Layout) -> bytes:
    """The formula of the module, in plain integers."""
    size = word_bytes(shape)
    rows, words = shape.layers * 2 * shape.block_tokens, shape.head_dim * shape.item_bytes // size
    w, v = row_weights(rows).tolist(), word_weights(words).tolist()
    out = b""
    for head in range(shape.kv_heads):
        total = 0
        for row in range(rows):
            for word in range(words):
                at = ((row * shape.kv_heads + head) * words + word) * size
                total += w[row] * v[word] * int.from_bytes(block[at : at + size], "little", signed=True)
        out += (total % (1 << 64)).to_bytes(8, "little")
    return out


VECTORS = (
    (layout(2, 4, 2, 4, 4), 8, "f3945e5bd6532ea26741cc4e7c1fa816"),
    (layout(1, 3, 1, 3, 4), 4, "c1957d592f0334e1"),
    (layout(1, 2, 3, 5, 2), 2, "5143357d790d810ae222c8ecd10a127264138a673e457683"),
    (layout(1, 2, 2, 3, 1), 1, "c3b96d7db7d459df74f582a3d26c6da4"),
)
"""(layout, word bytes, content words of `sample(block_bytes, "vector")`): every implementation must give these."""


@pytest.mark.parametrize(("shape", "size", "words"), VECTORS)
def test_the_words_are_the_formula_for_every_word_size(shape: Layout, size: int, words: str) -> None:
    assert word_bytes(shape) == size
    block = sample(shape.block_bytes, "vector")
    assert Digester(shape).content_words(block) == by_definition(block, shape)
    assert Digester(shape).content_words(block).hex() == words
    other = sample(shape.block_bytes, "other")
    many = np.frombuffer(block + other, dtype=np.uint8).reshape(2, -1)
    assert Digester(shape).content_words_of(many) == [
        Digester(shape).content_words(block),
        Digester(shape).content_words(other),
    ]
    assert len(Digester(shape).content_words(memoryview(bytearray(block)))) == 8 * shape.kv_heads


def test_the_weights_are_fixed_and_odd() -> None:
    assert row_weights(3).tolist() == [936014016832577733, 6995269690439246285, 8728483107352186217]
    assert word_weights(3).tolist() == [-5295705561230694959, 2448576950831214075, -5881001450656266159]
    assert all(weight % 2 for weight in row_weights(1000).tolist() + word_weights(1000).tolist())


@given(st.sampled_from(VECTORS), st.integers(0, 10**6), st.integers(1, 255))
def test_any_changed_byte_changes_exactly_its_heads_word(
    vector: tuple[Layout, int, str], at: int, change: int
) -> None:
    shape, _, _ = vector
    block = bytearray(sample(shape.block_bytes, "change"))
    digester = Digester(shape)
    before = digester.content_words(block)
    at %= len(block)
    block[at] ^= change
    after = digester.content_words(block)
    head = at // (shape.head_dim * shape.item_bytes) % shape.kv_heads
    differing = [h for h in range(shape.kv_heads) if before[8 * h : 8 * h + 8] != after[8 * h : 8 * h + 8]]
    assert differing == [head]


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_words_that_change_places_are_noticed(first: int, second: int) -> None:
    shape = layout(2, 4, 2, 4, 4)
    words = [sample(8, f"word {number}") for number in range(shape.block_bytes // 8)]
    before = Digester(shape).content_words(b"".join(words))
    first, second = first % len(words), second % len(words)
    words[first], words[second] = words[second], words[first]
    assert (Digester(shape).content_words(b"".join(words)) == before) == (first == second)


@given(st.integers(1, 9), st.sampled_from([(2, 4, 2, 4, 4), (3, 2, 3, 3, 1), (1, 5, 2, 2, 2)]))
def test_a_block_that_comes_piece_by_piece_has_the_same_words(rows: int, fields: tuple[int, ...]) -> None:
    shape = layout(*fields)
    block, digester = sample(shape.block_bytes, "pieces"), Digester(shape)
    running, step = digester.begin(), rows * digester.row_bytes
    for start in range(0, len(block), step):
        running.add(block[start : start + step])
    assert running.words() == digester.content_words(block)
    with pytest.raises(AssertionError):
        digester.begin().words()


def test_a_block_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(AssertionError):
        Digester(layout(1, 2, 2, 3, 1)).content_words(b"short")


@given(st.binary(min_size=8, max_size=8), st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 63) - 1))
def test_bound_words_belong_to_one_epoch_name_and_generation(words: bytes, epoch: int, generation: int) -> None:
    name, other = bytes(16), bytes(15) + b"x"
    bound = bind(words, epoch, name, generation)
    assert unbind(bound, epoch, name, generation) == words
    assert unbind(bound, epoch ^ 1, name, generation) != words
    assert unbind(bound, epoch, other, generation) != words
    assert unbind(bound, epoch, name, generation + 1) != words


def test_the_binding_is_fixed() -> None:
    assert bind(bytes(16), 1, bytes(range(16)), 2).hex() == "9085c217507a05db" * 2
