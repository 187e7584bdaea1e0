"""What is known of sequences by their prefixes: a radix tree per owner, bounded in bytes, that evicts the least
recently used first.

A sequence (text, packed tokens) consists of *units* (pieces between two cuts, blocks), and a prefix of it is known in
whole units. An edge of the tree is a `Run`: consecutive units with what is known of them. A sequence that only grew
is one run, so that finding it again is one comparison of memory.

Owners share only the bound: no owner finds what another has put in.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, Protocol, Self, TypeVar

_NODE_BYTES: Final = 600
"""A node's own objects, about."""
_DEPTH_MAX: Final = 256
"""Nodes above one another: as many steps as a look-up takes. Where more would branch off, nothing is kept."""


class Run(Protocol):
    """Consecutive units with what is known of them."""

    @property
    def key(self) -> Hashable:
        """Stands for the first unit, as `Units.key`."""
        ...

    @property
    def units(self) -> int:
        """The number of units; at least one."""
        ...

    @property
    def length(self) -> int:
        """The length in items of the sequence."""
        ...

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, about."""
        ...

    def head(self, units: int) -> Self:
        """The first so many units."""
        ...

    def tail(self, units: int) -> Self:
        """All but the first so many."""
        ...

    def joined(self, other: Self) -> Self:
        """This run followed by the other."""
        ...


SequenceT = TypeVar("SequenceT", contravariant=True)
RunT = TypeVar("RunT", bound=Run)
AnyRunT = TypeVar("AnyRunT", bound=Run, contravariant=True)


class Units(Protocol[SequenceT, AnyRunT]):
    """How sequences are made of units. The place where the first so many units end is the same for all sequences that
    share them."""

    def key(self, sequence: SequenceT, at: int) -> Hashable | None:
        """Stands for the unit that begins at `at`; None when none does."""
        ...

    def shared(self, run: AnyRunT, sequence: SequenceT, at: int) -> int:
        """The number of leading units of the run that the sequence has from `at` on."""
        ...


TextT = TypeVar("TextT", str, bytes)


def common(run: TextT, sequence: TextT, at: int) -> int:
    """The number of leading items of `run` that the sequence has from `at` on. Compares memory, in time linear in the
    run."""
    if sequence.startswith(run, at):
        return len(run)
    same, differs = 0, min(len(run), len(sequence) - at)
    if sequence.startswith(run[:differs], at):
        return differs
    while differs - same > 1:
        middle = (same + differs) // 2
        if sequence.startswith(run[same:middle], at + same):
            same = middle
        else:
            differs = middle
    return same


class _Node(Generic[RunT]):
    """The end of a run."""

    __slots__ = ("children", "owner", "parent", "run")

    def __init__(self, owner: Hashable, parent: "_Node[RunT] | None", run: RunT) -> None:
        self.owner = owner
        self.parent = parent
        """None where sequences begin."""
        self.run = run
        self.children: dict[Hashable, _Node[RunT]] = {}


class PrefixTree(Generic[SequenceT, RunT]):
    """Finds the longest known prefix of a sequence, and takes what follows it."""

    def __init__(self, units: Units[SequenceT, RunT], bytes_max: int) -> None:
        self._units = units
        self._bytes_max = bytes_max
        self._owners: dict[Hashable, dict[Hashable, _Node[RunT]]] = {}
        self._used: OrderedDict[_Node[RunT], None] = OrderedDict()
        """The least recently used first; a node always comes after those below it."""
        self.size_bytes = 0
        """Memory in use, about; above the bound only within `add`."""

    def find(self, owner: Hashable, sequence: SequenceT) -> list[RunT]:
        """The runs that make up the longest known prefix; they count as used."""
        node, _, inside = self._walk(owner, sequence)
        return self._used_up_to(node, inside)

    def add(self, owner: Hashable, sequence: SequenceT, rest: Callable[[int], RunT | None]) -> list[RunT]:
        """Keep what `rest` knows of the sequence beyond the given number of units, which are known already. Gives
        what `find` gives from then on."""
        node, units, inside = self._walk(owner, sequence)
        run = rest(units)
        if run is None or run.size_bytes + _NODE_BYTES > self._bytes_max or _depth(node) >= _DEPTH_MAX:
            return self._used_up_to(node, inside)
        if node is not None and inside:
            node = self._split(node, inside)
        if node is not None and not node.children:
            self.size_bytes -= node.run.size_bytes
            node.run = node.run.joined(run)
            self.size_bytes += node.run.size_bytes
        else:
            node = self._attach(owner, node, run)
        self._touch(node)
        while self.size_bytes > self._bytes_max:
            self._forget(next(iter(self._used)))
        return _path(node)

    def _walk(self, owner: Hashable, sequence: SequenceT) -> tuple[_Node[RunT] | None, int, int]:
        """Where the known prefix of a sequence ends: the last node that the prefix reaches, the units it has, and how
        many of them are in that node's run when the prefix ends inside that run, else 0."""
        node, children, at, units = None, self._owners.get(owner), 0, 0
        while children and (key := self._units.key(sequence, at)) is not None:
            child = children.get(key)
            shared = self._units.shared(child.run, sequence, at) if child is not None else 0
            if child is None or shared == 0:
                break
            node, units = child, units + shared
            if shared < child.run.units:
                return node, units, shared
            at += child.run.length
            children = child.children
        return node, units, 0

    def _used_up_to(self, node: _Node[RunT] | None, inside: int) -> list[RunT]:
        """The runs to where a walk ended, which count as used."""
        self._touch(node)
        if node is None or not inside:
            return _path(node)
        return [*_path(node.parent), node.run.head(inside)]

    def _attach(self, owner: Hashable, parent: _Node[RunT] | None, run: RunT) -> _Node[RunT]:
        siblings = self._owners.setdefault(owner, {}) if parent is None else parent.children
        if run.key in siblings:
            # Keys may be hashes. Of two first units with the same one, the second is not kept.
            return siblings[run.key]
        node = siblings[run.key] = _Node(owner, parent, run)
        self.size_bytes += run.size_bytes + _NODE_BYTES
        return node

    def _split(self, node: _Node[RunT], units: int) -> _Node[RunT]:
        """End a run early: a new node, whose child has the rest."""
        upper = _Node(node.owner, node.parent, node.run.head(units))
        self._siblings(node)[upper.run.key] = upper
        self.size_bytes -= node.run.size_bytes
        node.run, node.parent = node.run.tail(units), upper
        upper.children[node.run.key] = node
        self.size_bytes += upper.run.size_bytes + node.run.size_bytes + _NODE_BYTES
        self._touch(upper)
        return upper

    def _siblings(self, node: _Node[RunT]) -> dict[Hashable, _Node[RunT]]:
        return self._owners[node.owner] if node.parent is None else node.parent.children

    def _touch(self, node: _Node[RunT] | None) -> None:
        """Mark a node and every node above it as just used."""
        used = self._used
        while node is not None:
            used[node] = None
            used.move_to_end(node)
            node = node.parent

    def _forget(self, node: _Node[RunT]) -> None:
        assert not node.children, "a node is forgotten after those below it"
        siblings = self._siblings(node)
        del siblings[node.run.key], self._used[node]
        self.size_bytes -= node.run.size_bytes + _NODE_BYTES
        if not siblings and node.parent is None:
            del self._owners[node.owner]


def _path(node: _Node[RunT] | None) -> list[RunT]:
    """The runs from the beginning to a node."""
    runs = []
    while node is not None:
        runs.append(node.run)
        node = node.parent
    runs.reverse()
    return runs


def _depth(node: _Node[Any] | None) -> int:
    depth = 0
    while node is not None:
        node, depth = node.parent, depth + 1
    return depth
