"""A prefix in a bucket of a cloud, read by `obstore`."""

import os
import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from tandem.core.errors import TandemError
from tandem.weights.bucket_settings import bucket_settings
from tandem.weights.listing import File
from tandem.weights.origin import Stream
from tandem.weights.source import Source
from tandem.weights.web import CONNECT_S, CURE, SILENCE_S, refusal

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import ClientConfig, ObjectStore

_FILES_MAX: Final = 100_000
"""Limit on the files of a listing."""
_PAGE: Final = 1000
_LISTING_S: Final = 300.0
"""Limit on the time that a listing takes."""
_FILE_S: Final = 7 * 86_400.0
"""Limit on the time of one request. A file takes as long as it takes; silence is what has a bound."""
_CAUSE: Final = re.compile(r'(?:message|error): "([^"]*)"|InvalidCertificate\(\s*(\w+)')
"""Why no request could be sent, in what the library says of the inner structure of an error."""
_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")
_NO_RANGES: Final = "non-partial response"
_FOR_GOOD: Final = ("invalid list response", "invalid path", "redirect without LOCATION")
"""What the library says of errors that have no status and do not get better."""


class BucketOrigin:
    """`tandem.weights.origin.Origin` of a source `s3`, `gs` or `az`. Credentials, region and endpoint come from the
    environment (`tandem.weights.bucket_settings`). The library does not retry: `Fetcher` does."""

    def __init__(self, source: Source, environment: Mapping[str, str] | None = None) -> None:
        """Raises `bad_model` for settings that the library refuses."""
        bucket, _, prefix = source.location.partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._what = f"{source.scheme}://{bucket}/{self._prefix}"
        self._store = _opened(self._what, source.scheme, bucket, os.environ if environment is None else environment)

    def files(self) -> tuple[File, ...]:
        listing: Future[tuple[File, ...]] = Future()
        # Pages without any file would not come to an end by themselves. The library's asynchronous calls could be
        # cancelled, but a process that exits soon after one may die of SIGABRT.
        threading.Thread(target=self._list, args=(listing,), name="bucket listing", daemon=True).start()
        try:
            return listing.result(_LISTING_S)
        except TimeoutError as error:
            raise TandemError("link_lost", f"{self._what}: not listed within {_LISTING_S:g} s") from error

    def _list(self, listing: "Future[tuple[File, ...]]") -> None:
        try:
            with _told(self._what):
                listing.set_result(self._listed())
        except BaseException as error:  # noqa: BLE001 - told to who waits
            listing.set_exception(error)

    def _listed(self) -> tuple[File, ...]:
        import obstore

        found = list[File]()
        for page in obstore.list(self._store, self._prefix, chunk_size=_PAGE):
            inside = (each for each in page if each["path"].startswith(self._prefix))
            found += (File(each["path"].removeprefix(self._prefix), each["size"]) for each in inside)
            if len(found) > _FILES_MAX:
                raise TandemError("bad_model", f"{self._what} has over {_FILES_MAX:,} files")
        return tuple(found)

    @contextmanager
    def open(self, name: str, offset: int, tag: str) -> Iterator[Stream]:
        what = self._what + name
        with _told(what):
            begin, result = self._got(self._prefix + name, offset, tag)
        if result is None:
            yield Stream(begin, tag, iter(()))
        else:
            yield Stream(begin, result.meta["e_tag"] or "", _chunks(what, result))

    def close(self) -> None:
        return None

    def _got(self, path: str, offset: int, tag: str) -> "tuple[int, GetResult | None]":
        """Where the answer begins, and the answer; none when there is nothing beyond `offset`."""
        import obstore
        from obstore.exceptions import GenericError, PreconditionError

        if offset:
            options: GetOptions = {"range": {"offset": offset}}
            if tag:
                options["if_match"] = tag
            try:
                return offset, obstore.get(self._store, path, options=options)
            except PreconditionError:
                pass  # Another file has its name by now.
            except GenericError as error:
                if _status(error) == 416:
                    return offset, None
                if _NO_RANGES not in str(error):
                    raise
        return 0, obstore.get(self._store, path)


def _opened(what: str, scheme: str, bucket: str, environment: Mapping[str, str]) -> "ObjectStore":
    # Imported on use: most starts need no bucket.
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    settings = bucket_settings(scheme, environment)
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "read_timeout": timedelta(seconds=SILENCE_S),
        "timeout": timedelta(seconds=_FILE_S),
        "allow_http": settings.plain,
    }
    # Types of the library know the names of settings in lower case alone.
    options: Any = {"config": settings.config, "client_options": client, "retry_config": {"max_retries": 0}}
    try:
        if scheme == "s3":
            return S3Store(bucket, **options)
        if scheme == "gs":
            return GCSStore(bucket, **options)
        # With `@` the account stands in the source.
        return AzureStore.from_url(f"abfss://{bucket}", **options) if "@" in bucket else AzureStore(bucket, **options)
    except (BaseError, ValueError) as error:
        raise TandemError("bad_model", f"{what}: {_said(error)}; {CURE}") from error


def _chunks(what: str, result: "GetResult") -> Iterator[bytes]:
    with _told(what):
        # Bytes go on as they come: what has come before an error counts.
        yield from result.stream(min_chunk_size=1)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Errors of the library as `TandemError`, about `what`."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        status, said = _status(error), _said(error)
        if status:
            raise refusal(what, status) from error
        code = "bad_model" if any(each in said for each in _FOR_GOOD) else "link_lost"
        raise TandemError(code, f"{what}: {said}") from error


def _status(error: Exception) -> int:
    """The HTTP status in an error of the library, 0 without one."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def _said(error: Exception) -> str:
    """An error of the library with its cause and without its inner structure."""
    said, _, structure = str(error).partition("\n\n")
    cause = _CAUSE.search(structure)
    return f"{said}: {cause[1] or cause[2]}" if cause else said
