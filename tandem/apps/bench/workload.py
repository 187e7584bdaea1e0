"""The requests of a benchmark: when each comes, how long its prompt is and of which pieces, and how many tokens to
generate."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True)
class Piece:
    """A stretch of a prompt. Equal contents give equal tokens, so prompts share prefixes where pieces are equal."""

    content: int
    tokens: int


@dataclass(frozen=True)
class Item:
    """One request: seconds after the start of the replay, the prompt's pieces in order, the tokens to generate."""

    arrival_s: float
    pieces: tuple[Piece, ...]
    output_tokens: int

    @property
    def input_tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)


@dataclass(frozen=True)
class Workload:
    """Items in order of arrival. `quantum_s` is the grid their times were rounded to, 0 when there is none.

    `timed` is False when the source had lengths only and every arrival is 0.
    """

    name: str
    items: tuple[Item, ...]
    quantum_s: float = 0.0
    timed: bool = True


@dataclass(frozen=True)
class Scale:
    """Factors for the lengths of a source: `input` for prompts, `output` for answers. At least one token is left."""

    input: float = 1.0
    output: float = 1.0

    def answer(self, output_tokens: int) -> int:
        """The tokens to generate for an answer that the source has with `output_tokens`."""
        return max(1, round(output_tokens * self.output))


UNSCALED: Final = Scale()


def cut(contents: Sequence[int], input_tokens: int, block_tokens: int, scale: float) -> tuple[Piece, ...]:
    """The pieces of a prompt of `input_tokens` in blocks of `block_tokens`, with every length times `scale`.

    Block edges are scaled, not block lengths: the block at one index has one length in every prompt, so prompts
    that shared a prefix still share it, and rounding does not add up. At least one token is left.
    """
    pieces = []
    total = max(1, round(input_tokens * scale))
    for index, content in enumerate(contents):
        start = round(index * block_tokens * scale)
        end = min(total, round((index + 1) * block_tokens * scale))
        if end > start:
            pieces.append(Piece(content, end - start))
    return tuple(pieces) or (Piece(contents[0], 1),)


def take(workload: Workload, requests: int | None, context_tokens: int | None) -> Workload:
    """The first `requests` items whose prompt and answer fit into `context_tokens`."""
    fitting = [item for item in workload.items if fits(item, context_tokens)]
    return replace(workload, items=tuple(fitting[:requests]))


def fits(item: Item, context_tokens: int | None) -> bool:
    return context_tokens is None or item.input_tokens + item.output_tokens <= context_tokens
