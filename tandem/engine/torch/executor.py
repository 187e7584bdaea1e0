"""One process's model and KV pool: runs a `Step` synchronously, in the order the contract gives."""

import time

import torch

from tandem.core.errors import TandemError
from tandem.engine.digest import Digester
from tandem.engine.protocol import BlockMemory
from tandem.engine.scheduler.plan import Draw, Drawn, Step, StepResult
from tandem.engine.torch.batch import ForwardBatch, Shape, build_batch
from tandem.engine.torch.model import Model
from tandem.engine.torch.pool import KvPool, host_tensor
from tandem.engine.torch.sampling import sample
from tandem.engine.torch.side_copies import SideCopies
from tandem.engine.torch.spec import STORED, ComputeSpec
from tandem.engine.torch.weights import DTYPES, load_weights


class ModelExecutor:
    """Loads on construction. Not thread-safe; one step at a time."""

    def __init__(self, spec: ComputeSpec, memory: BlockMemory, copies: SideCopies | None = None) -> None:
        """`copies` move blocks between device and host, by default as the device does it best. Raises `bad_model`,
        and `bad_setting` when the device is unusable."""
        torch.set_num_threads(spec.threads)
        config, layout = spec.directory.config, spec.layout
        device = _device(spec.device)
        dtype = DTYPES[layout.dtype]
        with torch.inference_mode():
            weights = load_weights(config, spec.directory.checkpoint(STORED), dtype, device)
            host = host_tensor(memory, layout, spec.blocks)
            self._pool = KvPool(host, device, mirrored=spec.mirrored, copies=copies)
            self._model = Model(config, weights, self._pool)
        windows = tuple(dict.fromkeys(config.windows))
        self._memory, self._digester = memory, Digester(layout)
        self._shape = Shape(config.layers, layout.block_tokens, windows, dtype, device)

    def execute(self, step: Step) -> StepResult:
        """Run one step. Raises `engine_failed`."""
        started = time.perf_counter()
        try:
            with torch.inference_mode():
                drawn, digests = self._execute(step)
        except RuntimeError as error:
            # torch reports everything a device or an allocator can do as RuntimeError.
            raise TandemError("engine_failed", f"step {step.number} failed: {_first_line(error)}") from error
        return StepResult(step.number, drawn, digests, time.perf_counter() - started)

    def logits(self, step: Step) -> torch.Tensor:
        """Logits [rows, vocabulary] of the last token of each row, for comparing numbers and not tokens."""
        with torch.inference_mode():
            batch, hidden = self._forward(step)
            at = dict(zip(batch.order, batch.last, strict=True))
            return self._model.logits(hidden[[at[row] for row in range(len(step.rows))]])

    def _execute(self, step: Step) -> tuple[tuple[Drawn, ...], tuple[bytes, ...]]:
        self._pool.load(step.landed)
        for source, target in step.copies:
            self._pool.copy(source, target)
        drawn: tuple[Drawn, ...] = ()
        if step.rows:
            batch, hidden = self._forward(step)
            drawn = self._draw(step, batch, hidden)
        for block in step.complete:
            if block.tokens < self._pool.block_tokens:
                self._pool.zero_rest(block.slot, block.tokens)
        slots = tuple(block.slot for block in step.complete)
        self._pool.store(slots)
        # Whoever gets the result may overwrite the slots that landed, and read those that are complete.
        self._pool.settle()
        return drawn, tuple(self._digester.content_words(self._memory.block(slot)) for slot in slots)

    def _forward(self, step: Step) -> tuple[ForwardBatch, torch.Tensor]:
        batch = build_batch(step.rows, self._shape)
        return batch, self._model.forward(batch)

    def _draw(self, step: Step, batch: ForwardBatch, hidden: torch.Tensor) -> tuple[Drawn, ...]:
        """Sample what the rows ask for; the head runs only on the last tokens of those rows."""
        at = dict(zip(batch.order, batch.last, strict=True))
        draws: list[Draw] = []
        tokens: list[int] = []
        for index, row in enumerate(step.rows):
            draws.extend(row.draws)
            tokens.extend([at[index]] * len(row.draws))
        if not draws:
            return ()
        if len(tokens) != hidden.shape[0] or tokens != list(range(len(tokens))):
            hidden = hidden.index_select(0, torch.tensor(tokens, device=hidden.device))
        return sample(self._model.logits(hidden), draws)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise TandemError("bad_setting", f"device = {name!r}: {_first_line(error)}", param="device") from error
    return device


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
