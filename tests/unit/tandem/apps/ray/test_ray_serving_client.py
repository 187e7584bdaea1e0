"""What is made of Serve's details and of the marks of routers, with Ray's key-value store in memory."""

from typing import Any

import pytest

pytest.importorskip("ray.serve")

from tandem.apps.ray import ray_serving
from tandem.apps.ray.hub_store import EPOCH, STATE
from tandem.apps.ray.ray_serving import RayServing, RayStore, mark_routers
from tandem.apps.ray.router_replica import RouterPlan
from tandem.apps.ray.serving import ROUTER, ROUTERS
from tandem.core.errors import TandemError

PLAN = RouterPlan(api_keys="/k").encoded()
Details = dict[str, Any]


class Kept:
    """Ray's key-value store, and the applications of Serve."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {STATE: b"s", EPOCH: b"1"}
        self.applications: Details = {}
        self.away = False

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str | bytes) -> bytes | None:
        return self.values.get(_text(key))

    def keys(self, prefix: str) -> list[bytes]:
        return [key.encode() for key in self.values if key.startswith(prefix)]

    def delete(self, key: str | bytes, *, del_by_prefix: bool = False) -> None:
        name = _text(key)
        gone = [each for each in self.values if each == name or (del_by_prefix and each.startswith(name))]
        for each in gone:
            del self.values[each]

    def apps(self) -> Details:
        if self.away:
            raise TandemError("link_lost", "Serve ends")
        return self.applications


def _text(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode()


def deploying() -> Details:
    """An application that has no deployments yet."""
    return {"status": "DEPLOYING", "deployments": {}, "message": "", "route_prefix": "/"}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    there = Kept()
    for name, call in (("put", there.put), ("get", there.get), ("list", there.keys), ("del", there.delete)):
        monkeypatch.setattr(ray_serving, f"_internal_kv_{name}", call)
    monkeypatch.setattr(ray_serving, "_applications", there.apps)
    return there


async def test_a_hub_that_ends_forgets_no_routers_that_the_next_command_has_deployed(kept: Kept) -> None:
    mark_routers(ROUTERS, PLAN)
    mark_routers("gone", PLAN)
    kept.applications[ROUTERS] = deploying()
    await RayStore().clear()
    assert set(kept.values) == {EPOCH, "tandem:routers:tandem"}
    kept.applications.clear()
    await RayStore().clear()
    assert set(kept.values) == {EPOCH}


async def test_how_many_routers_there_are_to_be_is_not_known_while_they_are_being_made(
    kept: Kept,
) -> None:
    mark_routers(ROUTERS, PLAN)
    kept.applications[ROUTERS] = deploying()
    (found,) = await RayServing().router_apps()
    assert (found.replicas, found.api_keys) == (None, "/k")
    deployment = {"target_num_replicas": 2, "replicas": [], "message": "", "deployment_config": {}}
    kept.applications[ROUTERS] = {**deploying(), "deployments": {ROUTER: deployment}}
    (found,) = await RayServing().router_apps()
    assert found.replicas == 2


async def test_a_hub_ends_although_serve_does_not_answer_any_more(kept: Kept) -> None:
    mark_routers(ROUTERS, PLAN)
    kept.away = True
    await RayStore().clear()
    assert set(kept.values) == {EPOCH, "tandem:routers:tandem"}
