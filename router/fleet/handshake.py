"""Decides whether a router can work with the worker that answers at an address. Pure."""

from typing import Final

from router.fleet.worker_counts import ROLES
from tandem.core.errors import TandemError
from tandem.core.messages import PROTOCOL_VERSION, Hello, RouterMessage

_SPOKEN: Final = (PROTOCOL_VERSION, PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1)


def check_hello(address: str, first: RouterMessage) -> Hello:
    """The introduction that the first message must be. Raises `protocol_mismatch`."""
    if not isinstance(first, Hello):
        raise TandemError("protocol_mismatch", f"{address} did not begin with its introduction")
    if first.protocol not in _SPOKEN:
        reason = f"worker {first.worker_id} speaks protocol {first.protocol}, this router {PROTOCOL_VERSION}"
        raise TandemError("protocol_mismatch", reason)
    if first.role not in ROLES:
        raise TandemError("protocol_mismatch", f"worker {first.worker_id} has the unknown role {first.role!r}")
    return first
