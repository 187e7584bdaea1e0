"""Tokens of words that come again, kept so that short prompts need the tokenizer for new words only.

A byte-level BPE tokenizer first takes the added tokens out of a text, then splits each stretch between them with an
expression, and makes tokens of each part by itself. The expressions in `_EXPRESSIONS` end a part before a single
space that stands between two characters that are not spaces: they take a space behind nothing but white space, and
where they look ahead they look from white space. So a stretch falls into words there, and

    tokens(stretch) = tokens(first word) + tokens(" " + second word) + …

An added token with a space in it, or one that takes spaces beside it, could lie across such a place. The cache does
not serve tokenizers that have one, nor any other of which this is not known. A text in which two words cannot be told
apart in this way (several spaces in a row, a space beside a line break) is tokenized as a whole.

Each owner (a tenant with its salt) finds only its own words: the time that an answer takes does not reveal what
others have asked. All owners share the bound. Words longer than people write are not kept.
"""

import re
from collections.abc import Hashable, Mapping
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

from tandem.core.kv import pack_tokens

_CHARACTERS_MAX: Final = 4096
"""Longer texts are tokenized on a thread, for which the library lets go of the interpreter."""
_WORD_CHARACTERS_MAX: Final = 24
_WORDS_MAX: Final = 16_384
"""Maximum number of words of each kind in use; as many again that were in use before are kept."""
_NOTHING: Final[Mapping[str, bytes]] = {}
_DIGITS: Final = r"\d"
_LETTERS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_EXPRESSIONS: Final = frozenset("|".join((_LETTERS, numbers, _OTHERS)) for numbers in (r"\p{N}{1,3}", r"\p{N}"))
"""The splitting expressions of Llama 3 and of Qwen 2 and their successors; GPT-2's own is built into the library."""
_TRIED: Final = (
    "The quick brown fox, it's 12 o'clock (half past 1,234.5)!",
    "naïve e\u0301 日本語 words \U0001f600 and 'quotes' 'S-s ...",
    "a b  c\n\nd \t e\xa0f g\r\n h ",
    " begins and ends with one ",
    "x = {'a': [1, 2]}; y_z += 3 # why?",
)


class _Known:
    """Packed tokens by owner and word: those in use, at most two generations of them."""

    __slots__ = ("_before", "_count", "_now")

    def __init__(self) -> None:
        self._now: dict[Hashable, dict[str, bytes]] = {}
        self._before: dict[Hashable, dict[str, bytes]] = {}
        self._count = 0

    def of(self, owner: Hashable) -> Mapping[str, bytes]:
        """An owner's words of this generation."""
        return self._now.get(owner, _NOTHING)

    def recall(self, owner: Hashable, word: str) -> bytes:
        """The tokens of a word that is not in this generation; empty when they are not known."""
        packed = self._before.get(owner, _NOTHING).get(word, b"")
        if packed:
            self.keep(owner, word, packed)
        return packed

    def keep(self, owner: Hashable, word: str, packed: bytes) -> None:
        """Have a word in this generation."""
        if len(word) > _WORD_CHARACTERS_MAX:
            return
        if self._count >= _WORDS_MAX:
            self._before, self._now, self._count = self._now, {}, 0
        self._now.setdefault(owner, {})[word] = packed
        self._count += 1


