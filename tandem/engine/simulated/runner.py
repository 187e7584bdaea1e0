"""The computing half: reads the slots a plan names, writes the slots it fills, and takes the formula's time."""

import asyncio
from collections.abc import Callable
from typing import Final, cast

import numpy as np

from tandem.engine.digest import Digester
from tandem.engine.protocol import BlockMemory, EngineInfo
from tandem.engine.scheduler.plan import BlockRef, Columns, Drawn, Row, Step, StepResult
from tandem.engine.scheduler.stall_detection import ProcessSample
from tandem.engine.scheduler.step_budget import StepLoad
from tandem.engine.simulated.content import Content, Words
from tandem.engine.simulated.memory import WatchedMemory
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.running_sums import RunningSum, RunningSums
from tandem.engine.simulated.sampling import TokenSampler
from tandem.engine.simulated.sums import SlotSums

_FEW: Final = 6
"""Up to so many rows are quicker one by one than as arrays."""
_NONE: Final[Words] = np.zeros(0, dtype=np.uint64)
_BRANCHES: Final = 20
"""Bits of a sequence's number in the key by which it is followed."""


class SimulatedRunner:
    """See `tandem.engine.scheduler.plan.Runner`. `compute` is the synchronous core; `execute` adds the time."""

    def __init__(self, model: SimulatedModel, memory: BlockMemory | None = None) -> None:
        self._model = model
        layout = model.layout
        watched: WatchedMemory | None = None
        if memory is None:
            memory = watched = WatchedMemory(layout.block_bytes, model.blocks)
        assert memory.block_bytes == layout.block_bytes
        assert memory.blocks >= model.blocks
        self._memory: BlockMemory = memory
        buffer = memory.buffer if watched is None else watched.own_buffer()
        self._words: Words = np.frombuffer(buffer, dtype="<u8").reshape(-1, 2 * model.block_tokens)
        self._content = Content(model)
        self._watched = watched
        self._sums = SlotSums(self._words, self._content)
        self._following = RunningSums(self._sums, model.block_tokens)
        self._drawing = TokenSampler(model)
        self._digester = Digester(layout)

    @property
    def memory(self) -> BlockMemory:
        return self._memory

    def watch(self, seen: Callable[[ProcessSample], None]) -> None:
        """Do nothing: the runner computes in this process, so there is no engine process to report on."""

    async def load(self) -> EngineInfo:
        return self._model.info()

    async def execute(self, step: Step) -> StepResult:
        """Run one step and wait as long as it would take."""
        seconds = self._model.step_s(_load(step))
        await asyncio.sleep(seconds)
        return self.compute(step, seconds)

    async def close(self) -> None:
        self._memory.close()

    def compute(self, step: Step, seconds: float = 0.0) -> StepResult:
        """Apply a step to the slots; gives what it draws."""
        self._begin()
        for source, target in step.copies:
            self._words[target] = self._words[source]
            self._sums.copied(source, target)
            self._following.written((target,))
        tokens = self._generate(step.columns) if step.columns is not None else []
        singles, others = [], []
        for row in step.rows:
            if len(row.tokens) == 4 and row.write and row.start > 0:
                singles.append(row)
            else:
                others.append(row)
        runs = self._runs(singles)
        rows = singles + others if others else singles
        if len(rows) <= _FEW:
            states = [self._single(row, run) for row, run in zip(singles, runs, strict=True)]
            drawn = self._draw_few(rows, states + self._others(others) if others else states)
        else:
            after = self._singles(singles, runs)
            if others:
                after = np.concatenate((after, np.array(self._others(others), dtype=np.uint64)))
            drawn = self._draw(rows, after)
        self._following.end_step(len(singles) + len(tokens))
        return StepResult(step.number, drawn, self._complete(step.complete), seconds, tokens)

    def _generate(self, columns: Columns) -> list[int]:
        """Compute, write and draw a token for every row of columns."""
        lanes, tables, starts = columns.lanes, columns.tables, columns.starts
        keys = [lane.work_id << _BRANCHES | lane.sequence for lane in lanes]
        runs = self._followed(keys, tables, starts)
        last = np.frombuffer(columns.tokens, dtype="<u4")
        if len(lanes) > _FEW:
            tokens = last.astype(np.uint64)
            return self._drawing.tokens(self._write(runs, tokens, starts), tokens, columns)
        drawn = []
        for lane, run, token, start, position in zip(
            lanes, runs, last.tolist(), starts, columns.positions, strict=True
        ):
            state = self._write_one(run, token, start)
            drawn.append(self._drawing.token_one(state, token, lane, position))
        return drawn

    def _begin(self) -> None:
        """Forget the sums of slots that may have been written to from outside since the last step. Without a
        `WatchedMemory` such writes are not noted, so that is every slot."""
        if self._watched is None or self._watched.open:
            self._sums.forget_all()
            self._following.forget_all()
        elif touched := self._watched.take_touched():
            self._sums.forget(touched)
            self._following.written(touched)

    def _draw_few(self, rows: list[Row], states: list[int]) -> tuple[Drawn, ...]:
        """Sample what a few rows ask for, one by one; `states` has E after each row."""
        drawn = []
        for row, state in zip(rows, states, strict=True):
            token = int.from_bytes(row.tokens[-4:], "little")
            drawn += [self._drawing.draw_one(state, token, draw) for draw in row.draws]
        return tuple(drawn)

    def _draw(self, rows: list[Row], states: Words) -> tuple[Drawn, ...]:
        """Draw what many rows ask for at once; `states` has E after each row."""
        counts = [len(row.draws) for row in rows]
        tokens = np.frombuffer(b"".join([row.tokens[-4:] for row in rows]), dtype="<u4").astype(np.uint64)
        if counts.count(1) == len(counts):
            draws = [row.draws[0] for row in rows]
        else:
            draws = [draw for row in rows for draw in row.draws]
            states, tokens = np.repeat(states, counts), np.repeat(tokens, counts)
        return tuple(self._drawing.draw(states, tokens, draws)) if draws else ()

    def _runs(self, rows: list[Row]) -> list[RunningSum]:
        """The running sums of what rows of one token attend to."""
        return self._followed([_key(row) for row in rows], [row.table for row in rows], [row.start for row in rows])

    def _followed(self, keys: list[int], tables: list[bytes], starts: list[int]) -> list[RunningSum]:
        """The running sums of what one token of each sequence attends to: carried on from the step before, or else
        read from the sequence's slots."""
        found, missing = self._following.find_all(keys, tables, starts)
        if not missing:
            return cast("list[RunningSum]", found)
        if len(missing) <= _FEW:
            known = [self._sums.attended_one(tables[index], starts[index]) for index in missing]
        else:
            states, parts = self._sums.attended([tables[at] for at in missing], [starts[at] for at in missing])
            known = list(zip(states.tolist(), parts.tolist(), strict=True))
        for index, (state, part) in zip(missing, known, strict=True):
            found[index] = self._following.begin(keys[index], tables[index], starts[index], state, part)
        return cast("list[RunningSum]", found)

    def _single(self, row: Row, run: RunningSum) -> int:
        """Compute and write one token of one row; gives E after it."""
        return self._write_one(run, int.from_bytes(row.tokens, "little"), row.start)

    def _write_one(self, run: RunningSum, token: int, start: int) -> int:
        """Compute and write one token of the sequence that `run` follows; gives E after it."""
        words = self._words
        content, after = self._content.single(run.state, token, start)
        slot, offset = run.tail, start % self._model.block_tokens
        words[slot, offset], words[slot, offset + self._model.block_tokens] = content, self._content.value(content)
        run.state, run.end = after, start + 1
        return after

    def _singles(self, rows: list[Row], runs: list[RunningSum]) -> Words:
        """Compute and write one token of each of many rows at once; gives E after each."""
        if not rows:
            return _NONE
        tokens = np.frombuffer(b"".join([row.tokens for row in rows]), dtype="<u4").astype(np.uint64)
        return self._write(runs, tokens, [row.start for row in rows])

    def _write(self, runs: list[RunningSum], tokens: Words, starts: list[int]) -> Words:
        """Compute and write one token of every run; gives E after each."""
        size = self._model.block_tokens
        before = np.array([run.state for run in runs], dtype=np.uint64)
        positions = np.array(starts)
        content, after = self._content.singles(before, tokens, positions)
        # As one flat array: an index for each word costs half of what a pair of them does.
        places = np.array([run.tail for run in runs]) * (2 * size) + positions % size
        words = self._words.reshape(-1)
        words[places] = content
        words[places + size] = self._content.values(content)
        for run, state, start in zip(runs, after.tolist(), starts, strict=True):
            run.state, run.end = state, start + 1
        return after

    def _others(self, rows: list[Row]) -> list[int]:
        """E after each row of several tokens, of the first token, or of nothing that is written."""
        ends = [row.start if row.write else row.start + row.count for row in rows]
        some = [index for index, end in enumerate(ends) if end > 0]
        before = [0] * len(rows)
        if len(some) <= _FEW:
            for index in some:
                before[index], _ = self._sums.attended_one(rows[index].table, ends[index])
        else:
            found, _ = self._sums.attended([rows[index].table for index in some], [ends[index] for index in some])
            for index, state in zip(some, found.tolist(), strict=True):
                before[index] = state
        return [self._chunk(row, state) if row.write else state for row, state in zip(rows, before, strict=True)]

    def _chunk(self, row: Row, before: int) -> int:
        """Compute and write several tokens of one row, given E before them; gives E after them."""
        table = np.frombuffer(row.table, dtype="<u4")
        tokens = np.frombuffer(row.tokens, dtype="<u4").astype(np.uint64)
        start, end, size = row.start, row.start + len(tokens), self._model.block_tokens
        content, states = self._content.chunk(before, tokens, start)
        blocks, offsets = np.divmod(np.arange(start, end), size)
        slots = table[blocks]
        self._words[slots, offsets] = content
        self._words[slots, offsets + size] = self._content.values(content)
        edges = np.append(np.arange(-(-start // size) * size, end, size), end)
        touched = table[start // size : -(-end // size)].tolist()
        self._following.written(touched)
        if start % size:
            self._sums.forget(touched[0])
        if len(edges) > 1:
            self._sums.know(table[edges[:-1] // size].astype(np.int64), np.diff(states[edges - start]), edges[1:])
        return int(states[-1])

    def _complete(self, refs: tuple[BlockRef, ...]) -> tuple[bytes, ...]:
        """Zero what tails do not use; gives the content words of all."""
        if not refs:
            return ()
        size = self._model.block_tokens
        for ref in refs:
            if ref.tokens < size:
                self._words[ref.slot, ref.tokens : size] = 0
                self._words[ref.slot, size + ref.tokens :] = 0
        return tuple(self._digester.content_words_of(self._words[[ref.slot for ref in refs]]))


def _key(row: Row) -> int:
    """The key under which the running sum of the row's sequence is kept; -1 for a row without draws."""
    draws = row.draws
    return draws[0].work_id << _BRANCHES | draws[0].sequence if draws else -1


def _load(step: Step) -> StepLoad:
    decoding, tokens, context, decode_context = 0, 0, 0.0, 0
    if step.columns is not None:
        decoding, decode_context = len(step.columns.starts), sum(step.columns.starts)
    for row in step.rows:
        count = len(row.tokens) >> 2
        if count == 1:
            decoding += 1
            decode_context += row.start
        else:
            tokens += count
            context += count * (row.start + count / 2)
    return StepLoad(decoding, tokens, context, decode_context=decode_context)
