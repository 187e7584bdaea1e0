"""The cache of weights on a node: every model is there once for all its users, and one process brings it while the
others wait.

    DIRECTORY/models/KEY/…           the files of one revision of one model, and `.tandem.json` once it is whole
    DIRECTORY/models/KEY.lock        held by the process that fetches it

A file that another model has already, by its checksum, is linked instead of fetched.
"""

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from tandem.core.errors import TandemError
from tandem.weights.fetching import AT_ONCE, Fetcher
from tandem.weights.listing import INDEX, SUMS, File, digest_of, missing_shards, parse_sums, texts, wanted
from tandem.weights.origin import Origin

DEFAULT_DIRECTORY: Final = Path.home() / ".cache" / "tandem" / "weights"
"""Default cache directory of processes that a user runs."""
_MARK: Final = ".tandem.json"
_LOOK_S: Final = 0.2


class _Mark(msgspec.Struct, frozen=True):
    """Says of a directory that it is whole."""

    source: str
    digest: str
    files: tuple[File, ...]


@dataclass
class Brought:
    """A model that is here. `fetched_bytes` came over the network for it now, `linked_bytes` were here under another
    name; `seconds` is what it took, waiting for others included."""

    directory: Path
    digest: str
    fetched_bytes: int
    linked_bytes: int
    seconds: float


@dataclass(frozen=True)
class Progress:
    """`total` is 0 until it is known; `waiting` while another process fetches."""

    done: int
    total: int
    waiting: bool = False


