"""Checks for what RFC 9112 forbids in the head of a request and the parser lets through."""

import re
from collections.abc import Sequence
from typing import Final

from router.http_server.refusal import Refusal

_HOST: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]*)(?::[0-9]*)?")
"""A name, an IPv4 address or an IPv6 address in brackets, and a port (RFC 3986, 3.2.2). It may be empty."""


def head_fault(version: str, headers: Sequence[tuple[bytes, bytes]]) -> Refusal | None:
    """The refusal of a request with such a head; None if the head is valid. Header names are in lower case."""
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    for value in codings:
        if value.strip(b" \t").lower() != b"chunked":
            shown = value.decode("latin-1")
            problem = f"Transfer-Encoding {shown!r} is not understood: `chunked` alone is"
            return Refusal("unknown_coding", problem)
    hosts = [value for name, value in headers if name == b"host"]
    problem = ""
    if version not in ("1.0", "1.1"):
        problem = f"HTTP/{version} is not spoken here, HTTP/1.1 is"
    elif len(hosts) > 1:
        problem = "a request has one Host header"
    elif not hosts and version == "1.1":
        problem = "an HTTP/1.1 request has a Host header"
    elif hosts and _HOST.fullmatch(hosts[0].strip(b" \t")) is None:
        problem = "the Host header is no host"
    elif codings and version == "1.0":
        problem = "an HTTP/1.0 request has no Transfer-Encoding header"
    return Refusal("bad_request", problem) if problem else None
