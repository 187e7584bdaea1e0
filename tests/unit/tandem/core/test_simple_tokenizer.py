"""The tokenizer of models without files: bytes in, bytes and words out."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.core.kv import unpack_tokens
from tandem.core.simple_tokenizer import BYTE_IDS, VOCAB_SIZE, decode, encode, piece


@given(st.text())
def test_a_text_survives_encoding_and_decoding(text: str) -> None:
    clean = text.encode("utf-8", "replace").decode()
    assert decode(unpack_tokens(encode(text))) == clean


def test_every_word_differs_and_starts_with_a_space() -> None:
    words = [piece(token) for token in range(BYTE_IDS, VOCAB_SIZE)]
    assert len(set(words)) == len(words)
    assert all(word.startswith(b" ") and word[1:].isalpha() and len(word) <= 7 for word in words)


def test_bytes_that_are_not_utf8_are_replaced_not_raised() -> None:
    assert decode((0xFF, 0x41)) == "�A"
