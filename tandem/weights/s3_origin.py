"""A prefix in a bucket."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit
from xml.etree import ElementTree

from tandem.core.errors import TandemError
from tandem.weights.listing import File
from tandem.weights.origin import Stream
from tandem.weights.s3_signature import Credentials, canonical_path, canonical_query, signed_headers
from tandem.weights.web import Web, refuse

_PAGES_MAX: Final = 100
"""Limit on the pages of a listing, of a thousand names each."""


class S3Origin:
    """`tandem.weights.origin.Origin` of `bucket/prefix`. Credentials, region and endpoint are those that S3 clients
    read: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL_S3` or
    `AWS_ENDPOINT_URL`. Without keys a bucket must be public. At an endpoint of its own the bucket is in the path."""

    def __init__(self, location: str, environment: Mapping[str, str] | None = None) -> None:
        known = os.environ if environment is None else environment
        self._bucket, _, prefix = location.partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._region = known.get("AWS_REGION") or known.get("AWS_DEFAULT_REGION") or "us-east-1"
        endpoint = known.get("AWS_ENDPOINT_URL_S3") or known.get("AWS_ENDPOINT_URL")
        if endpoint:
            self._base, self._root = endpoint.rstrip("/"), f"/{self._bucket}"
        else:
            self._base, self._root = f"https://{self._bucket}.s3.{self._region}.amazonaws.com", ""
        access, secret = known.get("AWS_ACCESS_KEY_ID", ""), known.get("AWS_SECRET_ACCESS_KEY", "")
        self._credentials = Credentials(access, secret, known.get("AWS_SESSION_TOKEN", "")) if access else None
        self._web = Web()

    def files(self) -> tuple[File, ...]:
        found, token = list[File](), ""
        for _ in range(_PAGES_MAX):
            query = {"list-type": "2", "prefix": self._prefix} | ({"continuation-token": token} if token else {})
            response = self._web.get(*self._signed("/", query))
            refuse(f"s3://{self._bucket}/{self._prefix}", response)
            more, token = self._page(response.content)
            found += more
            if not token:
                return tuple(found)
        raise TandemError("bad_model", f"s3://{self._bucket}/{self._prefix} has over {_PAGES_MAX * 1000:,} files")

    @contextmanager
    def open(self, name: str, offset: int, tag: str) -> Iterator[Stream]:
        url, headers = self._signed(f"/{self._prefix}{name}", {})
        what = f"s3://{self._bucket}/{self._prefix}{name}"
        with self._web.stream(what, url, offset, tag, headers) as stream:
            yield stream

    def close(self) -> None:
        self._web.close()

    def _signed(self, path: str, query: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        path = (self._root + path).rstrip("/") if path == "/" and self._root else self._root + path
        url = self._base + canonical_path(path) + (f"?{canonical_query(query)}" if query else "")
        if self._credentials is None:
            return url, {}
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        return url, signed_headers(self._credentials, self._region, urlsplit(url).netloc, path, query, stamp)

    def _page(self, body: bytes) -> tuple[list[File], str]:
        """Files of one page of a listing, and the token of the next."""
        try:
            # Entities are not expanded beyond what the parser of the standard library bounds by itself.
            root = ElementTree.fromstring(body)
        except ElementTree.ParseError as error:
            raise TandemError("bad_model", f"s3://{self._bucket}: its listing cannot be read: {error}") from error
        space = root.tag[: root.tag.index("}") + 1] if root.tag.startswith("{") else ""
        files = []
        for each in root.iter(f"{space}Contents"):
            key, size = each.findtext(f"{space}Key", ""), each.findtext(f"{space}Size", "0")
            files.append(File(key.removeprefix(self._prefix), int(size)))
        return files, root.findtext(f"{space}NextContinuationToken", "")
