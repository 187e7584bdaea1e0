"""Calls to the hub from other processes of a Ray cluster: each with a bound, and with Tandem's errors for Ray's."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
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

_AGAIN_S: Final = 0.25
_CHANGES: Final = frozenset({"want", "scale", "leave", "started_serve"})
"""Methods that change what is wanted."""
_CLUSTER_ERRORS: Final = {"not_found": NotFound, "conflict": Conflict, "stale_epoch": Expired}


class HubCalls(Protocol):
    """What replicas, routers and commands ask of the hub (`tandem.apps.ray.hub`), by the names of its methods."""

    async def call(self, method: str, *arguments: object, within_s: float = CALL_S) -> Any:
        """The result of a method. Raises `NotFound`, `Conflict` and `Expired` as a `Cluster` does, `TandemError` as
        the method did, and `link_lost` when there is no hub, or no answer comes within the bound."""
        ...


class HubClient:
    """`HubCalls` over an actor of Ray. `find` gives the actor's handle, and is asked again after every lost call: a
    hub that comes back on another node, or a new one, has another handle.

    A call that is lost is made again until its bound. What changes something carries the bound along, in the hub's
    own time, so that it is not done once its caller has given up.
    """

    def __init__(self, find: Callable[[], Awaitable[Any]]) -> None:
        self._find = find
        self._handle: Any = None

    async def call(self, method: str, *arguments: object, within_s: float = CALL_S) -> Any:
        lost = ""
        try:
            async with asyncio.timeout(within_s) as bound:
                until = bound.when()
                assert until is not None
                while True:
                    try:
                        return await self._ask(method, arguments, until)
                    except Exception as error:
                        told = _told(method, error)
                        if told is not None:
                            self._forget(told)
                            raise told from error
                        lost = f": {type(error).__name__}: {error}"
                    self._forget()
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            self._forget()
            raise TandemError("link_lost", f"the hub has not answered {method} within {within_s:g} s{lost}") from None

    async def _ask(self, method: str, arguments: tuple[object, ...], until: float) -> Any:
        if self._handle is None:
            self._handle = await self._find()
        if method not in _CHANGES:
            return await _answer(getattr(self._handle, method).remote(*arguments))
        # Every time, as the hub's clock may be set.
        hub_time: float = await _answer(self._handle.time.remote())
        ahead_s = hub_time - asyncio.get_running_loop().time()
        return await _answer(self._handle.change.remote(until + ahead_s, method, *arguments))

    def _forget(self, told: TandemError | None = None) -> None:
        """Find the hub anew next time, unless it is what has told this."""
        if told is None or told.code == "link_lost":
            self._handle = None


async def _answer(reference: Any) -> Any:
    """What a call gives. Who stops waiting for it does not cancel the future of Ray itself: the thread that reads for
    a client (`ray://`) ends with the answer to a future that was cancelled, and every later call waits in vain."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def take(told: Future[Any]) -> None:
        if answer.done():
            return
        error = told.exception()
        if error is None:
            answer.set_result(told.result())
        else:
            answer.set_exception(error)

    def tell(told: Future[Any]) -> None:
        # The loop may have ended before the answer has come.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(take, told)

    reference.future().add_done_callback(tell)
    return await answer


def _told(method: str, error: Exception) -> TandemError | None:
    """What the hub itself has raised, or that there is none; None where the call was lost on its way."""
    cause = error if isinstance(error, TandemError) else getattr(error, "cause", None)
    if isinstance(cause, TandemError):
        known = _CLUSTER_ERRORS.get(cause.code)
        return cause if known is None else known(cause.message)
    if cause is None and not isinstance(error, ValueError):
        return None
    return TandemError("link_lost", f"the hub cannot be asked for {method}: {type(error).__name__}: {error}")


def hub_of_this_cluster() -> HubClient:
    """The hub of the Ray cluster that this process belongs to."""
    import ray

    async def find() -> Any:
        # It asks the cluster's head, and blocks. Raises `ValueError` where there is no hub.
        return await asyncio.to_thread(ray.get_actor, HUB, namespace=NAMESPACE)

    return HubClient(find)
