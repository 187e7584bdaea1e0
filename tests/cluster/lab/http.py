"""One plain HTTP request after another, to processes of this lab only: not by the code under test."""

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

Json = dict[str, Any]
_ANSWER_S = 30.0


class Unreachable(RuntimeError):
    """Nobody answered."""


@dataclass(frozen=True)
class Answer:
    """Status and decoded body; a body that is no JSON object comes as `{"text": ...}`."""

    status: int
    body: Json

    @property
    def message(self) -> str:
        return str(self.body.get("message") or self.body)


def ask(
    method: str,
    url: str,
    body: Any = None,
    *,
    token: str | None = None,
    content: str = "application/json",
    accept: str = "application/json",
) -> Answer:
    """Any status is an answer; raises Unreachable without one."""
    headers = {"Content-Type": content, "Accept": accept}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with _OPEN.open(request, timeout=_ANSWER_S) as response:
            return Answer(response.status, _decoded(response.read()))
    except urllib.error.HTTPError as error:
        return Answer(error.code, _decoded(error.read()))
    except (OSError, HTTPException) as error:
        raise Unreachable(f"{method} {url}: {error}") from error


def _decoded(raw: bytes) -> Json:
    try:
        decoded = json.loads(raw)
    except ValueError:
        decoded = None
    return decoded if isinstance(decoded, dict) else {"text": raw.decode(errors="replace")}


_UNVERIFIED = ssl.create_default_context()
_UNVERIFIED.check_hostname = False
_UNVERIFIED.verify_mode = ssl.CERT_NONE
# Without the proxy that the environment may name: these are our own processes.
_OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_UNVERIFIED))
