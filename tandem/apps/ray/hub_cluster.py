"""The hub's objects as routers see them: a `tandem.kube.cluster.Cluster` that can only be read."""

from collections.abc import AsyncGenerator
from typing import Final, NoReturn

from tandem.apps.ray.hub_client import CALL_S, HubCalls
from tandem.core.errors import TandemError
from tandem.kube.cluster import Page, Selector, WatchEvent
from tandem.kube.kinds import Json, Ref

WAIT_S: Final = 10.0
"""Seconds for which the hub keeps a question for changes while there are none."""


class HubCluster:
    """Lists and watches by calls to the hub; while it is away they raise `link_lost`, and reflectors keep what they
    have. Everything that writes, and `get`, raises `not_allowed`."""

    def __init__(self, hub: HubCalls, wait_s: float = WAIT_S) -> None:
        self._hub = hub
        self._wait_s = wait_s

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        page: Page = await self._hub.call("list_page", selector, limit, token)
        return page

    async def watch(self, selector: Selector, version: str) -> AsyncGenerator[WatchEvent, None]:
        """Changes after `version`, without end; the hub answers with a bookmark after each silent wait."""
        while True:
            changes: tuple[WatchEvent, ...] = await self._hub.call(
                "changes", selector, version, self._wait_s, within_s=self._wait_s + CALL_S
            )
            for change in changes:
                version = change.object["metadata"]["resourceVersion"]
                yield change
            if not changes:
                yield WatchEvent("bookmark", {"metadata": {"resourceVersion": version}})

    async def close(self) -> None:
        """Nothing is held: each call stands alone."""

    async def get(self, ref: Ref) -> Json:
        _refuse("get")

    async def apply(self, obj: Json, manager: str, *, force: bool = True) -> Json:
        _refuse("apply")

    async def apply_status(self, obj: Json, manager: str) -> Json:
        _refuse("apply_status")

    async def create(self, obj: Json) -> Json:
        _refuse("create")

    async def update(self, obj: Json) -> Json:
        _refuse("update")

    async def scale(self, ref: Ref, replicas: int) -> None:
        _refuse("scale")

    async def delete(self, ref: Ref, *, uid: str | None = None, version: str | None = None) -> None:
        _refuse("delete")


def _refuse(what: str) -> NoReturn:
    raise TandemError("not_allowed", f"{what}: routers only list and watch the objects of the hub")
