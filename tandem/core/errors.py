"""Typed operating errors: one table gives the HTTP status, the gRPC code and whether a retry can help.

Programmer errors are `assert`s. Everything that a user, a peer or a machine can cause is a `TandemError`, which says
what was wrong, where, and what to do.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class ErrorKind:
    """The answer to one kind of error. `grpc` is the canonical status name, `type` OpenAI's error type."""

    code: str
    http: int
    grpc: str
    type: str
    retryable: bool


_KINDS: Final = (
    ErrorKind("invalid_request", 400, "INVALID_ARGUMENT", "invalid_request_error", False),
    ErrorKind("unsupported_parameter", 400, "INVALID_ARGUMENT", "invalid_request_error", False),
    ErrorKind("context_length_exceeded", 400, "INVALID_ARGUMENT", "invalid_request_error", False),
    ErrorKind("invalid_api_key", 401, "UNAUTHENTICATED", "authentication_error", False),
    ErrorKind("not_allowed", 403, "PERMISSION_DENIED", "permission_error", False),
    ErrorKind("model_not_found", 404, "NOT_FOUND", "invalid_request_error", False),
    ErrorKind("not_found", 404, "NOT_FOUND", "invalid_request_error", False),
    ErrorKind("method_not_allowed", 405, "UNIMPLEMENTED", "invalid_request_error", False),
    ErrorKind("conflict", 409, "ABORTED", "invalid_request_error", True),
    ErrorKind("taken_over", 409, "ABORTED", "invalid_request_error", False),
    ErrorKind("body_too_large", 413, "INVALID_ARGUMENT", "invalid_request_error", False),
    ErrorKind("unsupported_encoding", 415, "INVALID_ARGUMENT", "invalid_request_error", False),
    ErrorKind("over_quota", 429, "RESOURCE_EXHAUSTED", "rate_limit_error", True),
    ErrorKind("cancelled", 499, "CANCELLED", "cancelled", False),
    ErrorKind("internal", 500, "INTERNAL", "server_error", True),
    ErrorKind("queue_full", 503, "UNAVAILABLE", "server_error", True),
    ErrorKind("draining", 503, "UNAVAILABLE", "server_error", True),
    ErrorKind("no_workers", 503, "UNAVAILABLE", "server_error", True),
    ErrorKind("worker_lost", 503, "UNAVAILABLE", "server_error", True),
    ErrorKind("deadline_exceeded", 504, "DEADLINE_EXCEEDED", "timeout_error", True),
    ErrorKind("slow_client", 504, "RESOURCE_EXHAUSTED", "timeout_error", False),
    # Between our own services; a client sees one of the above.
    ErrorKind("stale_epoch", 503, "FAILED_PRECONDITION", "server_error", True),
    ErrorKind("ticket_refused", 403, "PERMISSION_DENIED", "permission_error", False),
    ErrorKind("kv_gone", 503, "NOT_FOUND", "server_error", True),
    ErrorKind("kv_corrupt", 503, "DATA_LOSS", "server_error", True),
    ErrorKind("transfer_failed", 503, "UNAVAILABLE", "server_error", True),
    ErrorKind("out_of_blocks", 503, "RESOURCE_EXHAUSTED", "server_error", True),
    ErrorKind("link_lost", 503, "UNAVAILABLE", "server_error", True),
    ErrorKind("protocol_mismatch", 503, "FAILED_PRECONDITION", "server_error", False),
    ErrorKind("bad_setting", 500, "FAILED_PRECONDITION", "server_error", False),
    ErrorKind("bad_model", 500, "FAILED_PRECONDITION", "server_error", False),
    ErrorKind("engine_failed", 500, "INTERNAL", "server_error", True),
)

KINDS: Final = MappingProxyType({kind.code: kind for kind in _KINDS})


class TandemError(Exception):
    """An operating error. `code` is a key of `KINDS`; `param` names the offending field of a request or setting."""

    def __init__(
        self, code: str, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        assert code in KINDS, f"unknown error code {code!r}"
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> ErrorKind:
        return KINDS[self.code]

    @property
    def retryable(self) -> bool:
        return self.kind.retryable

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.code, self.message, self.param, self.retry_after_s))


def _rebuild(code: str, message: str, param: str | None, retry_after_s: float | None) -> TandemError:
    return TandemError(code, message, param=param, retry_after_s=retry_after_s)
