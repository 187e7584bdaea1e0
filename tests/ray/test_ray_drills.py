"""Faults under 30 streams: nodes of workers and of routers die, the head's state and Serve's controller go away,
replicas die with their workers, pools grow and shrink, revisions take turns. Nobody's answer breaks, and nothing is
left."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any

import msgspec
import psutil
import pytest
import pytest_asyncio

from tandem.apps.chaos.client import RESUMES
from tandem.apps.chaos.drill.session import Bounds, open_session
from tandem.apps.cli import drill_settings
from tandem.apps.client.http import Target
from tandem.apps.ray.hub_client import HUB, NAMESPACE, HubClient
from tandem.apps.ray.serving import ROUTERS
from tandem.spec.service import ModelService
from tests.ray.asking import end_hub, eventually, listed
from tests.ray.conftest import HTTP_PORT, RayStage, address_of
from tests.ray.drilling import STREAMS, WHOLE_S, Drilled, at, ended, going_on, names_of, segments, target_of

pytestmark = pytest.mark.timeout(600)
"""Starting the stage counts as part of its first test, and machines are busy."""
END_S = 180.0

NAME = "drill"
URL = f"http://127.0.0.1:{HTTP_PORT}"
WORKERS_ALONE, ROUTER_ALONE = 1, 2
"""Nodes: one has a prefill and a decode worker, the other one a router. The head has all three."""
POOLS = ("prefill", "decode")
SERVICE: dict[str, Any] = {
    "apiVersion": "tandem.dev/v1alpha1",
    "kind": "ModelService",
    "metadata": {
        "name": NAME,
        "annotations": {
            f"ray.tandem.dev/{pool}.{key}": value
            for pool in POOLS
            for key, value in (("resources", "worker=1"), ("max-replicas-per-node", "1"))
        },
    },
    "spec": {
        "model": {"source": "demo", "name": NAME},
        "engine": {"type": "simulated"},
        "pools": [{"name": pool, "role": pool, "replicas": 2, "drainSeconds": 5} for pool in POOLS],
    },
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def drilled(ray_stage: RayStage) -> AsyncIterator[Drilled]:
    from ray import serve

    from tandem.apps.ray.application import router_application
    from tandem.apps.ray.hub_actor import make_hub
    from tandem.apps.ray.hub_client import hub_of_this_cluster
    from tandem.apps.ray.options import RaySettings
    from tandem.apps.ray.router_replica import RouterPlan

    await end_hub()  # One that serves nothing any more may be about to end.
    make_hub(RaySettings())
    hub = hub_of_this_cluster()
    await hub.call("want", msgspec.convert(SERVICE, ModelService), within_s=60)
    settings = {key: str(drill_settings.ROUTER[key]) for key in drill_settings.ROUTER if "sequences" not in key}
    routers = router_application(RouterPlan(drain_s=2.0, settings=settings), 2, resources={"router": 1})
    await asyncio.to_thread(serve.run, routers, name=ROUTERS, route_prefix="/")
    await eventually(lambda: _serves(hub), WHOLE_S)
    async with open_session(URL, "", "simulated", Bounds(streams=STREAMS, end_s=END_S)) as session:
        platform = Drilled(hub, session)
        await platform.whole()
        yield platform
        await platform.aclose()


async def _serves(hub: HubClient) -> bool:
    entry = await hub.call("entry")
    routers = [each for each in entry.members if each.role == "router"]
    workers = [each for each in entry.members if each.role in POOLS and each.state == "ready"]
    if len(routers) < 2 or len(workers) < 4:
        return False
    # The ingress learns of routers some time after they listen.
    doors = (*(target_of(each) for each in routers), Target("127.0.0.1", HTTP_PORT, False, ""))
    return all([await listed(each, "/v1/models") for each in doors])


@pytest.mark.asyncio(loop_scope="module")
async def test_the_node_of_workers_dies(drilled: Drilled, ray_stage: RayStage) -> None:
    workers = at(await drilled.members(*POOLS), address_of(WORKERS_ALONE))
    assert sorted(each.role for each in workers) == ["decode", "prefill"]
    assert not at(await drilled.members("router"), address_of(WORKERS_ALONE))
    async with drilled.under_load() as load:
        held = await drilled.holding(load, names_of(workers))
        ray_stage.kill_node(WORKERS_ALONE)
        await ended([each.pid for each in workers if each.pid])
        await going_on(load)
    drilled.judged("node of workers killed", load, held)
    ray_stage.return_node(WORKERS_ALONE)
    await drilled.whole()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_node_of_a_router_dies_and_its_clients_return(drilled: Drilled, ray_stage: RayStage) -> None:
    (router,) = at(await drilled.members("router"), address_of(ROUTER_ALONE))
    workers = await drilled.members(*POOLS)
    async with drilled.under_load(RESUMES) as load:
        held = await drilled.holding(load, names_of(workers), router.name)
        ray_stage.kill_node(ROUTER_ALONE)
        await ended([router.pid or 0])
        await going_on(load)
    again = await drilled.asked_again(load)
    drilled.judged(f"node of a router killed, {again} asked again", load, held)
    assert any(each.resumed for each in load.heard)
    assert names_of(await drilled.members(*POOLS)) == names_of(workers)
    ray_stage.return_node(ROUTER_ALONE)
    await drilled.whole()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_head_s_state_is_away_and_serve_s_controller_dies(drilled: Drilled, ray_stage: RayStage) -> None:
    import ray
    from ray.serve.context import _get_global_client

    head, controller = ray_stage.cluster.head_node, _get_global_client()._controller
    workers = await drilled.members(*POOLS)
    before = await drilled.hub.call("pid")
    pid = await asyncio.to_thread(ray.get, controller.get_pid.remote(), timeout=30)
    async with drilled.under_load() as load:
        held = await drilled.holding(load, names_of(workers))
        await asyncio.to_thread(head.kill_gcs_server)
        await going_on(load)
        # Not in a thread: what Ray starts dies with the thread that has started it.
        head.start_gcs_server()
        os.kill(pid, signal.SIGKILL)
        await ended([pid])
        await going_on(load)
    drilled.judged("GCS restarted and controller killed", load, held)
    await drilled.whole()
    assert await drilled.hub.call("pid", within_s=60) == before
    after = await asyncio.to_thread(ray.get, controller.get_pid.remote(), timeout=60)
    assert after != pid
    assert names_of(await drilled.members(*POOLS)) == names_of(workers)


@pytest.mark.asyncio(loop_scope="module")
async def test_replicas_die_with_their_workers(drilled: Drilled) -> None:
    workers = at(await drilled.members(*POOLS), address_of(WORKERS_ALONE))
    assert sorted(each.role for each in workers) == ["decode", "prefill"]
    children = [psutil.Process(each.pid) for each in workers]
    replicas = [child.parent() for child in children]
    async with drilled.under_load() as load:
        held = await drilled.holding(load, names_of(workers))
        for replica in replicas:
            assert replica is not None
            replica.kill()
        await ended([child.pid for child in children])
        await going_on(load)
    drilled.judged("replicas killed", load, held)

    async def replaced() -> bool:
        return not names_of(workers) & names_of(await drilled.members(*POOLS))

    await eventually(replaced, WHOLE_S)
    await drilled.whole()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_revision_is_rolled_over(drilled: Drilled) -> None:
    """The next one has other blocks, which no worker of this one could take over, and may have two workers of a pool
    on a node."""
    changed = deepcopy(SERVICE)
    changed["spec"]["engine"]["blockTokens"] = 32
    changed["metadata"]["annotations"].update({f"ray.tandem.dev/{pool}.max-replicas-per-node": "2" for pool in POOLS})
    revisions: dict[str, str] = {}
    async with drilled.under_load() as load:
        held = await drilled.holding(load, names_of(await drilled.members(*POOLS)))
        await eventually(lambda: _note_revisions(drilled, revisions))
        (before,) = set(revisions.values())
        wanted = await drilled.hub.call("want", msgspec.convert(changed, ModelService), within_s=60)
        assert wanted != before

        async def over() -> bool:
            await _note_revisions(drilled, revisions)
            members = await drilled.members(*POOLS)
            current = [each for each in members if revisions.get(each.name) == wanted and each.state == "ready"]
            return len(current) == len(members) == 4

        await eventually(over, WHOLE_S)
    drilled.judged("revision rolled over", load, held)
    await drilled.whole(revision=wanted)
    stories = await drilled.spans(load.heard)
    pairs = _pairs(stories)
    assert all(stories.values())
    # Others found their prompt cached where it was decoded.
    assert len(pairs) > len(stories) / 2
    assert {revisions[decode] for _, decode in pairs} == {before, wanted}
    assert not [pair for pair in pairs if revisions[pair[0]] != revisions[pair[1]]]


async def _note_revisions(drilled: Drilled, revisions: dict[str, str]) -> bool:
    for each in await listed(drilled.session.target, "/v1/workers"):
        revisions[each["id"]] = each["revision"]
    return bool(revisions)


def _pairs(stories: dict[str, Any]) -> list[tuple[str, str]]:
    """Prefill and decode workers of every attempt that had both."""
    places = [span.attributes for told in stories.values() for span in told if span.name == "place"]
    return [(str(each["prefill"]), str(each["decode"])) for each in places if "prefill" in each]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_pool_grows_and_shrinks(drilled: Drilled) -> None:
    await drilled.hub.call("scale", NAME, {"decode": 1})
    await drilled.whole(decode=1)
    few = await drilled.members("decode")
    async with drilled.under_load() as load:
        held = await drilled.holding(load, names_of(await drilled.members(*POOLS)))
        await drilled.hub.call("scale", NAME, {"decode": 4})
        await drilled.whole(decode=4)
        many = await drilled.members(*POOLS)
        await drilled.holding(load, names_of(many) - names_of(few))
        await drilled.hub.call("scale", NAME, {"decode": 1})
        await drilled.whole(decode=1)
    drilled.judged("decode scaled 1, 4, 1", load, held)
    left = names_of(await drilled.members(*POOLS))
    await ended([each.pid for each in many if each.pid and each.name not in left])


@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_is_left(drilled: Drilled) -> None:
    """Ray's own processes are still there; after Ray was stopped nothing is, which the stage sees to."""
    import ray
    from ray import serve

    assert await asyncio.to_thread(segments)
    members = await drilled.members(*POOLS, "router")
    pids = [each.pid for each in members if each.pid] + [await drilled.hub.call("pid")]
    await drilled.hub.call("leave", NAME, 20.0, within_s=90)
    assert not await asyncio.to_thread(segments)
    await asyncio.to_thread(serve.delete, ROUTERS)

    async def hub_gone() -> bool:
        try:
            await asyncio.to_thread(ray.get_actor, HUB, namespace=NAMESPACE)
        except ValueError:
            return True
        return False

    await eventually(hub_gone, WHOLE_S)
    await ended(pids)
    alive = await asyncio.to_thread(lambda: [each.info["cmdline"] for each in psutil.process_iter(["cmdline"])])
    commands = [each for each in alive if each]
    assert not [each for each in commands if {"prefill_worker", "decode_worker"} & set(each)]
