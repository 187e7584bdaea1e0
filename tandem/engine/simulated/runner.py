"""The computing half: reads the slots a plan names, writes the slots it fills, and takes the formula's time."""

import asyncio
from typing import Final

import numpy as np

from tandem.engine.digest import Digester
from tandem.engine.plan import BlockRef, Drawn, Row, Step, StepResult
from tandem.engine.protocol import BlockMemory, EngineInfo
from tandem.engine.simulated.content import Content, Words
from tandem.engine.simulated.drawing import Drawing
from tandem.engine.simulated.memory import WatchedMemory
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.sums import SlotSums
from tandem.engine.step_budget import StepLoad

_NONE: Final[Words] = np.zeros(0, dtype=np.uint64)


def _slot(table: bytes, at: int) -> int:
    return int.from_bytes(table[at : at + 4], "little")


class SimulatedRunner:
    """See `tandem.engine.plan.Runner`. `compute` is the synchronous core; `execute` adds the time."""

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
        self._sums = SlotSums(self._words, self._content, watched)
        self._drawing = Drawing(model)
        self._digester = Digester(layout)

    @property
    def memory(self) -> BlockMemory:
        return self._memory

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
        """What a step does to the slots, and what it draws."""
        sums = self._sums
        sums.begin()
        for source, target in step.copies:
            self._words[target] = self._words[source]
            sums.copied(source, target)
        singles = [row for row in step.rows if len(row.tokens) == 4 and row.write and row.start > 0]
        rows, states = singles, self._singles(singles) if singles else _NONE
        if len(singles) < len(step.rows):
            others = [row for row in step.rows if len(row.tokens) != 4 or not row.write or row.start == 0]
            rows = singles + others
            states = np.concatenate((states, np.array(self._others(others), dtype=np.uint64)))
        drawn = self._draw(rows, states)
        return StepResult(step.number, drawn, self._complete(step.complete), seconds)

    def _draw(self, rows: list[Row], states: Words) -> tuple[Drawn, ...]:
        """Draw what the rows ask for; `states` has E after each."""
        counts = [len(row.draws) for row in rows]
        tokens = np.frombuffer(b"".join([row.tokens[-4:] for row in rows]), dtype="<u4").astype(np.uint64)
        if counts.count(1) == len(counts):
            draws = [row.draws[0] for row in rows]
        else:
            draws = [draw for row in rows for draw in row.draws]
            states, tokens = np.repeat(states, counts), np.repeat(tokens, counts)
        return tuple(self._drawing.draw(states, tokens, draws)) if draws else ()

    def _singles(self, rows: list[Row]) -> Words:
        """Compute and write one token of each row; gives E after it."""
        size, tables = self._model.block_tokens, [row.table for row in rows]
        starts = [row.start for row in rows]
        before, parts = self._sums.attended(tables, starts)
        positions = np.array(starts)
        tokens = np.frombuffer(b"".join([row.tokens for row in rows]), dtype="<u4").astype(np.uint64)
        content, after = self._content.singles(before, tokens, positions)
        offsets = positions % size
        slots = np.array([_slot(table, start // size * 4) for table, start in zip(tables, starts, strict=True)])
        self._words[slots, offsets] = content
        self._words[slots, offsets + size] = self._content.values(content)
        known = np.where(offsets == 0, np.uint64(0), parts) + (after - before)
        self._sums.know(slots, known, positions + 1)
        return after

    def _others(self, rows: list[Row]) -> list[int]:
        """E after each row of several tokens, of the first token, or of nothing that is written."""
        ends = [row.start if row.write else row.start + row.count for row in rows]
        some = [index for index, end in enumerate(ends) if end > 0]
        before = [0] * len(rows)
        if some:
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
        if start % size:
            self._sums.forget(int(slots[0]))
        edges = np.append(np.arange(-(-start // size) * size, end, size), end)
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


def _load(step: Step) -> StepLoad:
    decoding, tokens, context, decode_context = 0, 0, 0.0, 0
    for row in step.rows:
        count = len(row.tokens) >> 2
        if count == 1:
            decoding += 1
            decode_context += row.start
        else:
            tokens += count
            context += count * (row.start + count / 2)
    return StepLoad(decoding, tokens, context, decode_context=decode_context)
