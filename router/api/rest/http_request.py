"""One HTTP request as the handlers see it."""

import msgspec

from router.http_server.cycle import Receive
from router.http_server.response_writer import ResponseWriter


class HttpRequest(msgspec.Struct, frozen=True):
    """`path` without the query, header names in lower case, where the body comes from, where the answer goes; the
    query as it was sent."""

    path: str
    headers: dict[bytes, bytes]
    receive: Receive
    outlet: ResponseWriter
    query: bytes = b""

    def header(self, name: bytes) -> str | None:
        """A header's value; of a repeated one the last."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")
