"""A request's status from whichever router had it: behind one URL there may be several, as on Ray."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from tandem.apps.cli.registry import find
from tandem.apps.cli.router_client import EndedStatus, RunningStatus, fetch_status
from tandem.apps.client.http import Target
from tandem.core.errors import TandemError
from tandem.link.address import join_host, split_host


def routers_behind(target: Target, environment: Mapping[str, str]) -> tuple[Target, ...]:
    """The routers of this user's platform at a target, by ports of their own; none where no such platform is
    known."""
    try:
        members = find(f"http://{join_host(target.host, target.port)}", environment).members
    except TandemError:
        return ()
    found = []
    for member in members:
        at, port = split_host(member.address) if member.role == "router" else ("", None)
        if at and port is not None and (at, port) != (target.host, target.port):
            found.append(replace(target, host=at, port=port, tls=False, base=""))
    return tuple(found)


async def fetch_status_from(target: Target, others: Sequence[Target], request_id: str) -> RunningStatus | EndedStatus:
    """The status of a request from the router at `target`, or else from the first of the others that knows it.
    Raises what the first one raises where none does: `not_found`, `link_lost`."""
    try:
        return await fetch_status(target, request_id)
    except TandemError as error:
        if error.code != "not_found":
            raise
        for other in others:
            with suppress(TandemError):
                return await fetch_status(other, request_id)
        raise
