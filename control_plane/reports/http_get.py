"""One `GET`, answered whole, bounded in time and size. A connection of its own: polls are few."""

import asyncio
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httpx

from tandem.core.errors import TandemError

BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True)
class Endpoint:
    """The address at which a router listens. `host` is an address or a name; brackets around IPv6 are added where
    they belong."""

    host: str
    port: int
    secure: bool = False

    @classmethod
    def parse(cls, url: str) -> "Endpoint":
        """The endpoint of a URL `http://host:port` or `https://host:port`. Raises `bad_setting`."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in ("http", "https") or not parts.hostname or port is None:
            raise TandemError("bad_setting", f"{url!r} is not a URL such as http://10.0.0.7:8000", param="router_url")
        return cls(parts.hostname, port, parts.scheme == "https")

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def get(
    place: Endpoint, path: str, timeout_s: float, tls: ssl.SSLContext | None = None, key: str = ""
) -> bytes:
    """The body of the answer. Raises `link_lost` when no answer comes in time or the answer breaks off, `not_allowed`
    for a 401 or 403, and `protocol_mismatch` for any other status than 200 or for an answer that is too long."""
    if place.secure and tls is None:
        raise TandemError("bad_setting", f"{place.authority} wants TLS and no certificates are set", param="tls")
    try:
        async with asyncio.timeout(timeout_s):
            status, body = await _exchange(place, path, tls, key)
    except (OSError, TimeoutError, httpx.HTTPError) as error:
        why = str(error) or type(error).__name__
        raise TandemError("link_lost", f"no answer from {place.authority}: {why}") from error
    if status in (401, 403):
        raise TandemError("not_allowed", f"{place.authority} does not let the control plane read {path}")
    if status != 200:
        raise TandemError("protocol_mismatch", f"{place.authority} answers {path} with status {status}")
    return body


async def _exchange(place: Endpoint, path: str, tls: ssl.SSLContext | None, key: str) -> tuple[int, bytes]:
    url = f"{'https' if place.secure else 'http'}://{place.authority}{path}"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    verify = tls if place.secure and tls is not None else False
    # The environment's proxies are not for pods; the only bound in time is the caller's.
    async with (
        httpx.AsyncClient(verify=verify, trust_env=False, timeout=None) as client,
        client.stream("GET", url, headers=headers) as response,
    ):
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > BYTES_MAX:
                raise TandemError(
                    "protocol_mismatch", f"{place.authority} answers {path} with more than {BYTES_MAX} B"
                )
        return response.status_code, bytes(body)
