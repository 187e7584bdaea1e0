"""Decides whether a router can work with the worker that answers at an address. Pure."""

from typing import Final

from router.fleet.services import ServiceRegistry
from router.fleet.worker_counts import ROLES
from tandem.core.errors import TandemError
from tandem.core.messages import PROTOCOL_VERSION, Hello, RouterMessage

_SPOKEN: Final = (PROTOCOL_VERSION, PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1)


def check_hello(address: str, first: RouterMessage, services: ServiceRegistry) -> Hello:
    """The introduction that the first message must be, of a worker of the service that the member is known to belong
    to. Raises `protocol_mismatch`, and `bad_setting` for a worker that says it is of another one, or another pod: who
    may run pods in one namespace must not be given the requests of another, nor keep its workers out."""
    if not isinstance(first, Hello):
        raise TandemError("protocol_mismatch", f"{address} did not begin with its introduction")
    if first.protocol not in _SPOKEN:
        reason = f"worker {first.worker_id} speaks protocol {first.protocol}, this router {PROTOCOL_VERSION}"
        raise TandemError("protocol_mismatch", reason)
    if first.role not in ROLES:
        raise TandemError("protocol_mismatch", f"worker {first.worker_id} has the unknown role {first.role!r}")
    if first.layout.block_tokens <= 0:
        reason = f"worker {first.worker_id} has blocks of {first.layout.block_tokens} tokens"
        raise TandemError("protocol_mismatch", reason)
    member, facts = services.member(address), services.of(first.model)
    if member is None:
        return first
    who = f"worker {first.worker_id} at {address} is a pod of the service {member.service}"
    if facts is None or facts.name != member.service:
        raise TandemError("bad_setting", f"{who} and says that it serves {first.model!r}", param="members")
    if member.pod and first.worker_id != member.pod:
        raise TandemError("bad_setting", f"{who}, called {member.pod}: a pod's worker has its name", param="members")
    names = [adapter.name for adapter in first.adapters]
    if (refused := services.tenants.refusal(member.service.partition("/")[0], names)) is not None:
        raise TandemError("bad_setting", f"{who}, and its adapters cannot be served: {refused}", param="members")
    return first