class WeightsCache:
    """The cache of one node, shared by processes."""

    def __init__(self, directory: Path, *, wait_s: float = 7200.0, at_once: int = AT_ONCE) -> None:
        """`wait_s` bounds waiting for another process that fetches the same."""
        self._models = directory / "models"
        self._wait_s = wait_s
        self._at_once = at_once

    def bring(
        self,
        source: str,
        open_origin: Callable[[], Origin],
        digest: str = "",
        tell: Callable[[Progress], None] = lambda progress: None,
        *,
        without_weights: bool = False,
    ) -> Brought:
        """Bring the model of `source` to this node. `digest` is the digest that it must have, or empty. A model that
        is pinned by its digest and is here already is found without opening its origin.

        `without_weights` brings its texts alone (`tandem.weights.listing.texts`). The digest of the whole model is
        then compared with the checksums that the origin lists; where it lists none for some file, the digest cannot
        be checked.

        Raises `bad_model` naming the file at fault, `link_lost` when its origin cannot be reached,
        `deadline_exceeded` when another process has not brought it within the bound, and `bad_setting` when this user
        may not write to the cache.
        """
        with writable(self._models):
            return self._bring(source, open_origin, digest, tell, without_weights=without_weights)

    def _bring(
        self,
        source: str,
        open_origin: Callable[[], Origin],
        digest: str,
        tell: Callable[[Progress], None],
        *,
        without_weights: bool,
    ) -> Brought:
        began = time.monotonic()
        self._models.mkdir(parents=True, exist_ok=True)
        if digest and (found := self._pinned(digest)) is not None:
            return Brought(found, digest, 0, 0, time.monotonic() - began)
        origin = open_origin()
        try:
            whole = self._listed(source, origin, shards=not without_weights)
            if without_weights and digest and all(each.sha256 for each in whole):
                _check(source, digest_of(whole), digest)
            files = texts(whole, source) if without_weights else whole
            key = sha256("\n".join((source, *(f"{each.name} {each.size} {each.sha256}" for each in files))).encode())
            directory = self._models / key.hexdigest()[:24]
            with self._alone(directory, tell):
                fetched, linked, mark = self._complete(source, directory, files, origin, tell)
        finally:
            origin.close()
        if digest and not without_weights:
            _check(source, mark.digest, digest)
        return Brought(directory, mark.digest, fetched, linked, time.monotonic() - began)

    # -- what there is --

    def _listed(self, source: str, origin: Origin, *, shards: bool) -> tuple[File, ...]:
        """The files to bring, with all checksums that the origin has. With `shards`, none of the shards may be
        missing."""
        everything = origin.files()
        sums: Mapping[str, str] = {}
        if any(each.name == SUMS for each in everything):
            sums = parse_sums(_read(origin, SUMS).decode(errors="replace"))
        files = tuple(
            msgspec.structs.replace(each, sha256=each.sha256 or sums.get(each.name, ""))
            for each in wanted(everything, source)
        )
        indexed = shards and any(each.name == INDEX for each in files)
        if indexed and (lost := missing_shards(_read(origin, INDEX), files)):
            raise TandemError("bad_model", f"{source}: {', '.join(lost)} missing, which {INDEX} names")
        return files

    def _pinned(self, digest: str) -> Path | None:
        for directory, mark in self._whole():
            if mark.digest == digest:
                return directory
        return None

    def _whole(self) -> Iterator[tuple[Path, _Mark]]:
        """Models that are whole, and have not been tampered with as far as their sizes show."""
        for path in sorted(self._models.glob(f"*/{_MARK}")):
            mark = _mark(path)
            if mark is not None and all(_has(path.parent / each.name, each.size) for each in mark.files):
                yield path.parent, mark

    # -- bringing --

    def _complete(
        self,
        source: str,
        directory: Path,
        files: tuple[File, ...],
        origin: Origin,
        tell: Callable[[Progress], None],
    ) -> tuple[int, int, _Mark]:
        """Bring what is missing; gives bytes fetched and linked."""
        mark = _mark(directory / _MARK)
        if mark is not None and all(_has(directory / each.name, each.size) for each in mark.files):
            return 0, 0, mark
        directory.mkdir(exist_ok=True)
        (directory / _MARK).unlink(missing_ok=True)
        linked = self._link(directory, files)
        missing = [each for each in files if each.name not in linked]
        total, moved = sum(each.size for each in missing), _Count(tell, sum(each.size for each in missing))
        tell(Progress(0, total))
        fetched = Fetcher(origin, directory, moved, self._at_once).fetch(missing)
        found = tuple(sorted((*linked.values(), *fetched), key=lambda each: each.name))
        mark = _Mark(source, digest_of(found), found)
        written = directory / f"{_MARK}.new"
        written.write_bytes(msgspec.json.encode(mark))
        written.rename(directory / _MARK)
        return moved.count, sum(each.size for each in linked.values()), mark

    def _link(self, directory: Path, files: tuple[File, ...]) -> dict[str, File]:
        """Files that another model has, by checksum, under their names here."""
        known = {each.sha256: other / each.name for other, mark in self._whole() for each in mark.files}
        linked = {}
        for each in files:
            if each.sha256 and each.sha256 in known:
                target = directory / each.name
                with suppress(OSError):
                    target.unlink(missing_ok=True)
                    os.link(known[each.sha256], target)
                    linked[each.name] = each
        return linked

    @contextmanager
    def _alone(self, directory: Path, tell: Callable[[Progress], None]) -> Iterator[None]:
        """Keep other processes from bringing this model meanwhile. The system releases the lock when its holder
        dies."""
        until = time.monotonic() + self._wait_s
        with (directory.parent / f"{directory.name}.lock").open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        what = f"another process has not brought {directory.name} within {self._wait_s:g} s"
                        raise TandemError("deadline_exceeded", what) from None
                    tell(Progress(0, 0, waiting=True))
                    time.sleep(_LOOK_S)
            yield


@contextmanager
def writable(place: Path) -> Iterator[None]:
    """Raises `bad_setting` where this user may not write to `place` or below it."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        at = error.filename or place
        raise TandemError(
            "bad_setting",
            f"{at} cannot be written by user {os.getuid()}: {error.strerror}; let that user own {place}, or name "
            "another directory",
            param="cache",
        ) from error


class _Count:
    """Adds up what comes, from several threads."""

    def __init__(self, tell: Callable[[Progress], None], total: int) -> None:
        self.count = 0
        self._tell = tell
        self._total = total
        self._lock = threading.Lock()

    def __call__(self, size: int) -> None:
        with self._lock:
            self.count += size
            self._tell(Progress(self.count, self._total))


def _read(origin: Origin, name: str) -> bytes:
    with origin.open(name, 0, "") as stream:
        return b"".join(stream.chunks)


def _check(source: str, found: str, digest: str) -> None:
    if found != digest:
        raise TandemError("bad_model", f"{source}: its digest is {found}, and should be {digest}")


def _mark(path: Path) -> _Mark | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Mark)
    except (OSError, msgspec.DecodeError):
        return None


def _has(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False
