"""Conversion of a `Step` to tensors: tokens in computing order, positions at which KV is written, and what each row
attends to.

The tensors are built with a few array operations per step, not per row: row by row, building them would take a tenth
of a step at batch 16.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from tandem.engine.scheduler.plan import Row
from tandem.engine.torch.grouping import group_by_blocks

Int64 = np.dtype[np.int64]
TILE: Final = 256
"""Queries of a chunk that attend in one call when they need a mask."""


@dataclass(frozen=True)
class Shape:
    """The properties of the pool and the model that the batch builder needs. `windows` are the distinct ones in
    use."""

    layers: int
    block_tokens: int
    windows: tuple[int | None, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class View:
    """The part of the pool that a span of queries sees under one window.

    `rows[2 * layer + {0: K, 1: V}]` are rows of the pool [sequences * blocks]. `mask` is added to the scores: for
    single tokens [sequences, 1, 1, keys], for a chunk a staircase [tile, keys]; None means causal from position 0.
    """

    rows: tuple[torch.Tensor, ...]
    mask: torch.Tensor | None


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of the batch attended in one call: `sequences` of `queries` tokens each."""

    first: int
    sequences: int
    queries: int
    views: dict[int | None, View]


@dataclass(frozen=True)
class ForwardBatch:
    """One step's input. `order[i]` is the step's row whose tokens come i-th; `last[i]` its last token's index."""

    tokens: torch.Tensor
    positions: torch.Tensor
    longest: int
    writers: torch.Tensor | None
    """Indices of the tokens whose KV is written; None when all are."""
    cells: tuple[torch.Tensor, ...]
    """`cells[2 * layer + {0: K, 1: V}]`: where the writers' K and V go."""
    spans: tuple[Span, ...]
    order: tuple[int, ...]
    last: tuple[int, ...]


