"""A mix drawn from a few classes of requests, for when there is no trace at hand."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tandem.apps.bench.workload import Item, Piece, Workload
from tandem.core.errors import TandemError

_SHARED_CONTENT: Final = -1
_SPREAD: Final = 0.5


@dataclass(frozen=True)
class RequestClass:
    """Prompts of about `input_tokens` with answers of about `output_tokens`, drawn with a weight."""

    input_tokens: int
    output_tokens: int
    weight: float = 1.0


def parse_mix(text: str) -> tuple[RequestClass, ...]:
    """`IN:OUT[@WEIGHT],…`, for example `200:64@9,4000:32@1`. Raises `bad_setting`."""
    return tuple(_parse_class(part) for part in text.split(","))


def _parse_class(part: str) -> RequestClass:
    lengths, _, weight = part.strip().partition("@")
    input_tokens, separator, output_tokens = lengths.partition(":")
    try:
        parsed = RequestClass(int(input_tokens), int(output_tokens), float(weight or 1.0))
    except ValueError:
        parsed = None
    if parsed is None or not separator or min(parsed.input_tokens, parsed.output_tokens, parsed.weight) <= 0:
        raise TandemError(
            "bad_setting", f"--synthetic: {part!r} is not IN:OUT or IN:OUT@WEIGHT with positive numbers"
        )
    return parsed


def synthetic(mix: Sequence[RequestClass], requests: int, shared_prefix: int, seed: int) -> Workload:
    """`requests` items without times: lengths within ±50 % of their class, the first `shared_prefix` tokens equal."""
    draw = random.Random(seed)
    weights = [entry.weight for entry in mix]
    items = [_item(index, draw.choices(mix, weights)[0], shared_prefix, draw) for index in range(requests)]
    return Workload("synthetic", tuple(items), timed=False)


def _item(index: int, drawn: RequestClass, shared_prefix: int, draw: random.Random) -> Item:
    input_tokens = _around(drawn.input_tokens, draw)
    shared = min(shared_prefix, input_tokens - 1)
    own = Piece(index, input_tokens - shared)
    pieces = (Piece(_SHARED_CONTENT, shared), own) if shared else (own,)
    return Item(0.0, pieces, _around(drawn.output_tokens, draw))


def _around(mean: int, draw: random.Random) -> int:
    return max(1, round(mean * draw.uniform(1 - _SPREAD, 1 + _SPREAD)))
