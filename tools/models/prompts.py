"""What is asked of a model: prompts around edges of blocks and chunks, and which blocks are damaged. Pure."""

import random
from dataclasses import dataclass
from typing import Final

CONTEXT_TOKENS: Final = 1024
CHUNK_TOKENS: Final = 64
BLOCK_TOKENS: Final = 32
"""What is asked for; latents and recurrent state take blocks of other sizes."""
ANSWER_TOKENS: Final = 16
_FIRST: Final = 3
_END: Final = 1500
_TWINS: Final = 4


@dataclass(frozen=True)
class Twin:
    """A prompt that is answered once as it is and once with its block number `block` damaged."""

    prompt: tuple[int, ...]
    block: int


def prompt(length: int, seed: int) -> tuple[int, ...]:
    """Token ids that mean nothing, the same everywhere."""
    drawn = random.Random(1000 * seed + length)
    return tuple(drawn.randrange(_FIRST, _END) for _ in range(length))


def edges(block: int) -> list[tuple[int, ...]]:
    """Prompts of their own, one token to several blocks and chunks long."""
    around = {edge + off for edge in (block, 2 * block, CHUNK_TOKENS, 2 * CHUNK_TOKENS) for off in (-1, 0, 1)}
    return [prompt(length, 1) for length in sorted({2, 3 * block + 7, *around})]


def further(block: int) -> list[tuple[int, ...]]:
    """Prompts that begin like earlier ones: at an edge of a block, beside it, all of one, and beyond a chunk."""
    long = prompt(3 * block + 7, 1)
    return [
        long[: 2 * block] + prompt(5, 2),
        long[: 2 * block - 1] + prompt(9, 3),
        long,
        long + prompt(CHUNK_TOKENS, 4),
    ]


def twins(block: int) -> list[Twin]:
    """Long enough that every damaged block is one of several, and complete."""
    return [Twin(prompt(3 * block + 7 + number, 10 + number), number % 3) for number in range(_TWINS)]


def swapped(twin: Twin, block: int) -> tuple[int, ...]:
    """The twin's prompt with its damaged block and the next one in each other's place: what one without any KV
    transfer is asked instead."""
    first, second = twin.block * block, (twin.block + 1) * block
    whole, end = twin.prompt, second + block
    if end > len(whole):
        first, second, end = 0, block, 2 * block
    return whole[:first] + whole[second:end] + whole[first:second] + whole[end:]
