"""Running sums of what sequences that grow by one token per step attend to: carried from step to step instead of
summed up again.

E of a sequence follows from the slots of its table alone. As long as nothing but the engine writes to one of them, E
after a token that the engine itself wrote is what the next token attends to. Every slot is noted with the runs that
read it: when a slot is found to have been written to, the runs that relied on it end, and the next step reads the
slots themselves.
"""

from collections.abc import Iterable
from typing import Final

from tandem.core.kv import unpack_tokens
from tandem.engine.simulated.content import U64
from tandem.engine.simulated.sums import SlotSums

_IDLE_MIN: Final = 16


class RunningSum:
    """One sequence: E over its first `end` positions. The next one is written to slot `tail`, the last of `table`, as
    are all before `until`; `base` is E before that slot's block."""

    __slots__ = ("base", "end", "key", "state", "table", "tail", "turn", "until")

    def __init__(self, key: int, table: bytes, end: int, until: int, tail: int, state: int, base: int) -> None:
        self.key = key
        self.table = table
        self.end = end
        self.until = until
        self.tail = tail
        self.state = state
        self.base = base
        self.turn = 0


class RunningSums:
    """All sequences of one engine that are followed. Keys only find them: what is found is checked."""

    def __init__(self, sums: SlotSums, block_tokens: int) -> None:
        self._sums = sums
        self._size = block_tokens
        self._runs: dict[int, RunningSum] = {}
        self._readers: dict[int, tuple[int, ...]] = {}
        self._tails: dict[int, int] = {}
        """Slots that are written to, with the only one who may read them."""
        self._loose: dict[int, None] = {}
        """Slots that are written to in this step by sequences that are not followed, because others read them."""
        self._turn = 0

    def find(self, key: int, table: bytes, end: int) -> RunningSum | None:
        """The run whose state is E over the first `end` positions of the blocks in `table` (packed uint32)."""
        run = self._runs.get(key)
        if run is None or run.end != end:
            return None
        same = run.table is table or run.table == table
        if not (same and end < run.until) and not self._grown(run, table):
            return None
        run.turn = self._turn
        return run

    def find_all(
        self, keys: list[int], tables: list[bytes], ends: list[int]
    ) -> tuple[list[RunningSum | None], list[int]]:
        """`find` for many; and the places of those that are not followed."""
        found: list[RunningSum | None] = list(map(self._runs.get, keys))
        missing, turn = [], self._turn
        for at, (run, table, end) in enumerate(zip(found, tables, ends, strict=True)):
            if run is not None and run.end == end and run.table is table and end < run.until:
                run.turn = turn
            else:
                found[at] = run = self.find(keys[at], table, end)
                if run is None:
                    missing.append(at)
        return found, missing

    def begin(self, key: int, table: bytes, end: int, state: int, part: int) -> RunningSum:
        """Follow a sequence whose next position is `end`; `part` is what the block of the one before adds to E."""
        self._drop(key)
        size = self._size
        block, inside = divmod(end, size)
        if len(table) > 4 * block + 4:
            table = table[: 4 * block + 4]
        slots = unpack_tokens(table)
        tail = slots[block]
        run = RunningSum(key, table, end, (block + 1) * size, tail, state, state - part & U64 if inside else state)
        run.turn = self._turn
        rivals = [other for slot in slots if (other := self._tails.get(slot)) is not None]
        rivals += self._readers.get(tail, ())
        if rivals or tail in slots[:block] or any(slot in self._loose for slot in slots):
            # One writes, in this very step perhaps, to what another one attends to: both are read anew next time.
            for other in rivals:
                if other in self._runs:
                    self._loose[self._runs[other].tail] = None
                    self._drop(other)
            self._loose[tail] = None
            self._sums.forget(tail)
            return run
        self._runs[key] = run
        readers, alone = self._readers, (key,)
        for slot in slots:
            others = readers.get(slot)
            readers[slot] = alone if others is None else (*others, key)
        self._begin_tail(run)
        return run

    def written(self, slots: Iterable[int]) -> None:
        """Drop the running sums that read these slots, which were written to from outside, or may have been."""
        readers = self._readers
        for slot in slots:
            for key in readers.get(slot, ()):
                self._drop(key)

    def forget_all(self) -> None:
        """Any slot may have been written to."""
        self._runs.clear()
        self._readers.clear()
        self._tails.clear()

    def end_step(self, running: int) -> None:
        """A step is over in which so many were followed: forget who has been gone for a while."""
        self._turn += 1
        self._loose.clear()
        if len(self._runs) > 2 * running + _IDLE_MIN:
            for run in [run for run in self._runs.values() if run.turn < self._turn - 1]:
                self._drop(run.key)

    def _grown(self, run: RunningSum, table: bytes) -> bool:
        """Extend the run by one block when `table` continues the run's block table: its tail is full, and `table` has
        one more slot. Gives whether it does."""
        full = len(run.table)
        if run.end != run.until or len(table) != full + 4 or not table.startswith(run.table):
            return False
        slot = int.from_bytes(table[full:], "little")
        if slot in self._readers:
            return False
        self._end_tail(run)
        run.table, run.tail, run.base = table, slot, run.state
        run.until += self._size
        self._readers[slot] = (run.key,)
        self._begin_tail(run)
        return True

    def _begin_tail(self, run: RunningSum) -> None:
        self._tails[run.tail] = run.key
        self._sums.forget(run.tail)

    def _end_tail(self, run: RunningSum) -> None:
        """Others may read a full block, and need not sum it up."""
        del self._tails[run.tail]
        self._sums.know_one(run.tail, run.state - run.base & U64, run.end)

    def _drop(self, key: int) -> None:
        run = self._runs.pop(key, None)
        if run is None:
            return
        del self._tails[run.tail]
        self._sums.forget(run.tail)
        readers = self._readers
        for slot in unpack_tokens(run.table):
            left = tuple([other for other in readers.get(slot, ()) if other != key])
            if left:
                readers[slot] = left
            else:
                readers.pop(slot, None)
