"""Routers list and watch the hub's objects; its absence is `link_lost`, and never an empty list."""

import asyncio
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

import pytest

from tandem.apps.ray.hub_client import HubClient
from tandem.apps.ray.hub_cluster import HubCluster
from tandem.apps.simulation.loop import run
from tandem.core.errors import TandemError
from tandem.kube.cluster import Conflict, Expired, NotFound, Page, Selector, WatchEvent
from tandem.kube.kinds import POD, Json, Ref

PODS = Selector(POD)


class Method:
    """A method of an actor, as Ray offers it."""

    def __init__(self, actor: "Actor") -> None:
        self._actor = actor

    def remote(self, *arguments: object) -> "Reference":
        self._actor.asked.append(arguments)
        return Reference(self._actor)


class Reference:
    """What a call gives at once."""

    def __init__(self, actor: "Actor") -> None:
        self._actor = actor

    def future(self) -> "Future[Any]":
        answer, future = self._actor.answers.pop(0), Future[Any]()
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        elif answer is not FOREVER:
            future.set_result(answer)
        self._actor.given.append(future)
        return future


FOREVER = object()


class TaskFailed(Exception):
    """As Ray wraps what a method of an actor raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Actor:
    """An actor whose methods give these answers, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.given: list[Future[Any]] = []
        self.found = 0
        self.answers = list(answers)

    async def find(self) -> "Actor":
        self.found += 1
        return self

    def __getattr__(self, name: str) -> Method:
        return Method(self)


def pod(version: str) -> Json:
    return {"metadata": {"name": "p", "resourceVersion": version}}


async def test_a_page_is_the_hubs_own() -> None:
    page = Page((pod("3"),), "3", None)
    actor = Actor(page)
    assert await HubCluster(HubClient(actor.find)).list_page(PODS, 5) == page
    assert actor.asked == [(PODS, 5, None)]


async def test_a_watch_goes_on_from_what_it_has_seen_and_bookmarks_silence() -> None:
    actor = Actor(
        (WatchEvent("added", pod("4")), WatchEvent("deleted", pod("6"))), (), (WatchEvent("added", pod("7")),)
    )
    seen = []
    async with aclosing(HubCluster(HubClient(actor.find), 2.5).watch(PODS, "3")) as changes:
        async for change in changes:
            seen.append((change.type, change.object["metadata"]["resourceVersion"]))
            if len(seen) == 4:
                break
    assert seen == [("added", "4"), ("deleted", "6"), ("bookmark", "6"), ("added", "7")]
    assert [each[1:] for each in actor.asked] == [("3", 2.5), ("6", 2.5), ("6", 2.5)]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (TandemError("stale_epoch", "too old"), Expired),
        (TandemError("not_found", "gone"), NotFound),
        (TandemError("conflict", "there"), Conflict),
    ],
)
async def test_errors_of_a_cluster_stay_what_they_are(raised: TandemError, expected: type[TandemError]) -> None:
    client = HubClient(Actor(TaskFailed(raised), TaskFailed(TandemError("bad_setting", "no"))).find)
    with pytest.raises(expected, match=raised.message):
        await client.call("changes")
    with pytest.raises(TandemError, match="no") as refused:
        await client.call("want")
    assert refused.value.code == "bad_setting"


def test_a_lost_call_is_made_again_until_its_bound() -> None:
    async def tell() -> None:
        actor = Actor(RuntimeError("actor is made again"), "back", RuntimeError("actor died"), FOREVER, "there")
        client = HubClient(actor.find)
        assert await client.call("key") == "back"
        with pytest.raises(TandemError, match=r"not answered key within 0\.5 s: RuntimeError: actor died") as lost:
            await client.call("key", within_s=0.5)
        assert lost.value.code == "link_lost"
        assert await client.call("key") == "there"
        assert actor.found == 4, "it is looked for again after every lost call"

    run(lambda _loop: tell())


async def test_who_stops_waiting_cancels_nothing_of_ray() -> None:
    actor = Actor(FOREVER)
    asking = asyncio.create_task(HubClient(actor.find).call("events"))
    await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    actor.given[0].set_result("Ray sets it all the same, and has no use for an exception")


def test_a_change_carries_the_bound_of_its_caller_in_the_hubs_own_time() -> None:
    async def tell() -> None:
        await asyncio.sleep(100.0)
        actor = Actor(5000.0, RuntimeError("lost"), 5001.0, "r1", 90.0, "r2", "services")
        client = HubClient(actor.find)
        assert await client.call("want", "s", within_s=30.0) == "r1"
        assert actor.asked[:2] == [(), (5030.0, "want", "s")]
        assert actor.asked[2] == (), "another life of the hub has another clock"
        assert actor.asked[3] == (5001.0 + 30.0 - 0.25, "want", "s"), "the bound is still the caller's"
        await asyncio.sleep(50.0)
        assert await client.call("scale", "s", within_s=10.0) == "r2"
        assert actor.asked[4:] == [(), (100.0, "scale", "s")], "the hub's clock was set meanwhile"
        assert await client.call("services") == "services"
        assert actor.asked[6:] == [()]

    run(lambda _loop: tell())


async def test_a_hub_that_cannot_be_found_is_link_lost() -> None:
    async def find() -> Any:
        raise ValueError("no such actor")

    with pytest.raises(TandemError, match="no such actor"):
        await HubClient(find).call("key")


async def test_routers_write_nothing() -> None:
    cluster = HubCluster(HubClient(Actor().find))
    ref = Ref(POD, "a", "b")
    for writing in (
        cluster.get(ref),
        cluster.apply({}, "m"),
        cluster.apply_status({}, "m"),
        cluster.create({}),
        cluster.update({}),
        cluster.scale(ref, 1),
        cluster.delete(ref),
    ):
        with pytest.raises(TandemError, match="only list and watch"):
            await writing
    await cluster.close()
