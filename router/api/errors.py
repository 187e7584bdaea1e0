"""Presents a `TandemError` to a client: OpenAI's error object, status and headers."""

import math
from typing import Final

import msgspec

from router.http_server.refusal import Explained, Header, Reason, Refusal
from tandem.core.errors import TandemError


class ErrorObject(msgspec.Struct, frozen=True):
    """OpenAI's error object: exactly these four fields."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error answer, and the data of an error event in a stream."""

    error: ErrorObject


_CLIENT_CODE = {
    "stale_epoch": "worker_lost",
    "kv_gone": "worker_lost",
    "kv_corrupt": "worker_lost",
    "ticket_refused": "worker_lost",
    "transfer_failed": "worker_lost",
    "link_lost": "worker_lost",
    "protocol_mismatch": "worker_lost",
    "out_of_blocks": "queue_full",
    "engine_failed": "internal",
    "bad_model": "internal",
    "bad_setting": "internal",
}


MESSAGE_CHARS_MAX: Final = 2000
"""Characters of an error's message that a client is sent and that is kept: some quote what it sent itself, which may
be megabytes."""
PARAM_CHARS_MAX: Final = 256
"""Characters of the name of an error's field that a client is sent and that are kept."""


def for_client(error: TandemError) -> TandemError:
    """The same error in the codes that clients know, short enough for gRPC's metadata. A code used only between
    services becomes its client-visible counterpart."""
    code = _CLIENT_CODE.get(error.code, error.code)
    message = shortened(error.message, MESSAGE_CHARS_MAX)
    param = None if error.param is None else shortened(error.param, PARAM_CHARS_MAX)
    if (code, message, param) == (error.code, error.message, error.param):
        return error
    return TandemError(code, message, param=param, retry_after_s=error.retry_after_s)


def shortened(text: str, chars: int = MESSAGE_CHARS_MAX) -> str:
    """The text, of which as much is left out at its end as is more than `chars` characters."""
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


class MethodNotAllowed(TandemError):
    """A path that exists was asked with another method than the `allowed` ones."""

    def __init__(self, path: str, method: str, allowed: tuple[str, ...]) -> None:
        takes = f"{shortened(path, PARAM_CHARS_MAX)} takes {' or '.join(allowed)}, not {method}"
        super().__init__("method_not_allowed", takes)
        self.allowed = allowed


def check_method(method: str, allowed: tuple[str, ...], path: str) -> None:
    """Raises `method_not_allowed`."""
    if method not in allowed:
        raise MethodNotAllowed(path, method, allowed)


def error_json(error: TandemError) -> bytes:
    """OpenAI's error object as JSON."""
    return msgspec.json.encode(ErrorBody(ErrorObject(error.message, error.kind.type, error.param, error.code)))


def retry_after_s(error: TandemError) -> int | None:
    """Whole seconds for `Retry-After`; refusals that can pass always carry one."""
    if error.kind.http not in (429, 503):
        return None
    return max(1, math.ceil(error.retry_after_s if error.retry_after_s is not None else 1.0))


_REFUSED: Final[dict[Reason, str]] = {
    "bad_request": "invalid_request",
    "unknown_coding": "unsupported_encoding",
    "too_many": "queue_full",
    "stopping": "draining",
    "fault": "internal",
}


def explain(refusal: Refusal) -> Explained:
    """The API's error for a request that the HTTP server refuses."""
    error = TandemError(_REFUSED[refusal.reason], refusal.problem)
    return Explained(error_json(error), error_headers(error))


def error_headers(error: TandemError) -> list[Header]:
    """Headers beyond content type and length."""
    headers: list[Header] = []
    wait_s = retry_after_s(error)
    if wait_s is not None:
        headers.append((b"retry-after", str(wait_s).encode()))
    if error.kind.http == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    return headers
