"""Reading workload files: plain or zstd, line by line, with errors that name file and line."""

import io
from collections.abc import Iterator
from pathlib import Path

import zstandard

from tandem.core.errors import TandemError


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, decompressed when its name ends in `.zst`. Raises `bad_setting`."""
    try:
        with path.open("rb") as raw:
            reader = zstandard.ZstdDecompressor().stream_reader(raw) if path.suffix == ".zst" else raw
            yield from io.TextIOWrapper(reader, encoding="utf-8")
    except (OSError, UnicodeDecodeError, zstandard.ZstdError) as error:
        raise TandemError("bad_setting", f"{path} cannot be read: {error}") from error


def bad_line(path: Path, number: int, what: str) -> TandemError:
    return TandemError("bad_setting", f"{path}, line {number}: {what}")
