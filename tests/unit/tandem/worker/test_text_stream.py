"""Detokenizing and stop strings: streaming gives what decoding at once gives, and can be resumed anywhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

import tandem.models
from tandem.core.errors import TandemError
from tandem.core.kv import unpack_tokens
from tandem.core.request import Stopping
from tandem.core.simple_tokenizer import encode
from tandem.worker.detokenizer import Decoder, Detokenizer
from tandem.worker.simple_decoder import SimpleDecoder
from tandem.worker.stop_strings import StopMatcher
from tandem.worker.text import TextPiece, TextStream
from tandem.worker.tokenizer import FileDecoder


class SentencePieceDecoder:
    """Words with a leading mark, bytes for everything else: the shape of Llama-2-style tokenizers."""

    def __init__(self) -> None:
        words = ["▁Hello", "▁world", "▁a", "b", "▁", "c", "▁ab"]
        vocab = {"<unk>": 0, "</s>": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
        vocab |= {word: 258 + index for index, word in enumerate(words)}
        self.tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
        self.tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        self.tokenizer.add_special_tokens([tokenizers.AddedToken("</s>", special=True)])

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def with_special(self) -> Self:
        return self

    def alone(self, token: int) -> None:
        """The first word of a text has no space before it here."""

    def encode(self, text: str) -> list[int]:
        known = {" Hello": 258, " world": 259, " a": 260}
        ids: list[int] = []
        while text:
            word = next((word for word in known if text.startswith(word)), None)
            ids.extend([known[word]] if word else [2 + byte for byte in text[0].encode()])
            text = text[len(word) if word else 1 :]
        return ids


SENTENCEPIECE = SentencePieceDecoder()
SIMPLE = SimpleDecoder()
DEMO = FileDecoder(Path(tandem.models.__file__).parent / "demo")
TEXTS = st.text(st.sampled_from("ab c é€😀Hello world\n"), max_size=40)
PLAIN = Stopping(max_tokens=10_000)


def _at_once(decoder: Decoder, tail: Sequence[int], ids: Sequence[int]) -> str:
    return decoder.decode([*tail, *ids])[len(decoder.decode(tail)) :]


def _all(stream: TextStream, ids: Sequence[int]) -> str:
    pieces = [stream.feed(token) for token in ids[:-1]]
    pieces.append(stream.finish(ids[-1]))
    return "".join(piece.text for piece in pieces)


@given(TEXTS.filter(bool))
def test_byte_tokens_stream_to_the_whole_text(text: str) -> None:
    ids = unpack_tokens(encode(text))
    assert _all(TextStream(SIMPLE, (), PLAIN), ids) == text


@given(TEXTS.filter(bool), st.sampled_from(["", "Hello", "Hello world"]))
def test_sentencepiece_tokens_stream_to_the_whole_text(text: str, prompt: str) -> None:
    tail = SENTENCEPIECE.encode(" " + prompt) if prompt else []
    ids = SENTENCEPIECE.encode(text)
    assert _all(TextStream(SENTENCEPIECE, tail, PLAIN), ids) == _at_once(SENTENCEPIECE, tail, ids)


@given(st.lists(st.integers(0, 1535), min_size=1, max_size=30), st.lists(st.integers(300, 1500), max_size=6))
@settings(max_examples=200)
def test_a_real_tokenizer_streams_any_ids_to_the_whole_text(ids: list[int], tail: list[int]) -> None:
    tail = [token for token in tail if not DEMO.decode([token]).endswith("\N{REPLACEMENT CHARACTER}")]
    assert _all(TextStream(DEMO, tail, PLAIN), ids) == _at_once(DEMO, tail, ids)


def test_a_missing_tokenizer_is_a_bad_model(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match=r"tokenizer\.json") as caught:
        FileDecoder(tmp_path)
    assert caught.value.code == "bad_model"


def test_an_unfinished_character_is_held_back_and_ends_as_a_replacement() -> None:
    euro = "€".encode()
    stream = TextStream(SIMPLE, (), PLAIN)
    assert [stream.feed(byte).text for byte in euro] == ["", "", "€"]
    assert stream.feed(euro[0]).text == ""
    assert stream.finish(euro[1]) == TextPiece("\N{REPLACEMENT CHARACTER}", 1, None)


def test_endless_invalid_bytes_are_given_out_in_time() -> None:
    detokenizer = Detokenizer(SIMPLE, ())
    assert "".join(detokenizer.feed(0xFF) for _ in range(64)).count("\N{REPLACEMENT CHARACTER}") >= 48


def test_the_end_token_has_no_text_but_releases_what_was_held() -> None:
    stream = TextStream(SIMPLE, (), Stopping(max_tokens=9, stop=("abc",)))
    assert [stream.feed(byte).text for byte in b"xab"] == ["x", "", ""]
    assert stream.finish(None) == TextPiece("ab", 1, None)
    assert stream.tokens == 4


@given(st.lists(st.text("abc", min_size=1, max_size=4), max_size=4), st.text("abc", max_size=30), st.data())
def test_stop_strings_do_not_depend_on_how_the_text_is_cut(stops: list[str], text: str, data: st.DataObject) -> None:
    whole = StopMatcher(stops)
    expected = "".join(whole.feed(char) for char in text) + whole.flush()
    cut = StopMatcher(stops)
    got, rest = "", text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        got += cut.feed(rest[:size])
        rest = rest[size:]
    assert (got + cut.flush(), cut.matched) == (expected, whole.matched)
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert expected == (text[: min(ends)[1]] if ends else text)


def test_a_stop_string_across_tokens_is_excluded() -> None:
    stream = TextStream(SIMPLE, (), Stopping(max_tokens=99, stop=("lo wo", "zzz")))
    pieces = [stream.feed(byte) for byte in b"hello wo"]
    assert "".join(piece.text for piece in pieces) == "hel"
    assert pieces[-1].stop == "lo wo"
    assert pieces[-2].stop is None


def test_stop_strings_are_ignored_before_min_tokens() -> None:
    stopping = Stopping(max_tokens=99, min_tokens=4, stop=("b",))
    stream = TextStream(SIMPLE, (), stopping)
    pieces = [stream.feed(byte) for byte in b"abcab"]
    assert "".join(piece.text for piece in pieces) == "abca"
    assert [piece.stop for piece in pieces] == [None, None, None, None, "b"]


@given(TEXTS.filter(bool), st.data(), st.sampled_from([(), ("wor",), ("lo", "ab", "€ ")]), st.integers(0, 12))
def test_resuming_anywhere_equals_an_uninterrupted_run(
    text: str, data: st.DataObject, stop: tuple[str, ...], min_tokens: int
) -> None:
    stopping = Stopping(max_tokens=10_000, min_tokens=min_tokens, stop=stop)
    ids = SENTENCEPIECE.encode(text)
    tail = (258, 259)
    uninterrupted = TextStream(SENTENCEPIECE, tail, stopping)
    pieces = []
    for index, token in enumerate(ids):
        pieces.append(uninterrupted.finish(token) if index == len(ids) - 1 else uninterrupted.feed(token))
        if uninterrupted.stopped:
            break
    done = data.draw(st.integers(0, len(pieces) - 1))
    sent = sum(len(piece.text) for piece in pieces[:done])
    resumed = TextStream(SENTENCEPIECE, tail, stopping, ids[:done], sent)
    for index in range(done, len(pieces)):
        last = index == len(ids) - 1
        assert (resumed.finish(ids[index]) if last else resumed.feed(ids[index])) == pieces[index]


@given(TEXTS.filter(lambda text: len(text) > 2), st.data())
def test_a_skipped_position_continues_where_the_other_worker_ended(text: str, data: st.DataObject) -> None:
    ids = unpack_tokens(encode(text))
    at = data.draw(st.integers(0, len(ids) - 2))
    whole, prefill = TextStream(SIMPLE, (), PLAIN), TextStream(SIMPLE, (), PLAIN)
    expected = [whole.feed(token) for token in ids]
    before = [prefill.feed(token) for token in ids[:at]]
    decode = TextStream(SIMPLE, (), PLAIN, ids[:at], sum(len(piece.text) for piece in before))
    decode.skip(ids[at])
    assert [decode.feed(token) for token in ids[at + 1 :]] == expected[at + 1 :]


def test_text_the_client_has_not_seen_yet_comes_with_the_next_token() -> None:
    stream = TextStream(SIMPLE, (), PLAIN, forced=b"hello", sent_chars=2)
    assert stream.feed(ord("!")) == TextPiece("llo!", 2, None)


def test_more_sent_than_replayed_is_suppressed_until_caught_up() -> None:
    stream = TextStream(SIMPLE, (), PLAIN, forced=b"he", sent_chars=4)
    released = [TextPiece("", 3, None), TextPiece("", 4, None), TextPiece("o", 4, None)]
    assert [stream.feed(byte) for byte in b"llo"] == released


def test_special_tokens_are_text_where_they_are_asked_for() -> None:
    ids = DEMO._tokenizer.encode("<|user|> The fox", add_special_tokens=False).ids
    stopping = Stopping(max_tokens=99)
    plain, whole = TextStream(DEMO, (), stopping), TextStream(DEMO.with_special(), (), stopping)
    assert "<|user|>" not in _all(plain, ids)
    assert _all(whole, ids) == "<|user|> The fox"
    assert DEMO.with_special() is DEMO.with_special()
