"""Settings of the shared index in Redis. Pure values."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from tandem.core.errors import TandemError

_SCHEMES: Final = ("redis", "rediss", "unix")
_ECHO: Final = ", with args beginning with"
"""After this Redis repeats what a command that it does not know was given: with HELLO and AUTH, the password."""
_HIDDEN: Final = "***"


@dataclass(frozen=True)
class RedisSettings:
    """Where the shared index is. `redis_url` empty: there is none."""

    redis_url: str = ""
    """`redis://`, `rediss://` or `unix://`; several nodes, separated by commas, of which the primary is used."""
    service: str = "tandem"
    """What its keys begin with; services that share a Redis have different names. A router that serves several looks
    each up under its own."""
    look_up_s: float = 0.005
    """How long a request waits for an answer."""
    publish_s: float = 2.0
    """How long a write may take."""
    connect_s: float = 1.0
    connections_max: int = 8
    failures_max: int = 3
    """So many failed calls in a row, or one lost connection, and nobody asks until a probe has passed."""
    probe_every_s: float = 1.0
    retry_first_s: float = 0.1
    retry_max_s: float = 5.0
    lease_s: float = 15.0
    """A holder that does not renew its record for so long has nothing."""
    entry_s: float = 600.0
    """How long an entry stands that is not refreshed; it is every quarter of that."""
    queue_names_max: int = 200_000
    """Changes that wait to be written; with more, everything is told anew."""

    def __post_init__(self) -> None:
        for url in self.urls:
            if url.partition("://")[0] not in _SCHEMES:
                problem = f"redis_url = {shown(url)}: expected redis://, rediss:// or unix://"
                raise TandemError("bad_setting", problem, param="redis_url")
            if not _whole(url):
                problem = f"redis_url = {shown(url)}: not a host and a port; write / ? # @ and , of a password as %2F"
                raise TandemError("bad_setting", f"{problem} %3F %23 %40 and %2C", param="redis_url")

    @property
    def urls(self) -> tuple[str, ...]:
        """The nodes."""
        return tuple(url.strip() for url in self.redis_url.split(",") if url.strip())

    @property
    def key_prefix(self) -> bytes:
        """What all keys of the service begin with."""
        return self.prefix_of(self.service)

    def prefix_of(self, service: str) -> bytes:
        """The same of another service; of this one where `service` is empty."""
        return f"{service or self.service}:".encode()


def shown(url: str) -> str:
    """A node's address without user and password, also where it is written wrongly."""
    if not _whole(url):
        scheme, mark, _ = url.partition("://")
        return f"{scheme}://{_HIDDEN}" if mark else _HIDDEN
    parts = urlsplit(url)
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    host = f"{name}:{parts.port or 6379}" if name else ""
    return f"{parts.scheme}://{host}{parts.path}"


def without_secrets(text: str, urls: Iterable[str]) -> str:
    """What a node or the client library says, without passwords of these URLs and what the node repeats of them."""
    text, echo, _ = text.partition(_ECHO)
    for parts in map(urlsplit, urls):
        for secret in (parts.password, *parse_qs(parts.query).get("password", ())):
            for written in (secret, unquote(secret)) if secret else ():
                text = text.replace(written, _HIDDEN)
    return f"{text} …" if echo else text


def _whole(url: str) -> bool:
    """Whether host, port and path are where they are looked for: a password may have characters that end it early."""
    try:
        parts = urlsplit(url)
        elsewhere = "@" in parts.path + parts.query + parts.fragment
        return not elsewhere and parts.port != 0 and (bool(parts.hostname) or parts.netloc[-1:] in ("", "@"))
    except ValueError:
        return False