def build_batch(rows: Sequence[Row], shape: Shape) -> ForwardBatch:
    """Arrange the rows of a step (at least one). Single-token rows come first, grouped by length."""
    singles = [index for index, row in enumerate(rows) if row.count == 1]
    counts = [rows[index].start // shape.block_tokens + 1 for index in singles]
    groups = [[singles[at] for at in group] for group in group_by_blocks(counts)]
    chunks = [[index] for index, row in enumerate(rows) if row.count > 1]
    order = tuple(index for group in groups + chunks for index in group)
    spans = []
    first = 0
    for group in groups + chunks:
        spans.append(_span([rows[index] for index in group], first, shape))
        first += sum(rows[index].count for index in group)
    return _batch([rows[index] for index in order], order, tuple(spans), shape)


def _batch(rows: Sequence[Row], order: tuple[int, ...], spans: tuple[Span, ...], shape: Shape) -> ForwardBatch:
    lengths = np.fromiter((row.count for row in rows), np.int64, len(rows))
    starts = np.fromiter((row.start for row in rows), np.int64, len(rows))
    ends = np.cumsum(lengths)
    positions = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    tokens = np.frombuffer(b"".join(row.tokens for row in rows), np.uint32).astype(np.int64)
    writers = None
    if not all(row.write for row in rows):
        written = np.repeat(np.fromiter((row.write for row in rows), np.bool_, len(rows)), lengths)
        writers = torch.from_numpy(np.flatnonzero(written)).to(shape.device)
    return ForwardBatch(
        tokens=torch.from_numpy(tokens).to(shape.device),
        positions=torch.from_numpy(positions).to(shape.device),
        longest=int((starts + lengths).max()) - 1,
        writers=writers,
        cells=_cells(rows, shape),
        spans=spans,
        order=order,
        last=tuple((ends - 1).tolist()),
    )


def _cells(rows: Sequence[Row], shape: Shape) -> tuple[torch.Tensor, ...]:
    size = shape.block_tokens
    places = []
    for row in rows:
        if row.write:
            positions = np.arange(row.start, row.start + row.count)
            slots = np.frombuffer(row.table, np.uint32).astype(np.int64)[positions // size]
            places.append(slots * (2 * shape.layers * size) + positions % size)
    flat = np.concatenate(places) if places else np.empty(0, np.int64)
    return _per_layer(flat, size, shape)


def _per_layer(base: "np.ndarray[tuple[int], Int64]", step: int, shape: Shape) -> tuple[torch.Tensor, ...]:
    """`base + step * half` for each half-block (K or V of a layer), as tensors on the device."""
    halves = np.arange(2 * shape.layers, dtype=np.int64) * step
    return torch.from_numpy(base[None, :] + halves[:, None]).to(shape.device).unbind(0)


def _span(rows: Sequence[Row], first: int, shape: Shape) -> Span:
    view = _single_view if rows[0].count == 1 else _chunk_view
    return Span(first, len(rows), rows[0].count, {window: view(rows, window, shape) for window in shape.windows})


def _single_view(rows: Sequence[Row], window: int | None, shape: Shape) -> View:
    size = shape.block_tokens
    starts = np.fromiter((row.start for row in rows), np.int64, len(rows))
    skipped = _skipped(starts, window, size)
    blocks = starts // size + 1 - skipped
    width = int(blocks.max())
    tables = b"".join(
        row.table[4 * skip : 4 * (skip + count)].ljust(4 * width, b"\0")
        for row, skip, count in zip(rows, skipped.tolist(), blocks.tolist(), strict=True)
    )
    slots = np.frombuffer(tables, np.uint32).astype(np.int64)
    last = starts - skipped * size
    keys = np.arange(width * size)
    seen = keys[None, :] <= last[:, None]
    if window is not None:
        seen &= keys[None, :] > (last - window)[:, None]
    mask = _mask(seen, shape)[:, None, None, :]
    return View(_per_layer(slots * (2 * shape.layers), 1, shape), mask)


def _skipped(
    starts: "np.ndarray[tuple[int], Int64]", window: int | None, size: int
) -> "np.ndarray[tuple[int], Int64]":
    """The number of leading blocks that lie before the window of a query at each start."""
    if window is None:
        return np.zeros_like(starts)
    skipped: np.ndarray[tuple[int], Int64] = np.maximum(starts - window + 1, 0) // size
    return skipped


def _chunk_view(rows: Sequence[Row], window: int | None, shape: Shape) -> View:
    (row,) = rows
    size = shape.block_tokens
    end = row.start + row.count
    skip = 0 if window is None else max(row.start - window + 1, 0) // size
    used = -(-end // size)
    slots = np.frombuffer(row.table, np.uint32)[skip:used].astype(np.int64)
    pool_rows = _per_layer(slots * (2 * shape.layers), 1, shape)
    if row.start == 0 and (window is None or window >= end):
        return View(pool_rows, None)
    return View(pool_rows, _staircase(row.start - skip * size, row.count, window, shape))


def _staircase(lead: int, count: int, window: int | None, shape: Shape) -> torch.Tensor:
    """One mask [tile, keys] that serves every tile of a chunk's queries, shifted along the keys.

    Query i of the last tile sees key c when c <= lead + last + i (and no further back than the window), `lead`
    being the keys before the chunk and `last` the last tile's first query. An earlier tile's mask is the same
    with fewer keys in front, so memory grows with the context and not with context times chunk.
    """
    tile = min(count, TILE)
    last = (count - 1) // tile * tile
    own = lead + last + np.arange(tile)[:, None]
    keys = np.arange(lead + last + tile)[None, :]
    seen = keys <= own
    if window is not None:
        seen &= keys > own - window
    return _mask(seen, shape)


def _mask(seen: "np.ndarray[tuple[int, int], np.dtype[np.bool_]]", shape: Shape) -> torch.Tensor:
    mask = torch.zeros(seen.shape, dtype=shape.dtype)
    return mask.masked_fill_(torch.from_numpy(~seen), float("-inf")).to(shape.device)
