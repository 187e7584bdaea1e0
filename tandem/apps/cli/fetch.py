"""`tandem fetch SOURCE`: bring a model's weights to this node, once for all processes that need them.

In a cluster a worker's pod runs it before the worker: `--report` leaves the figures of this stage of a cold start
where the worker finds them.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tandem.weights.cache import DEFAULT_DIRECTORY, Brought, Progress, WeightsCache, writable
from tandem.weights.directory import digest_on_disk
from tandem.weights.locate import bring_model

_SAY_EVERY_S: Final = 5.0
_SAY_EVERY_TERMINAL_S: Final = 0.2


def main(arguments: Sequence[str]) -> int:
    """Print the model's directory as the last line."""
    parser = argparse.ArgumentParser(prog="tandem fetch", description=__doc__)
    parser.add_argument("source", help="a directory, hf://, s3://, gs://, az://, oci:// or pvc:// as in model.source")
    parser.add_argument("--revision", default="", help="branch, tag or commit of a hub")
    parser.add_argument("--digest", default="", help="sha256:… that the weights must have")
    parser.add_argument("--cache", type=Path, default=DEFAULT_DIRECTORY)
    parser.add_argument("--volumes", type=Path, default=Path("/"), help="where claims of pvc:// are mounted")
    parser.add_argument("--wait-s", type=float, default=7200.0, help="for another process that fetches the same")
    parser.add_argument("--at-once", type=int, default=8, help="files fetched at the same time")
    parser.add_argument("--link", type=Path, help="a symbolic link to make to the model's directory")
    parser.add_argument("--report", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--show-digest", action="store_true", help="print the digest of a directory, and end")
    given = parser.parse_args(arguments)
    if given.show_digest:
        print(digest_on_disk(Path(given.source)))
        return 0
    line = _Line()
    cache = WeightsCache(given.cache, wait_s=given.wait_s, at_once=given.at_once)
    brought = bring_model(
        given.source, cache, revision=given.revision, digest=given.digest, volumes=given.volumes, tell=line.tell
    )
    line.end()
    if given.report is not None:
        with writable(given.report.parent):
            given.report.write_bytes(msgspec.json.encode(_figures(brought)))
    if given.link is not None:
        with writable(given.link.parent):
            _link(given.link, brought.directory)
    rate = f", {brought.fetched_bytes / brought.seconds / 1e6:.0f} MB/s" if brought.fetched_bytes else ""
    print(
        f"{brought.fetched_bytes:,} bytes fetched, {brought.linked_bytes:,} linked, {brought.seconds:.1f} s{rate}; "
        f"{brought.digest or 'no digest asked for'}",
        file=sys.stderr,
    )
    print(brought.directory)
    return 0


def _figures(brought: Brought) -> dict[str, object]:
    return {
        "stage": "fetch",
        "seconds": round(brought.seconds, 3),
        "fetched_bytes": brought.fetched_bytes,
        "linked_bytes": brought.linked_bytes,
        "digest": brought.digest,
        "directory": str(brought.directory),
    }


def _link(link: Path, directory: Path) -> None:
    """Replace the link in one step, so that it is never missing."""
    fresh = link.with_name(f"{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(directory)
    fresh.rename(link)


class _Line:
    """A line of progress: rewritten on a terminal, now and then elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._every_s = _SAY_EVERY_TERMINAL_S if self._terminal else _SAY_EVERY_S
        self._began = self._said = time.monotonic()

    def tell(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._said < self._every_s:
            return
        self._said = now
        text = self._text(progress, now - self._began)
        print(
            f"\r{text}\033[K" if self._terminal else text,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> None:
        """Leave the line."""
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    @staticmethod
    def _text(progress: Progress, seconds: float) -> str:
        if progress.waiting:
            return f"another process fetches these weights; {seconds:.0f} s so far"
        share = progress.done / progress.total if progress.total else 1.0
        left_s = seconds / share * (1 - share) if share else 0.0
        rate = progress.done / seconds / 1e6
        return f"{progress.done / 1e9:.2f} of {progress.total / 1e9:.2f} GB, {rate:.0f} MB/s, {left_s:.0f} s to go"