class WordCache:
    """Caches the tokens of words for one tokenizer. `added` maps the texts of added tokens to their ids; a text is
    matched wherever it stands (`router.tokenization.split_points`)."""

    def __init__(self, tokenizer: Tokenizer, added: Mapping[str, int]) -> None:
        self._tokenizer = tokenizer
        self._added = {text: pack_tokens([number]) for text, number in added.items()}
        self._stretches = re.compile(f"({'|'.join(map(re.escape, added))})").split
        self._first = _Known()
        """The words that stretches begin with."""
        self._later = _Known()
        """The words that follow a space; none of them begins or ends with white space."""

    def tokens(self, text: str, owner: Hashable) -> bytes | None:
        """Packed token ids of a text, without what is put around texts; None where it has to be tokenized whole."""
        if len(text) > _CHARACTERS_MAX or "  " in text or "\n " in text or " \n" in text:
            return None  # as it would turn out, at the latest when all other words are known
        # What is empty has still to be found.
        found: list[bytes] = []
        missing: list[tuple[int, str, _Known]] = []
        begins, later = self._first.of(owner), self._later.of(owner)
        for number, stretch in enumerate(self._stretches(text)):
            if number % 2:
                found.append(self._added[stretch])
            elif stretch:
                first, *rest = stretch.split(" ")
                if rest and not _ends_in_a_word(first):
                    return None
                packed = begins.get(first, b"")
                if not packed:
                    missing.append((len(found), first, self._first))
                found.append(packed)
                words = [later.get(word, b"") for word in rest]
                if b"" in words:
                    at = len(found)
                    missing += [(at + i, rest[i], self._later) for i, packed in enumerate(words) if not packed]
                found += words
        if missing and not self._find(missing, found, owner):
            return None
        return b"".join(found)

    def _find(self, missing: list[tuple[int, str, _Known]], found: list[bytes], owner: Hashable) -> bool:
        """Put the tokens of the missing words in their places; False when the tokens of a word cannot be separated
        from its neighbours."""
        new: list[tuple[int, str, _Known]] = []
        for each in missing:
            at, word, known = each
            if known is self._later and not (_ends_in_a_word(word) and not word[0].isspace()):
                return False
            found[at] = known.recall(owner, word)
            if not found[at]:
                new.append(each)
        texts = [f" {word}" if known is self._later else word for _, word, known in new]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        for (at, word, known), encoding in zip(new, encodings, strict=True):
            found[at] = packed = pack_tokens(encoding.ids)
            known.keep(owner, word, packed)
        return True


def _ends_in_a_word(text: str) -> bool:
    return bool(text) and not text[-1].isspace()


class _Part(msgspec.Struct):
    """A pre-tokenizer, as far as it matters here."""

    type: str
    add_prefix_space: bool = True
    use_regex: bool = True
    pretokenizers: tuple["_Part", ...] = ()
    pattern: dict[str, str] = {}
    behavior: str = ""
    invert: bool = False


class _Kind(msgspec.Struct):
    type: str = ""


class _TokenizerFile(msgspec.Struct):
    model: _Kind
    normalizer: _Kind | None = None
    pre_tokenizer: _Part | None = None


def find_word_cache(tokenizer: Tokenizer, added: Mapping[str, int]) -> WordCache | None:
    """The words of a tokenizer whose texts can be cut before the tokens `added` (`cuts.find_cuts`); None
    when it is none of those described above. A few texts are tried on top, as for the cuts."""
    try:
        described = msgspec.json.decode(tokenizer.to_str(), type=_TokenizerFile)
    except msgspec.ValidationError:
        return None
    normal = described.normalizer is None or described.normalizer.type == "NFC"
    if described.model.type != "BPE" or not normal or not _splits_at_spaces(described.pre_tokenizer):
        return None
    for token in tokenizer.get_added_tokens_decoder().values():
        if token.single_word or token.lstrip or token.rstrip or any(map(str.isspace, token.content)):
            return None
    words = WordCache(tokenizer, added)
    return words if all(_goes_well(tokenizer, words, text) for text in _tried(added)) else None


def _splits_at_spaces(part: _Part | None) -> bool:
    """Whether it is one of those described above."""
    parts = () if part is None else part.pretokenizers if part.type == "Sequence" else (part,)
    if not parts:
        return False
    *splits, last = parts
    if last.type != "ByteLevel" or last.add_prefix_space:
        return False
    expressions = [each.pattern.get("Regex", "") for each in splits]
    isolated = all(each.type == "Split" and each.behavior == "Isolated" and not each.invert for each in splits)
    known = all(each in _EXPRESSIONS or each == _DIGITS for each in expressions)
    return isolated and known and (last.use_regex or any(each in _EXPRESSIONS for each in expressions))


def _tried(added: Mapping[str, int]) -> list[str]:
    return [*_TRIED, *(f"{text}{token}{text}" for token in added for text in _TRIED)]


def _goes_well(tokenizer: Tokenizer, words: WordCache, text: str) -> bool:
    whole: Any = tokenizer.encode(text, add_special_tokens=False).ids
    # Twice: with words that are new, and with the same ones once they are known.
    return all(words.tokens(text, None) in (None, pack_tokens(whole)) for _ in range(2))
