"""Calls to the hub from other processes of a Ray cluster: each with a bound, and with Tandem's errors for Ray's."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from tandem.core.errors import TandemError
from tandem.kube.cluster import Conflict, Expired, NotFound

HUB: Final = "tandem-hub"
"""The hub's name as an actor."""
NAMESPACE: Final = "tandem"
"""The namespace of Ray in which it has that name."""
CALL_S: Final = 10.0
HUB_S: Final = 120.0
"""Seconds that a replica which starts waits for the hub, which may be coming back."""

_CLUSTER_ERRORS: Final = {"not_found": NotFound, "conflict": Conflict, "stale_epoch": Expired}


class HubCalls(Protocol):
    """What replicas, routers and commands ask of the hub (`tandem.apps.ray.hub`), by the names of its methods."""

    async def call(self, method: str, *arguments: object, within_s: float = CALL_S) -> Any:
        """The result of a method. Raises `NotFound`, `Conflict` and `Expired` as a `Cluster` does, `TandemError` as
        the method did, and `link_lost` when no answer comes within the bound."""
        ...


class HubClient:
    """`HubCalls` over an actor of Ray. `find` gives the actor's handle, and is asked again after every lost call: a
    hub that comes back on another node, or a new one, has another handle."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find
        self._handle: Any = None

    async def call(self, method: str, *arguments: object, within_s: float = CALL_S) -> Any:
        try:
            async with asyncio.timeout(within_s):
                if self._handle is None:
                    # Finding it asks the cluster's head, and blocks.
                    self._handle = await asyncio.to_thread(self._find)
                result: Awaitable[Any] = getattr(self._handle, method).remote(*arguments)
                return await result
        except TimeoutError:
            self._handle = None
            raise TandemError("link_lost", f"the hub has not answered {method} within {within_s:g} s") from None
        except Exception as error:
            raise self._translated(method, error) from error

    def _translated(self, method: str, error: Exception) -> TandemError:
        """What the hub itself raised, or that it cannot be reached."""
        cause = error if isinstance(error, TandemError) else getattr(error, "cause", None)
        if isinstance(cause, TandemError):
            known = _CLUSTER_ERRORS.get(cause.code)
            return cause if known is None else known(cause.message)
        self._handle = None
        return TandemError("link_lost", f"the hub cannot be asked for {method}: {type(error).__name__}: {error}")


def hub_of_this_cluster() -> HubClient:
    """The hub of the Ray cluster that this process belongs to."""
    import ray

    return HubClient(lambda: ray.get_actor(HUB, namespace=NAMESPACE))
