"""Sockets that servers listen on, of either family of addresses."""

import errno
import socket
from typing import Final

EVERYWHERE: Final = "::"
"""The host that stands for all addresses of this machine: IPv6 and IPv4, or IPv4 alone where there is no IPv6."""
_IPV4: Final = "0.0.0.0"
_NO_IPV6: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def bound(host: str, port: int) -> socket.socket:
    """A non-blocking socket bound to an address or name of this machine, on which nothing listens yet; port 0 lets
    the system choose. An empty host is `EVERYWHERE`. Names are looked up, which blocks.

    Raises `OSError`, and `UnicodeError` for what no host can be called.
    """
    if host in ("", EVERYWHERE):
        try:
            return _bound(socket.AF_INET6, (EVERYWHERE, port), both=True)
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
            host = _IPV4
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return _bound(family, address)


def _bound(family: int, address: tuple[object, ...], *, both: bool = False) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            # Whatever the system's default is.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
