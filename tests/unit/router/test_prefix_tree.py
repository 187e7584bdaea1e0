"""A prefix tree finds what was put in, forgets the least recently used, and its books fit."""

from collections.abc import Hashable
from typing import Any, NamedTuple, Self

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.prefix_tree import PrefixTree, common

NODE_BYTES = 600


class Letters(NamedTuple):
    """A run of letters, each a unit."""

    text: str

    @property
    def key(self) -> Hashable:
        return self.text[0]

    @property
    def units(self) -> int:
        return len(self.text)

    @property
    def length(self) -> int:
        return len(self.text)

    @property
    def size_bytes(self) -> int:
        return 10 * len(self.text)

    def head(self, units: int) -> Self:
        return type(self)(self.text[:units])

    def tail(self, units: int) -> Self:
        return type(self)(self.text[units:])

    def joined(self, other: Self) -> Self:
        return type(self)(self.text + other.text)


class ByLetter:
    def key(self, sequence: str, at: int) -> Hashable | None:
        return sequence[at : at + 1] or None

    def shared(self, run: Letters, sequence: str, at: int) -> int:
        return common(run.text, sequence, at)


def keep(tree: PrefixTree[str, Letters], owner: str, text: str) -> None:
    tree.add(owner, text, lambda units: Letters(text[units:]) if text[units:] else None)


def known(tree: PrefixTree[str, Letters], owner: str, text: str) -> str:
    return "".join(run.text for run in tree.find(owner, text))


class Books(RuleBasedStateMachine):
    """Against a plain set of prefixes, of which a bounded tree may have forgotten some."""

    def __init__(self) -> None:
        super().__init__()
        self.bound = 4_000
        self.tree: PrefixTree[str, Letters] = PrefixTree(ByLetter(), self.bound)
        self.whole: PrefixTree[str, Letters] = PrefixTree(ByLetter(), 1 << 30)
        self.prefixes: dict[str, set[str]] = {"one": set(), "other": set()}

    @rule(owner=st.sampled_from(("one", "other")), text=st.text(alphabet="abc", max_size=12))
    def keep(self, owner: str, text: str) -> None:
        for tree in (self.tree, self.whole):
            keep(tree, owner, text)
        self.prefixes[owner].update(text[:end] for end in range(1, len(text) + 1))
        assert known(self.tree, owner, text) == text

    @rule(owner=st.sampled_from(("one", "other")), text=st.text(alphabet="abc", max_size=12))
    def find(self, owner: str, text: str) -> None:
        longest = max((text[:end] for end in range(len(text) + 1) if text[:end] in self.prefixes[owner]), default="")
        assert known(self.whole, owner, text) == longest
        assert longest.startswith(known(self.tree, owner, text))

    @invariant()
    def books_fit(self) -> None:
        for tree in (self.tree, self.whole):
            nodes: Any = list(tree._used)
            assert tree.size_bytes == sum(node.run.size_bytes + NODE_BYTES for node in nodes)
            below = {id(node.parent) for node in nodes if node.parent is not None}
            assert below <= {id(node) for node in nodes}
            place = {id(node): number for number, node in enumerate(nodes)}
            assert all(place[id(node)] < place[id(node.parent)] for node in nodes if node.parent is not None)
        assert self.tree.size_bytes <= self.bound


TestBooks = Books.TestCase


def test_the_least_recently_used_goes_first() -> None:
    tree: PrefixTree[str, Letters] = PrefixTree(ByLetter(), 2 * (NODE_BYTES + 50))
    keep(tree, "one", "aaaaa")
    keep(tree, "one", "bbbbb")
    known(tree, "one", "aaaaa")
    keep(tree, "one", "ccccc")
    assert [known(tree, "one", letter * 5) for letter in "abc"] == ["aaaaa", "", "ccccc"]


def test_what_is_larger_than_the_bound_is_not_kept_and_drives_nothing_out() -> None:
    tree: PrefixTree[str, Letters] = PrefixTree(ByLetter(), NODE_BYTES + 100)
    keep(tree, "one", "aaaa")
    keep(tree, "one", "b" * 11)
    assert known(tree, "one", "aaaa") == "aaaa"
    assert known(tree, "one", "b" * 11) == ""


def test_no_look_up_takes_more_than_a_bounded_number_of_steps() -> None:
    tree: PrefixTree[str, Letters] = PrefixTree(ByLetter(), 1 << 30)
    trunk = "a" * 600
    keep(tree, "one", trunk)
    for length in range(len(trunk)):
        keep(tree, "one", trunk[:length] + "b")
    assert len(tree.find("one", trunk)) <= 257
    assert known(tree, "one", trunk) == trunk


@given(st.text(alphabet="ab", max_size=20), st.text(alphabet="ab", max_size=20), st.integers(0, 20))
def test_what_is_common_is_the_longest_common_prefix(run: str, sequence: str, at: int) -> None:
    at = min(at, len(sequence))
    longest = next(
        (length for length in range(len(run), 0, -1) if sequence[at:].startswith(run[:length])),
        0,
    )
    assert common(run, sequence, at) == longest
    assert common(run.encode(), sequence.encode(), at) == longest
