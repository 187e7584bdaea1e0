"""AWS Signature Version 4 of a GET without a body, as the S3 documentation describes it. Pure.

The usual client library requires a version of `python-dateutil` that the Kubernetes client refuses; a GET needs no
more of the library than this signature.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
_UNRESERVED: Final = "-_.~"


@dataclass(frozen=True)
class Credentials:
    """`token` is that of a session, empty for lasting keys."""

    access_key: str
    secret_key: str
    token: str = ""


def canonical_path(path: str) -> str:
    """Each byte of a path that is not unreserved, escaped once."""
    return quote(path, safe="/" + _UNRESERVED)


def canonical_query(query: Mapping[str, str]) -> str:
    """Sorted by name."""
    pairs = sorted((quote(name, safe=_UNRESERVED), quote(value, safe=_UNRESERVED)) for name, value in query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


def signed_headers(
    credentials: Credentials, region: str, host: str, path: str, query: Mapping[str, str], stamp: str
) -> dict[str, str]:
    """The headers of `GET path?query` at `host`. `stamp` is the UTC time as `YYYYMMDDTHHMMSSZ`."""
    headers = {"host": host, "x-amz-content-sha256": EMPTY_SHA256, "x-amz-date": stamp}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join(("GET", canonical_path(path), canonical_query(query), lines, names, EMPTY_SHA256))
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    to_sign = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (stamp[:8], region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers
