"""The computing half: reads the slots a plan names, writes the slots it fills, and takes the formula's time."""

import asyncio

import numpy as np
from numpy.typing import NDArray

from tandem.engine.digest import Digester
from tandem.engine.plan import BlockRef, Draw, Row, Step, StepResult
from tandem.engine.private_memory import PrivateMemory
from tandem.engine.protocol import BlockMemory, EngineInfo
from tandem.engine.simulated.content import Content, Words
from tandem.engine.simulated.drawing import Drawing
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.step_budget import StepLoad


class SimulatedRunner:
    """See `tandem.engine.plan.Runner`. `compute` is the synchronous core; `execute` adds the time."""

    def __init__(self, model: SimulatedModel, memory: BlockMemory | None = None) -> None:
        self._model = model
        layout = model.layout
        self._memory = memory if memory is not None else PrivateMemory(layout.block_bytes, model.blocks)
        assert self._memory.block_bytes == layout.block_bytes
        assert self._memory.blocks >= model.blocks
        self._words: Words = np.frombuffer(self._memory.buffer, dtype="<u8").reshape(-1, 2 * model.block_tokens)
        self._content = Content(model)
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
        for source, target in step.copies:
            self._words[target] = self._words[source]
        states: list[int] = []
        tokens: list[int] = []
        draws: list[Draw] = []
        singles = [row for row in step.rows if len(row.tokens) == 4 and row.write]
        for row, state in zip(singles, self._singles(singles), strict=True):
            _want(row, state, states, tokens, draws)
        for row in step.rows:
            if len(row.tokens) != 4 or not row.write:
                _want(row, self._chunk(row), states, tokens, draws)
        drawn = self._drawing.draw(states, tokens, draws) if draws else []
        return StepResult(step.number, tuple(drawn), self._complete(step.complete), seconds)

    def _attended(self, table: NDArray[np.uint32], positions: int) -> int:
        """E over the first positions of a block table, from the bytes in the slots."""
        if positions == 0:
            return 0
        blocks = -(-positions // self._model.block_tokens)
        return self._content.attended(self._words.take(table[:blocks], axis=0), positions)

    def _singles(self, rows: list[Row]) -> list[int]:
        """Compute and write one token of each row; gives E after it."""
        if not rows:
            return []
        size = self._model.block_tokens
        tables = [np.frombuffer(row.table, dtype="<u4") for row in rows]
        starts = [row.start for row in rows]
        before = [self._attended(table, start) for table, start in zip(tables, starts, strict=True)]
        slots = [int(table[start // size]) for table, start in zip(tables, starts, strict=True)]
        positions = np.array(starts)
        tokens = np.frombuffer(b"".join(row.tokens for row in rows), dtype="<u4").astype(np.uint64)
        content, after = self._content.singles(np.array(before, dtype=np.uint64), tokens, positions)
        offsets = positions % size
        self._words[slots, offsets] = content
        self._words[slots, offsets + size] = self._content.values(content)
        return after.tolist()  # type: ignore[no-any-return]

    def _chunk(self, row: Row) -> int:
        """Compute and write several tokens of one row; gives E after them. Without writing: E as it stands."""
        table = np.frombuffer(row.table, dtype="<u4")
        tokens = np.frombuffer(row.tokens, dtype="<u4").astype(np.uint64)
        end = row.start + len(tokens)
        if not row.write:
            return self._attended(table, end)
        content, after = self._content.chunk(self._attended(table, row.start), tokens, row.start)
        size = self._model.block_tokens
        positions = np.arange(row.start, end)
        slots, offsets = table[positions // size], positions % size
        self._words[slots, offsets] = content
        self._words[slots, offsets + size] = self._content.values(content)
        return after

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


def _want(row: Row, state: int, states: list[int], tokens: list[int], draws: list[Draw]) -> None:
    if row.draws:
        token = int.from_bytes(row.tokens[-4:], "little")
        for draw in row.draws:
            states.append(state)
            tokens.append(token)
            draws.append(draw)


def _load(step: Step) -> StepLoad:
    decoding, tokens, context = 0, 0, 0.0
    for row in step.rows:
        count = row.count
        if count == 1:
            decoding += 1
        else:
            tokens += count
            context += count * (row.start + count / 2)
    return StepLoad(decoding, tokens, context)
