"""CSV files of prompt and answer lengths, with arrival times when they have them."""

import csv
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from tandem.apps.bench.source import bad_line, lines
from tandem.apps.bench.workload import UNSCALED, Item, Piece, Scale, Workload
from tandem.core.errors import TandemError

INPUT_COLUMNS: Final = (
    "input_length",
    "input_tokens",
    "prompt_tokens",
    "num_prefill_tokens",
    "contexttokens",
    "input",
)
OUTPUT_COLUMNS: Final = (
    "output_length",
    "output_tokens",
    "completion_tokens",
    "num_decode_tokens",
    "generatedtokens",
    "output",
)
TIME_COLUMNS: Final = ("arrival_s", "timestamp", "time", "t_s")


def read_lengths(path: Path, scale: Scale = UNSCALED) -> Workload:
    """Requests without shared prefixes, one per row. Times are seconds or ISO dates. Raises `bad_setting`."""
    rows = csv.DictReader(lines(path))
    columns = {name.strip().lower(): name for name in rows.fieldnames or ()}
    input_column = _one_of(columns, INPUT_COLUMNS, path)
    output_column = _one_of(columns, OUTPUT_COLUMNS, path)
    time_column = next((columns[name] for name in TIME_COLUMNS if name in columns), None)
    read = []
    for number, row in enumerate(rows, start=2):
        try:
            at = _seconds(row[time_column]) if time_column else 0.0
            read.append((at, int(float(row[input_column])), int(float(row[output_column]))))
        except (ValueError, TypeError) as error:
            raise bad_line(path, number, str(error)) from error
    if not read:
        raise TandemError("bad_setting", f"{path} has no requests")
    read.sort(key=lambda entry: entry[0])
    begin = read[0][0]
    items = tuple(_item(index, at - begin, prompt, answer, scale) for index, (at, prompt, answer) in enumerate(read))
    return Workload(path.name, items, timed=time_column is not None)


def _item(index: int, arrival_s: float, input_tokens: int, output_tokens: int, scale: Scale) -> Item:
    prompt = Piece(index, max(1, round(input_tokens * scale.input)))
    return Item(arrival_s, (prompt,), scale.answer(output_tokens))


def _one_of(columns: Mapping[str, str], names: Sequence[str], path: Path) -> str:
    for name in names:
        if name in columns:
            return columns[name]
    raise TandemError(
        "bad_setting", f"{path} has none of the columns {', '.join(names)}; it has {', '.join(columns)}"
    )


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text).timestamp()
