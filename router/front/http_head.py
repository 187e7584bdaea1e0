"""What the parser lets through in the head of a request and RFC 9112 does not."""

import re
from collections.abc import Sequence
from typing import Final

_HOST: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]*)(?::[0-9]*)?")
"""A name, an IPv4 address or an IPv6 address in brackets, and a port (RFC 3986, 3.2.2). It may be empty."""


def head_fault(version: str, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Why a request with such a head is refused, None if it is not. Names of headers are in lower case."""
    if version not in ("1.0", "1.1"):
        return f"HTTP/{version} is not spoken here, HTTP/1.1 is"
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        return "a request has one Host header"
    if not hosts and version == "1.1":
        return "an HTTP/1.1 request has a Host header"
    if hosts and _HOST.fullmatch(hosts[0].strip(b" \t")) is None:
        return "the Host header is no host"
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings and version == "1.0":
        return "an HTTP/1.0 request has no Transfer-Encoding header"
    if any(value.strip(b" \t").lower() != b"chunked" for value in codings):
        return "the one transfer coding that is understood is chunked"
    return None
