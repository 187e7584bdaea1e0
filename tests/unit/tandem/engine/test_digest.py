"""Content words find what accidents do to blocks, are the same wherever they are computed, and belong to one copy."""

from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.kv import Layout
from tandem.engine.digest import Digester, bind, unbind


def layout(block_bytes: int) -> Layout:
    return Layout("test", "plain", "x", 1, 1, block_bytes // 2, 1, 1)


def sample(size: int, label: str) -> bytes:
    """Reproducible bytes."""
    out = b""
    while len(out) < size:
        out += blake2b(len(out).to_bytes(8, "little"), key=label.encode(), digest_size=64).digest()
    return out[:size]


VECTORS = (
    (16, "7396a204102368104c17496097a63cc2"),
    (128, "8267127522ffe3394e2b32cf9dfa8c9d"),
    (240, "4358a46064da06628a8d7f8f5381d87f"),
    (512, "eb59b4fd14a7811e10b6a0a5306a9d7b"),
    (98_306, "009e2fba64bf11b76ba51f03014cf28f"),
)
"""(bytes of a block, content words of `sample(bytes, "vector")`): every version and every machine must give these.
XXH3 has another way of reading inputs of up to 16, 128, 240 bytes, and of more."""


@pytest.mark.parametrize(("size", "words"), VECTORS)
def test_the_words_are_fixed_for_every_size(size: int, words: str) -> None:
    digester, block = Digester(layout(size)), sample(size, "vector")
    assert digester.content_words(block).hex() == words
    assert digester.content_words(memoryview(bytearray(block))).hex() == words
    other = sample(size, "other")
    both = [digester.content_words(block), digester.content_words(other)]
    assert digester.content_words_each([block, other]) == both
    assert digester.content_words_of(np.frombuffer(block + other, dtype=np.uint8).reshape(2, -1)) == both
    assert digester.content_words_of(np.frombuffer(block + other, dtype="<u2").reshape(2, -1)) == both


@given(st.sampled_from([16, 128, 512, 4096]), st.integers(0, 10**6), st.integers(1, 255))
def test_any_changed_byte_changes_the_words(size: int, at: int, change: int) -> None:
    block, digester = bytearray(sample(size, "change")), Digester(layout(size))
    before = digester.content_words(block)
    block[at % size] ^= change
    assert digester.content_words(block) != before


@given(st.integers(0, 63), st.integers(0, 63))
def test_words_that_change_places_are_noticed(first: int, second: int) -> None:
    words = [sample(8, f"word {number}") for number in range(64)]
    digester = Digester(layout(512))
    before = digester.content_words(b"".join(words))
    words[first], words[second] = words[second], words[first]
    assert (digester.content_words(b"".join(words)) == before) == (first == second)


@given(st.integers(1, 600), st.sampled_from([16, 240, 512, 5000]))
def test_a_block_that_comes_piece_by_piece_has_the_same_words(step: int, size: int) -> None:
    block, digester = sample(size, "pieces"), Digester(layout(size))
    running = digester.begin()
    for start in range(0, size, step):
        running.add(block[start : start + step])
    assert running.words() == digester.content_words(block)
    with pytest.raises(AssertionError):
        digester.begin().words()


def test_a_block_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(AssertionError):
        Digester(layout(12)).content_words(b"short")


@given(st.binary(min_size=16, max_size=16), st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 63) - 1))
def test_bound_words_belong_to_one_epoch_name_and_generation(words: bytes, epoch: int, generation: int) -> None:
    name, other = bytes(16), bytes(15) + b"x"
    bound = bind(words, epoch, name, generation)
    assert unbind(bound, epoch, name, generation) == words
    assert unbind(bound, epoch ^ 1, name, generation) != words
    assert unbind(bound, epoch, other, generation) != words
    assert unbind(bound, epoch, name, generation + 1) != words


def test_the_binding_is_fixed() -> None:
    assert bind(bytes(16), 1, bytes(range(16)), 2).hex() == "477637d875158af2dc97ae3e237dac4f"
