"""A directory as an origin, and its digest."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from tandem.weights.listing import File, digest_of, wanted
from tandem.weights.origin import Stream

_CHUNK: Final = 1 << 20


class DirectoryOrigin:
    """`tandem.weights.origin.Origin` of files that are on a disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def files(self) -> tuple[File, ...]:
        found = (path for path in self._directory.iterdir() if path.is_file())
        return tuple(File(path.name, path.stat().st_size) for path in sorted(found))

    @contextmanager
    def open(self, name: str, offset: int, tag: str) -> Iterator[Stream]:
        with (self._directory / name).open("rb") as source:
            source.seek(offset)
            yield Stream(offset, "", iter(lambda: source.read(_CHUNK), b""))

    def close(self) -> None:
        return None


def digest_on_disk(directory: Path, files: Sequence[File] = ()) -> str:
    """The value that `model.digest` must have for the model in a directory; reads every byte. Raises `bad_model` when
    there is no model."""
    files = files or wanted(DirectoryOrigin(directory).files(), str(directory))
    return digest_of(msgspec.structs.replace(each, sha256=_sha256(directory / each.name)) for each in files)


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
