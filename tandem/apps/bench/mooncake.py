"""Traces in Mooncake's format: a JSON object per line with `timestamp` (ms), lengths and `hash_ids`.

A hash id names 512 tokens together with everything before them, so equal ids at the head of two prompts are a
shared prefix.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from tandem.apps.bench.source import bad_line, lines
from tandem.apps.bench.workload import UNSCALED, Item, Scale, Workload, cut
from tandem.core.errors import TandemError

BLOCK_TOKENS: Final = 512
_QUANTUM_MIN_MS: Final = 10
_LIMIT: Final = 10_000_000


class Line(msgspec.Struct):
    """One request as the trace has it. Other fields are ignored."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: Path, scale: Scale = UNSCALED, block_tokens: int = BLOCK_TOKENS) -> Workload:
    """All requests of a trace (`.jsonl` or `.jsonl.zst`), lengths by `scale`. Raises `bad_setting`."""
    decoder = msgspec.json.Decoder(Line)
    read = []
    for number, text in enumerate(lines(path), start=1):
        if text.strip():
            read.append(_checked(decoder, text, path, number, block_tokens))
    if not read:
        raise TandemError("bad_setting", f"{path} has no requests")
    read.sort(key=lambda line: line.timestamp)
    begin = read[0].timestamp
    items = tuple(_item(line, begin, block_tokens, scale) for line in read)
    return Workload(path.name, items, quantum_s([line.timestamp - begin for line in read]))


def _checked(decoder: "msgspec.json.Decoder[Line]", text: str, path: Path, number: int, block_tokens: int) -> Line:
    try:
        line = decoder.decode(text)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise bad_line(path, number, str(error)) from error
    if not (0 < line.input_length < _LIMIT and 0 <= line.output_length < _LIMIT and line.timestamp >= 0):
        raise bad_line(path, number, "timestamp and lengths must be positive")
    if len(line.hash_ids) != math.ceil(line.input_length / block_tokens):
        wanted = math.ceil(line.input_length / block_tokens)
        what = f"{line.input_length} tokens make {wanted} blocks of {block_tokens}, hash_ids has {len(line.hash_ids)}"
        raise bad_line(path, number, what)
    return line


def _item(line: Line, begin_ms: float, block_tokens: int, scale: Scale) -> Item:
    pieces = cut(line.hash_ids, line.input_length, block_tokens, scale.input)
    return Item((line.timestamp - begin_ms) / 1000, pieces, scale.answer(line.output_length))


def quantum_s(offsets_ms: Sequence[float]) -> float:
    """The grid that times were rounded to, in seconds, or 0 when there is none of at least 10 ms.

    A grid shows as a common divisor, or, when the grid itself trembles by a millisecond, as few distinct times:
    then it is the usual distance between neighbours.
    """
    distinct = sorted({round(offset) for offset in offsets_ms})
    common = math.gcd(*distinct)
    if common < _QUANTUM_MIN_MS and 1 < len(distinct) <= len(offsets_ms) / 2:
        common = int(median(after - before for before, after in pairwise(distinct)))
    return common / 1000 if common >= _QUANTUM_MIN_MS else 0.0
