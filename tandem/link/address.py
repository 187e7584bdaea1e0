"""Addresses of workers: `tcp://host:port`, or `host:port`."""

from dataclasses import dataclass
from typing import Final

from tandem.core.errors import TandemError

TCP: Final = "tcp"


@dataclass(frozen=True)
class LinkAddress:
    """The address on which a worker listens. `host` is a name or a literal address, without brackets."""

    host: str
    port: int

    @property
    def target(self) -> str:
        """`host:port`, brackets around an IPv6 address."""
        return join_host(self.host, self.port)

    def __str__(self) -> str:
        return f"{TCP}://{self.target}"


def parse_address(address: str) -> LinkAddress:
    """Raises `bad_setting` with the address and what is wrong with it."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = TCP, address
    if scheme == "grpc":
        raise _bad(address, "links over gRPC are gone; workers listen on tcp://host:port")
    if scheme != TCP:
        raise _bad(address, f"the scheme is {scheme!r}, expected {TCP}")
    host, port = split_host(rest)
    if port is None:
        raise _bad(address, "expected host:port with a port from 0 to 65535")
    return LinkAddress(host, port)


def split_host(text: str) -> tuple[str, int | None]:
    """`host:port` in two, brackets removed; the port is None when there is none that could be."""
    host, _, port = text.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else -1
    return host.removeprefix("[").removesuffix("]"), number if 0 <= number <= 65535 else None


def join_host(host: str, port: int) -> str:
    """`host:port`, brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bad(address: str, problem: str) -> TandemError:
    return TandemError("bad_setting", f"worker address {address!r}: {problem}", param="workers")
