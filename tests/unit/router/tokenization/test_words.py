"""Words that are known give the tokens that the tokenizer gives to the whole text."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from router.api.chat_templates.render import FileRenderer
from router.api.chat_templates.templates import InlineTemplates
from router.tokenization import word_cache as module
from router.tokenization.split_points import find_split_points
from router.tokenization.word_cache import WordCache, find_word_cache
from tandem.core.kv import pack_tokens
from tandem.model.directory import open_model
from tandem.process.system import SystemClock
from tests.worlds.rendered import chat, rendered

LLAMA, QWEN = sorted(module._EXPRESSIONS, key=lambda each: r"{1,3}" not in each)
CORPUS = ("the word it's a 12 don't, (word) wörd!\n\n the\tword\r\n  the 123 'word' 日本 e\u0301 \u00e9",) * 3
OWNER = "tenant"
ADDED = ("<|a|>", "<|b|>")


def shaped(kind: str) -> pre_tokenizers.PreTokenizer:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    own = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "gpt2":
        return own
    if kind == "digits":
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\d"), "isolated"), own])
    split = pre_tokenizers.Split(Regex(LLAMA if kind == "llama" else QWEN), "isolated")
    return pre_tokenizers.Sequence([split, plain])


@cache
def trained(kind: str) -> Tokenizer:
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = shaped(kind)
    built.decoder = decoders.ByteLevel()
    if kind == "qwen":
        built.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    built.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    built.add_special_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return built


def whole(built: Tokenizer, text: str) -> bytes:
    return pack_tokens(built.encode(text, add_special_tokens=False).ids)


def added(built: Tokenizer) -> dict[str, int]:
    cuts = find_split_points(built, ["".join(ADDED)])
    assert cuts is not None
    assert set(cuts.tokens) == set(ADDED)
    return cuts.tokens


KINDS = ("gpt2", "digits", "llama", "qwen")
PIECES = ("the", "word", "a", "it's", "'s", "12", "1", ".", ",", "(", "<", "|", ">", *ADDED, "<|a", "é", "e", "日本")
SPACES = (" ", " ", " ", " ", "  ", "\n", "\t", "\r\n", "\xa0", "\u2028", "\x1c", "\x85", "\u0301", "\u0338")
TEXTS = st.lists(st.sampled_from(PIECES + SPACES), max_size=14).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(TEXTS, min_size=1, max_size=6))
def test_known_words_give_the_tokens_of_the_text(kind: str, texts: list[str]) -> None:
    built = trained(kind)
    words = find_word_cache(built, added(built))
    assert words is not None
    for text in [*texts, *texts, " ".join(texts)]:
        assert words.tokens(text, OWNER) in (None, whole(built, text))


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_of_plain_words_is_put_together_from_them(kind: str) -> None:
    built = trained(kind)
    words = WordCache(built, added(built))
    text = "<|a|>the word it's 12, (don't)<|b|>\n"
    assert words.tokens(text, OWNER) == whole(built, text)

    class Deaf:
        def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[object]:
            assert texts == [], "asked for words that are known"
            return []

    words._tokenizer = Deaf()  # type: ignore[assignment]
    assert words.tokens(text, OWNER) == whole(built, text)
    assert words.tokens("the word 12,<|a|>", OWNER) == whole(built, "the word 12,<|a|>")


@pytest.mark.parametrize("text", ["two  spaces", " begins so", "ends so ", "a\n b", "a \nb", "a \u2028b", "x" * 5000])
def test_what_is_not_plain_words_is_left_to_the_tokenizer(text: str) -> None:
    built = trained("llama")
    assert WordCache(built, added(built)).tokens(text, OWNER) is None


def test_no_more_words_are_kept_than_two_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORDS_MAX", 8)
    built = trained("gpt2")
    words = WordCache(built, added(built))
    for number in range(100):
        text, owner = f"the word{number} {'long' * 10} a{number}", number % 3
        assert words.tokens(text, owner) == whole(built, text)
        for known in (words._first, words._later):
            for kept in (known._now, known._before):
                assert sum(map(len, kept.values())) <= 8
                assert not any(len(word) > 24 for of_owner in kept.values() for word in of_owner)
    assert "the" in words._first.of(0), "what is in use stays"


def test_nobody_finds_the_words_of_others() -> None:
    built = trained("gpt2")
    words, asked = WordCache(built, added(built)), list[str]()

    class Overheard:
        def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[Any]:
            asked.extend(texts)
            return built.encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    words._tokenizer = Overheard()  # type: ignore[assignment]
    for owner in ("one", "one", "other"):
        assert words.tokens("the word", owner) == whole(built, "the word")
    assert asked == ["the", " word"] * 2


def test_tokenizers_of_which_it_is_not_known_have_no_words() -> None:
    for change in (
        lambda built: setattr(built, "pre_tokenizer", pre_tokenizers.Metaspace()),
        lambda built: setattr(built, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda built: setattr(
            built, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        ),
        lambda built: setattr(built, "pre_tokenizer", pre_tokenizers.Sequence([])),
        lambda built: setattr(built, "normalizer", normalizers.Lowercase()),
        lambda built: built.add_special_tokens([AddedToken("<two words>", normalized=False)]),
        lambda built: built.add_special_tokens([AddedToken("<r>", normalized=False, rstrip=True)]),
        lambda built: built.add_special_tokens([AddedToken("<l>", normalized=False, lstrip=True)]),
        lambda built: built.add_special_tokens([AddedToken("<w>", normalized=False, single_word=True)]),
    ):
        built = Tokenizer.from_str(trained("gpt2").to_str())
        tokens = added(built)
        assert find_word_cache(built, tokens) is not None
        change(built)
        assert find_word_cache(built, tokens) is None


def test_prompts_of_the_demo_model_are_put_together_from_words() -> None:
    renderer = FileRenderer(open_model("demo"), InlineTemplates(SystemClock()))
    assert renderer._words is not None
    for text in ("Tell me a story about 3 lanterns, please.", "Tell  me", "a\n\nb c", "<|end|> x<|user|>y", ""):
        messages = [{"role": "user", "content": text}]
        for _ in range(2):
            assert (
                chat(renderer, messages, OWNER)
                == chat(renderer, messages)
                == whole(renderer._tokenizer, rendered(renderer, messages))
            )
