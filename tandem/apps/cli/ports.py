"""Whether the ports asked for are free, before anything is started."""

import errno
import random
import socket
from collections.abc import Mapping
from typing import Final

from tandem.core.errors import TandemError
from tandem.process.listening import bound

_OWN: Final = range(15_000, 30_000)
_TRIES: Final = 20


def check_free(host: str, ports: Mapping[str, int]) -> None:
    """`ports` are numbers by the flag that sets them; 0 is always free. Raises `bad_setting`."""
    taken: dict[int, str] = {}
    for flag, port in ports.items():
        if port in taken:
            raise TandemError("bad_setting", f"{taken[port]} and {flag} are both {port}", param=flag)
        if port:
            _check(host, flag, port)
            taken[port] = flag


def free_port(host: str) -> int:
    """A port without a listener now. It lies below those that systems give to processes that listen on port 0 or
    connect: another process may have got one of these before the intended process listens."""
    for port in random.sample(_OWN, _TRIES):
        try:
            _bound(host, port).close()
        except OSError:
            continue
        return port
    with _bound(host, 0) as listener:
        return int(listener.getsockname()[1])


def _check(host: str, flag: str, port: int) -> None:
    try:
        _bound(host, port).close()
    except OSError as error:
        where = f"port {port} on {host}"
        if error.errno == errno.EADDRINUSE:
            raise TandemError("bad_setting", f"{where} is in use; choose another with {flag}", param=flag) from error
        if error.errno == errno.EACCES:
            raise TandemError("bad_setting", f"{where} needs more rights; choose another with {flag}") from error
        raise TandemError("bad_setting", f"{where} cannot be listened on: {error.strerror}", param=flag) from error


def _bound(host: str, port: int) -> socket.socket:
    listener = bound(host, port)
    try:
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    return listener
