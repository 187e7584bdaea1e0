"""Tiny random models on disk, and a hand-made scheduler that drives a `ModelExecutor` with steps."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from tandem.core.kv import pack_tokens, unpack_tokens
from tandem.core.request import Sampling
from tandem.engine.scheduler.plan import BlockRef, Draw, Row, Step, StepResult
from tandem.engine.torch.executor import ModelExecutor
from tandem.engine.torch.prepare import Prepared, prepare
from tandem.engine.torch.settings import TorchSettings

GREEDY = Sampling(temperature=0.0)
SMALL: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "eos_token_id": 159,
    "bos_token_id": 0,
    "pad_token_id": 1,
}


def save_model(path: Path, family: str, seed: int = 0, **changes: Any) -> Any:
    """Make a random model of `family` (`Llama`, `Qwen3Moe`, …), save it, and return it for reference."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                tensor.add_(torch.randn_like(tensor) * 0.2)
    model.save_pretrained(path)
    return model


def prepared(path: Path, **changes: Any) -> Prepared:
    settings: dict[str, Any] = {"model": str(path), "blocks": 96, "block_tokens": 8, "threads": 1}
    return prepare(TorchSettings(**{**settings, **changes}))


class Driver:
    """Sequences over a `ModelExecutor`, with block tables drawn from a shuffled pool."""

    def __init__(self, path: Path, *, seed: int = 1, **changes: Any) -> None:
        self.prepared = prepared(path, **changes)
        self.computer = ModelExecutor(self.prepared.spec, self.prepared.memory)
        self.block_tokens = self.prepared.spec.layout.block_tokens
        order = torch.randperm(self.prepared.spec.blocks, generator=torch.Generator().manual_seed(seed))
        self.free: list[int] = [int(slot) for slot in order]
        self.numbers = itertools.count()

    def table(self, tokens: int) -> bytes:
        """A block table for so many positions."""
        count = -(-tokens // self.block_tokens)
        taken, self.free = self.free[:count], self.free[count:]
        assert len(taken) == count
        return pack_tokens(taken)

    def step(self, *rows: Row, **fields: Any) -> StepResult:
        return self.computer.execute(Step(next(self.numbers), rows, **fields))

    def logits(self, *rows: Row) -> torch.Tensor:
        return self.computer.logits(Step(next(self.numbers), rows))

    def prefill(self, tokens: Sequence[int], table: bytes, chunks: Sequence[int]) -> torch.Tensor:
        """Logits after the last token, the prompt being cut into `chunks`."""
        assert sum(chunks) == len(tokens)
        start = 0
        for count in chunks:
            logits = self.logits(Row(pack_tokens(tokens[start : start + count]), start, table))
            start += count
        return logits[0]

    def greedy(self, prompt: Sequence[int], count: int, chunks: Sequence[int] | None = None) -> list[int]:
        """Output tokens of one sequence."""
        table = self.table(len(prompt) + count)
        chunks = chunks or (len(prompt),)
        start = 0
        for size in chunks[:-1]:
            self.step(Row(pack_tokens(prompt[start : start + size]), start, table))
            start += size
        output: list[int] = []
        following = list(prompt[start:])
        while len(output) < count:
            (drawn,) = self.step(draw_row(following, start, table, position=len(output) + 1)).drawn
            start += len(following)
            following = [drawn.token]
            output.append(drawn.token)
        return output

    def block(self, slot: int) -> bytes:
        return bytes(self.prepared.memory.block(slot))


def draw_row(tokens: Sequence[int], start: int, table: bytes, position: int = 1, **fields: Any) -> Row:
    """A row with one greedy draw."""
    return Row(pack_tokens(tokens), start, table, draws=(Draw(1, 0, 7, position, GREEDY),), **fields)


def prompt(length: int, seed: int = 3, vocabulary: int = 150) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(2, vocabulary, (length,), generator=generator)]


def complete(table: bytes, tokens: int, block_tokens: int) -> tuple[BlockRef, ...]:
    """References to all blocks of a table that holds so many tokens."""
    slots = unpack_tokens(table)
    return tuple(
        BlockRef(slot, min(block_tokens, tokens - index * block_tokens))
        for index, slot in enumerate(slots)
        if index * block_tokens < tokens
    )


def reference_greedy(model: Any, tokens: Sequence[int], count: int) -> list[int]:
    """What the reference implementation generates, never stopping early."""
    out = model.generate(
        torch.tensor([list(tokens)]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=1
    )
    return [int(token) for token in out[0, len(tokens) :]]


def reference_logits(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """[tokens, vocabulary] of one forward pass."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([list(tokens)])).logits[0].float()
    return logits
