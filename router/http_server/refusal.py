"""Refusals by the server itself, and how they are put into words.

Most refusals come from the application. A refusal by the server needs only a reason: an `Explain` turns it into the
body and headers of an answer, so that clients see errors of one kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

Header = tuple[bytes, bytes]


@dataclass(frozen=True)
class Explained:
    """The body of a refusal, and headers that belong to its reason: neither its type nor its length."""

    body: bytes
    headers: Sequence[Header] = ()
    content_type: bytes = b"application/json"


Reason = Literal["bad_request", "unknown_coding", "too_many", "stopping", "fault"]
"""`too_many` requests of a connection, or connections of a port; `fault`: the application raised, or was silent."""


class Refusal(Exception):
    """A request, or a connection, that the server answers itself before it closes. `problem` is one sentence."""

    def __init__(self, reason: Reason, problem: str) -> None:
        super().__init__(problem)
        self.reason: Reason = reason
        self.problem = problem

    @property
    def status(self) -> HTTPStatus:
        """A message that cannot be read at all, rather than a body, is not implemented (RFC 9112, 6.1)."""
        return _STATUS[self.reason]


Explain = Callable[[Refusal], Explained]

_STATUS: dict[Reason, HTTPStatus] = {
    "bad_request": HTTPStatus.BAD_REQUEST,
    "unknown_coding": HTTPStatus.NOT_IMPLEMENTED,
    "too_many": HTTPStatus.SERVICE_UNAVAILABLE,
    "stopping": HTTPStatus.SERVICE_UNAVAILABLE,
    "fault": HTTPStatus.INTERNAL_SERVER_ERROR,
}


def plainly(refusal: Refusal) -> Explained:
    """The reason as text."""
    return Explained(refusal.problem.encode(), content_type=b"text/plain; charset=utf-8")


def answer(refusal: Refusal, explain: Explain) -> bytes:
    """A whole HTTP/1.1 response, after which the connection closes."""
    told = explain(refusal)
    named = [(b"content-type", told.content_type), (b"content-length", b"%d" % len(told.body)), *told.headers]
    head = b"".join([b"%b: %b\r\n" % header for header in named])
    status = refusal.status
    return b"HTTP/1.1 %d %b\r\n%bconnection: close\r\n\r\n%b" % (status, status.phrase.encode(), head, told.body)
