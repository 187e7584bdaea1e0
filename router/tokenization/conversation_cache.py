"""The tokens of rendered conversations by their text, so that a longer conversation costs only what is new in it.

The cache finds known text by comparing it, never by a digest of it, and only up to a place where `cuts` says that
what follows is tokenized by itself. Each owner (a tenant with its salt) finds only its own text: the time that an
answer takes does not reveal what others have asked.
"""

from array import array
from bisect import bisect_right
from collections.abc import Hashable
from typing import NamedTuple, Self

from router.prefix_tree import PrefixTree, common
from router.tokenization.split_points import Places, SplitPoints


class KnownText(NamedTuple):
    """The known beginning of a text: its length in characters, its number of units, and its packed tokens."""

    characters: int
    units: int
    packed: bytes


class _Tokenized(NamedTuple):
    """A `router.prefix_tree.Run`: text with its tokens, in units that end at these characters and tokens."""

    text: str
    packed: bytes
    ends: Places

    @property
    def key(self) -> int:
        return hash(self.text[: self.ends.characters[0]])

    @property
    def units(self) -> int:
        return len(self.ends.characters)

    @property
    def length(self) -> int:
        return len(self.text)

    @property
    def size_bytes(self) -> int:
        return self.text.__sizeof__() + len(self.packed) + 16 * len(self.ends.characters)

    def head(self, units: int) -> Self:
        characters, tokens = (ends[:units] for ends in self.ends)
        return self._replace(
            text=self.text[: characters[-1]], packed=self.packed[: 4 * tokens[-1]], ends=Places(characters, tokens)
        )

    def tail(self, units: int) -> Self:
        at_character, at_token = (ends[units - 1] for ends in self.ends)
        characters, tokens = (_shifted(ends[units:], -ends[units - 1]) for ends in self.ends)
        return self._replace(
            text=self.text[at_character:], packed=self.packed[4 * at_token :], ends=Places(characters, tokens)
        )

    def joined(self, other: Self) -> Self:
        characters = self.ends.characters + _shifted(other.ends.characters, len(self.text))
        tokens = self.ends.tokens + _shifted(other.ends.tokens, len(self.packed) // 4)
        return self._replace(
            text=self.text + other.text, packed=self.packed + other.packed, ends=Places(characters, tokens)
        )


class _Pieces:
    """`router.prefix_tree.Units`: text from one place to the next."""

    def __init__(self, cuts: SplitPoints) -> None:
        self._cuts = cuts

    def key(self, sequence: str, at: int) -> int | None:
        end = self._cuts.after(sequence, at)
        return None if end is None else hash(sequence[at:end])

    def shared(self, run: _Tokenized, sequence: str, at: int) -> int:
        ends = run.ends.characters
        units = bisect_right(ends, common(run.text, sequence, at))
        while units and not self._cuts.begins(sequence, at + ends[units - 1]):
            units -= 1
        return units


class ConversationCache:
    """Caches the tokenized conversations of one model. It keeps about `bytes_max` bytes at most; 0 keeps nothing."""

    def __init__(self, cuts: SplitPoints, bytes_max: int) -> None:
        self._known: PrefixTree[str, _Tokenized] = PrefixTree(_Pieces(cuts), bytes_max)

    @property
    def size_bytes(self) -> int:
        """Bytes that the cache keeps, about."""
        return self._known.size_bytes

    def find(self, owner: Hashable, text: str) -> KnownText:
        """The longest known beginning of a text."""
        runs = self._known.find(owner, text)
        packed = runs[0].packed if len(runs) == 1 else b"".join(run.packed for run in runs)
        return KnownText(sum(run.length for run in runs), sum(run.units for run in runs), packed)

    def keep(self, owner: Hashable, text: str, known: KnownText, packed: bytes, places: Places) -> None:
        """Remember a text, of which so much was known; `packed` are all its tokens, and `places` are those in the
        rest of it, seen from there."""
        first = 1 if places.characters and places.characters[0] == 0 else 0
        before = known.characters, len(known.packed) // 4
        ends = [_shifted(each[first:], by) for each, by in zip(places, before, strict=True)]

        def rest(units: int) -> _Tokenized | None:
            new = units - known.units
            if not 0 <= new < len(ends[0]):
                return None
            at_character, at_token = (each[new - 1] for each in ends) if new else before
            characters, tokens = (each[new:] for each in ends)
            return _Tokenized(
                text[at_character : characters[-1]],
                packed[4 * at_token : 4 * tokens[-1]],
                Places(_shifted(characters, -at_character), _shifted(tokens, -at_token)),
            )

        self._known.add(owner, text, rest)


def _shifted(ends: "array[int]", by: int) -> "array[int]":
    return array("Q", [end + by for end in ends])
