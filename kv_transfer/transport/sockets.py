"""TCP connections for KV: listening, connecting, and the addresses of both (`scheme://host:port`)."""

import asyncio
import socket
from urllib.parse import urlsplit

from tandem.core.errors import TandemError
from tandem.process.listening import bound


async def listen(host: str, port: int, backlog: int) -> socket.socket:
    """A non-blocking listener; port 0 lets the system choose. Raises `bad_setting` when the address cannot be had."""
    try:
        listener = bound(host, port)
    except (OSError, ValueError) as error:
        problem = f"cannot serve KV blocks on {host}, port {port}: {_why(error)}"
        raise TandemError("bad_setting", problem, param="kv_address") from error
    listener.listen(backlog)
    return listener


async def connect(address: str, scheme: str, buffer_bytes: int | None) -> socket.socket:
    """A connected socket. Raises `transfer_failed`; the caller bounds the time."""
    host, port = split(address, scheme)
    try:
        family, target = await resolve(host, port)
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except (OSError, ValueError) as error:
        raise _unreachable(address, error) from error
    try:
        tune(sock, buffer_bytes)
        await asyncio.get_running_loop().sock_connect(sock, target)
    except OSError as error:
        sock.close()
        raise _unreachable(address, error) from error
    except BaseException:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket, buffer_bytes: int | None) -> None:
    """Send at once; `buffer_bytes` None leaves the kernel's buffers to its own tuning."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)


def shown(scheme: str, host: str, port: int) -> str:
    """The address to hand out."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def split(address: str, scheme: str) -> tuple[str, int]:
    """Host and port. Raises `transfer_failed`."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme != scheme or not host or not port:
        raise TandemError("transfer_failed", f"{address[:200]!r} is no {scheme}://host:port address")
    return host, port


async def resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Numeric addresses need no lookup; names are looked up off the loop by asyncio. Raises `OSError`, and
    `ValueError` for what no host can be called."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return family, (host, port)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, target = found[0]
    return family, (str(target[0]), port)


def _unreachable(address: str, error: OSError | ValueError) -> TandemError:
    return TandemError("transfer_failed", f"cannot reach {address}: {_why(error)}")


def _why(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
