"""Decides whether a router can work with the worker that answers at an address. Pure."""

from typing import Final

from router.fleet.services import ServiceRegistry
from router.fleet.worker_counts import ROLES
from tandem.core.errors import TandemError
from tandem.core.messages import PROTOCOL_VERSION, Hello, RouterMessage

_SPOKEN: Final = (PROTOCOL_VERSION, PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1)


def check_hello(address: str, first: RouterMessage, services: ServiceRegistry) -> Hello:
    """The introduction that the first message must be, of a worker of the service that the member is known to belong
    to. Raises `protocol_mismatch`, and `bad_setting` for a worker that says it is of another one: who may run pods in
    one namespace must not be given the requests of another."""
    if not isinstance(first, Hello):
        raise TandemError("protocol_mismatch", f"{address} did not begin with its introduction")
    if first.protocol not in _SPOKEN:
        reason = f"worker {first.worker_id} speaks protocol {first.protocol}, this router {PROTOCOL_VERSION}"
        raise TandemError("protocol_mismatch", reason)
    if first.role not in ROLES:
        raise TandemError("protocol_mismatch", f"worker {first.worker_id} has the unknown role {first.role!r}")
    member, facts = services.member(address), services.of(first.model)
    if member is None:
        return first
    who = f"worker {first.worker_id} at {address} is a pod of the service {member.service}"
    if facts is None or facts.name != member.service:
        raise TandemError("bad_setting", f"{who} and says that it serves {first.model!r}", param="members")
    names = [adapter.name for adapter in first.adapters]
    if (refused := services.tenants.refusal(member.service.partition("/")[0], names)) is not None:
        raise TandemError("bad_setting", f"{who}, and its adapters cannot be served: {refused}", param="members")
    return first
