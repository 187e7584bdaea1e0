"""Brings files: several at once, each resumed where it stopped, believed only when it verifies."""

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from tandem.core.errors import TandemError
from tandem.weights.listing import File, header_bytes, header_problem
from tandem.weights.origin import Origin, Stream

AT_ONCE: Final = 8
_TRIES: Final = 5
"""Per file, without progress in between."""
_BACKOFF_S: Final = 0.5
_HEADER_MAX: Final = 256 << 20
_PART, _TAG = ".part", ".tag"

Moved = Callable[[int], None]
"""Told how many bytes have come, from any thread."""


class Fetcher:
    """Fetches the files of one origin into a directory. Blocks; `stop` ends it from another thread."""

    def __init__(self, origin: Origin, directory: Path, moved: Moved, at_once: int = AT_ONCE) -> None:
        self._origin = origin
        self._directory = directory
        self._moved = moved
        self._at_once = at_once
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop the fetch. The bytes that have come so far stay for the next time."""
        self._stopped.set()

    def fetch(self, files: Sequence[File]) -> tuple[File, ...]:
        """Bring all; gives them with their checksums. Raises the first error, naming the file."""
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="weights") as pool:
            tasks = [pool.submit(self._bring, each) for each in sorted(files, key=lambda each: -each.size)]
            try:
                wait(tasks, return_when=FIRST_EXCEPTION)
            finally:
                if any(task.done() and task.exception() is not None for task in tasks) or self._stopped.is_set():
                    self._stopped.set()
                    pool.shutdown(cancel_futures=True)
            failed = [
                error
                for task in tasks
                if task.done() and not task.cancelled() and (error := task.exception()) is not None
            ]
            if failed:
                raise next((each for each in failed if not _is_stopped(each)), failed[0])
            if self._stopped.is_set():
                raise _stopped()
            return tuple(sorted((task.result() for task in tasks), key=lambda each: each.name))

    def _bring(self, file: File) -> File:
        tries, corrupt, had = 0, 0, -1
        while True:
            try:
                return self._once(file)
            except _Corrupt as error:
                # The first time what was kept from an earlier try may have been at fault.
                corrupt += 1
                if corrupt > 1:
                    raise TandemError("bad_model", str(error)) from None
            except TandemError as error:
                has = _size(self._path(file.name, _PART))
                tries, had = (tries + 1 if has <= had else 1), max(has, had)
                if error.code != "link_lost" or tries >= _TRIES:
                    raise
            except OSError as error:
                raise _disk(file, error) from error
            if self._stopped.wait(_BACKOFF_S * 2**tries):
                raise _stopped()

    def _once(self, file: File) -> File:
        part, tag_file = self._path(file.name, _PART), self._path(file.name, _TAG)
        tag = tag_file.read_text() if tag_file.exists() else ""
        offset = _size(part) if tag or file.sha256 else 0
        with self._origin.open(file.name, offset, tag) as stream:
            if stream.tag:
                tag_file.write_text(stream.tag)
            self._write(part, stream)
        has = _size(part)
        if has < file.size:
            raise TandemError("link_lost", f"{file.name} was cut off: {has:,} of {file.size:,} bytes came")
        return self._accept(file, part, tag_file)

    def _write(self, part: Path, stream: Stream) -> None:
        with part.open("r+b" if part.exists() else "w+b") as target:
            target.truncate(stream.offset)
            target.seek(stream.offset)
            for chunk in stream.chunks:
                target.write(chunk)
                self._moved(len(chunk))
                if self._stopped.is_set():
                    raise _stopped()

    def _accept(self, file: File, part: Path, tag_file: Path) -> File:
        """Check everything that is known of the file, and give it its name."""
        with part.open("r+b") as source:
            found = hashlib.file_digest(source, "sha256").hexdigest()
            problem = None
            size = _size(part)
            if size != file.size:
                problem = f"{file.name} has {size:,} bytes, and should have {file.size:,}"
            elif file.sha256 and found != file.sha256:
                problem = f"{file.name} is corrupt: its SHA-256 is {found}, and should be {file.sha256}"
            elif file.name.endswith(".safetensors"):
                problem = _header_of(file.name, source.fileno(), size)
            if problem is None:
                os.fsync(source.fileno())
        tag_file.unlink(missing_ok=True)
        if problem is not None:
            part.unlink()
            raise _Corrupt(problem)
        part.rename(self._directory / file.name)
        return File(file.name, size, found)

    def _path(self, name: str, suffix: str) -> Path:
        return self._directory / (name + suffix)


class _Corrupt(Exception):
    """A file that came is not the one that was asked for."""


def _header_of(name: str, descriptor: int, size: int) -> str | None:
    head = os.pread(descriptor, 8, 0)
    length = header_bytes(head) if len(head) == 8 else 8
    if length > min(size, _HEADER_MAX):
        return f"{name}: its header of {length:,} bytes does not fit into its {size:,} bytes"
    return header_problem(name, os.pread(descriptor, length, 0), size)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _disk(file: File, error: OSError) -> TandemError:
    hint = "; make room or choose another cache directory" if error.errno == errno.ENOSPC else ""
    return TandemError("bad_model", f"{file.name} cannot be written: {error.strerror}{hint}")


def _stopped() -> TandemError:
    return TandemError("cancelled", "fetching was stopped; the next one goes on from here")


def _is_stopped(error: BaseException) -> bool:
    return isinstance(error, TandemError) and error.code == "cancelled"
