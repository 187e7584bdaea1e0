"""`Serving` on a Ray cluster. This module and `serve_client` alone call what is private or unstable in Ray 2.60."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from ray import serve
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_list, _internal_kv_put
from ray.serve.exceptions import RayServeException

from tandem.apps.ray import cluster
from tandem.apps.ray.application import revision_application, router_application
from tandem.apps.ray.cluster import ClusterNodes
from tandem.apps.ray.hub_store import STATE
from tandem.apps.ray.options import RaySettings
from tandem.apps.ray.policy import WANTED_KEY, encode_table
from tandem.apps.ray.router_replica import RouterPlan
from tandem.apps.ray.serve_client import serve_client
from tandem.apps.ray.serving import (
    ROUTER,
    ROUTERS,
    AppState,
    AppStatus,
    DeploymentState,
    RevisionApp,
    RouterApp,
    routes,
)
from tandem.core.errors import TandemError
from tandem.spec.service import RouterSpec

_DEPLOYED: Final = "tandem:app:"
"""Prefix of the keys that name Tandem's own applications of workers."""
_MARKED: Final = "tandem:routers:"
"""Prefix of the keys that name applications of routers and keep their plans."""
_ASK_S: Final = 10.0
_DEPLOY_S: Final = 60.0
_NAME_S: Final = 30.0
_START_S: Final = 120.0
_END_S: Final = 120.0
"""Serve itself lets its ingress drain for 30 s, unless its environment says otherwise."""
_STATUS: Final[Mapping[str, AppStatus]] = {
    "NOT_STARTED": "deploying",
    "DEPLOYING": "deploying",
    "RUNNING": "running",
    "UNHEALTHY": "unhealthy",
    "DEPLOY_FAILED": "failed",
    "DELETING": "deleting",
}
_RUNNING: Final = ("RUNNING", "PENDING_MIGRATION")
_Result = TypeVar("_Result")


class OneThread:
    """Calls to Ray that block: one after the other in a thread, each with a bound. One that is stuck delays the next
    ones, each for its own bound at most."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)

    async def run(self, what: str, within_s: float, work: Callable[[], _Result]) -> _Result:
        """The result of `work`. Raises `link_lost` where Ray does not answer, `bad_setting` for what it refuses."""
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except TimeoutError:
            raise TandemError("link_lost", f"Ray has not answered {what} within {within_s:g} s") from None
        except TandemError:
            raise
        except RayServeException as error:
            raise TandemError("link_lost", f"Ray Serve does not run: {error}") from error
        except (ValueError, TypeError) as error:
            raise TandemError("bad_setting", f"Ray refuses to {what}: {error}") from error
        except Exception as error:
            raise TandemError("link_lost", f"Ray: {what}: {type(error).__name__}: {error}") from error


class RayServing:
    """`tandem.apps.ray.serving.Serving` for the hub, in a process of the cluster. It never starts Serve."""

    def __init__(self, vllm_python: str | None = None) -> None:
        self._vllm_python = vllm_python
        self._serve = OneThread("serve client")
        self._table = OneThread("table of wanted replicas")
        self._turn = 0

    async def running(self) -> Mapping[str, AppState]:
        return await self._serve.run("say what runs", _ASK_S, _running)

    async def state(self, name: str) -> AppState | None:
        """An application of that name, whoever's; None where there is none. Changes nothing, so that commands may ask
        beside the hub."""
        return await self._serve.run("say what runs", _ASK_S, partial(_state_if_any, name))

    async def routers(self) -> tuple[str, ...]:
        """Names of the applications of Tandem's routers. Where Serve does not run there is none."""
        return tuple(each.name for each in await self.router_apps())

    async def router_apps(self) -> tuple[RouterApp, ...]:
        """The applications of Tandem's routers, those that are being deleted included."""
        return await self._serve.run("say what runs", _ASK_S, _of_routers)

    async def others(self) -> tuple[str, ...]:
        """Names of the applications that are not Tandem's."""
        return await self._serve.run("say what runs", _ASK_S, _not_ours)

    async def deploy(self, app: RevisionApp) -> None:
        await self._serve.run(f"deploy {app.name}", _DEPLOY_S, lambda: _deploy(app, self._vllm_python))

    async def want(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Write the table that `WantedReplicas` follows. It goes stale unless this is called every few seconds."""
        self._turn += 1
        table = encode_table(counts, self._turn)
        await self._table.run("keep the table", _ASK_S, lambda: _internal_kv_put(WANTED_KEY, table))

    async def delete(self, name: str) -> None:
        await self._serve.run(f"delete {name}", _ASK_S, lambda: _delete(name))


class RayStore:
    """`tandem.apps.ray.hub_store.HubStore` in Ray's internal key-value store, which is in the cluster's head and,
    where one is set up, in its Redis."""

    def __init__(self) -> None:
        self._kept = OneThread("hub store")

    async def get(self, key: str) -> bytes | None:
        found: bytes | None = await self._kept.run(f"give {key}", _ASK_S, lambda: _internal_kv_get(key))
        return found

    async def put(self, key: str, value: bytes) -> None:
        await self._kept.run(f"keep {key}", _ASK_S, lambda: _internal_kv_put(key, value))

    async def clear(self) -> None:
        """Forget what the hub has kept, the table, and which applications were of routers, save those that are there:
        the next command may have deployed routers already. The epoch stays, so that older hubs stay older."""
        for key in (STATE, WANTED_KEY):
            await self._kept.run(f"forget {key}", _ASK_S, partial(_internal_kv_del, key))
        # Serve may be on its way to its end; a mark without its application means nothing, and goes another time.
        with suppress(TandemError):
            await self._kept.run("forget routers", _ASK_S, _forget_ended_routers)


class RayCluster:
    """`tandem.apps.ray.cluster.SharedCluster` on the cluster that this process is connected to. `make_hub` is
    `tandem.apps.ray.hub_actor.make_hub`."""

    def __init__(self, make_hub: Callable[[RaySettings], object]) -> None:
        self._make_hub = make_hub
        self._ray = OneThread("commands")
        serving = RayServing()
        self.routers, self.state, self.others = serving.router_apps, serving.state, serving.others

    async def nodes(self) -> ClusterNodes:
        return await self._ray.run("name its nodes", _NAME_S, cluster.cluster_nodes)

    async def start_serve(self, settings: RaySettings, nodes: ClusterNodes, port: int) -> bool:
        return await self._ray.run("start Serve", _START_S, lambda: cluster.start_ingress(settings, nodes, port))

    async def ingress_port(self) -> int:
        return await self._ray.run("name the port of Serve", _NAME_S, cluster.ingress_port)

    async def make_hub(self, settings: RaySettings) -> None:
        await self._ray.run("make the hub", _NAME_S, lambda: self._make_hub(settings))

    async def deploy_routers(self, settings: RaySettings, count: int, router: RouterSpec) -> None:
        await self._ray.run("deploy routers", _START_S, lambda: _deploy_routers(settings, count, router))

    async def delete_routers(self, *, wait: bool) -> None:
        await self._ray.run("delete routers", _END_S, lambda: serve.delete(ROUTERS, _blocking=wait))

    async def stop_serve(self, nodes: ClusterNodes) -> None:
        await self._ray.run("end Serve", _END_S, lambda: cluster.stop_serve(nodes))


def mark_routers(application: str, plan: bytes) -> None:
    """Keep that an application is one of routers with this plan (`RouterPlan.encoded`). It is known by that even
    while it is being deleted, and whatever a configuration has put in the place of its options."""
    _internal_kv_put(_MARKED + application, plan)


def _applications() -> Mapping[str, Any]:
    """Serve's own details of all applications, by name. Where Serve does not run there are none."""
    client = serve_client()
    found: Mapping[str, Any] = {} if client is None else client.get_serve_details()["applications"]
    return found


def _running() -> dict[str, AppState]:
    applications, deployed = _applications(), _deployed()
    for name in deployed - applications.keys():
        _internal_kv_del(_DEPLOYED + name)
    return {name: _state(app) for name, app in applications.items() if name in deployed}


def _deployed() -> set[str]:
    """The names of applications that were deployed here. An application that is being made or deleted has no
    deployments by which to know it."""
    return {key.decode().removeprefix(_DEPLOYED) for key in _internal_kv_list(_DEPLOYED)}


def _state_if_any(name: str) -> AppState | None:
    app = _applications().get(name)
    return None if app is None else _state(app)


def _of_routers() -> tuple[RouterApp, ...]:
    plans = _plans()
    found = _applications().items()
    return tuple(_router_app(name, app, plans.get(name)) for name, app in found if routes(name, app, plans))


def _not_ours() -> tuple[str, ...]:
    deployed, plans = _deployed(), _plans()
    found = _applications().items()
    return tuple(name for name, app in found if name not in deployed and not routes(name, app, plans))


def _forget_ended_routers() -> None:
    marked = _internal_kv_list(_MARKED)
    there = _applications()
    for key in marked:
        if key.decode().removeprefix(_MARKED) not in there:
            _internal_kv_del(key)


def _plans() -> dict[str, RouterPlan]:
    """The plans of routers by the names of their applications, some of which may have ended."""
    found = {}
    for key in _internal_kv_list(_MARKED):
        plan = _internal_kv_get(key)
        if plan is not None:
            found[key.decode().removeprefix(_MARKED)] = msgspec.msgpack.decode(plan, type=RouterPlan)
    return found


def _deploy_routers(settings: RaySettings, count: int, router: RouterSpec) -> None:
    """Make the application of routers; return before they listen. It must not be there: deployed again, all of them
    would be replaced at once."""
    behind = settings.ingress == "haproxy"
    plan = RouterPlan(0 if behind else router.port, router.max_streams, api_keys=settings.api_keys)
    application = router_application(plan, count, router.max_streams)
    target = serve.RunTarget(application, name=ROUTERS, route_prefix=settings.route_prefix if behind else None)
    mark_routers(ROUTERS, plan.encoded())
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    # A hub that has ended in between may have forgotten the mark.
    mark_routers(ROUTERS, plan.encoded())


def _deploy(app: RevisionApp, vllm_python: str | None) -> None:
    if serve_client() is None:
        raise TandemError("link_lost", "Ray Serve does not run on this cluster")
    if app.name in _applications():
        if app.name not in _deployed():
            raise TandemError("bad_setting", f"an application {app.name} that is not Tandem's runs on this cluster")
        return
    target = serve.RunTarget(revision_application(app, vllm_python), name=app.name, route_prefix=None)
    _internal_kv_put(_DEPLOYED + app.name, b"1")
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def _delete(name: str) -> None:
    if name in _deployed() and name in _applications():
        serve.delete(name, _blocking=False)


def _router_app(name: str, app: Any, plan: RouterPlan | None) -> RouterApp:
    """An application of routers by Serve's details of it, and by its plan where that is known."""
    state = _state(app)
    said = dict.fromkeys((state.message, *(each.message for each in state.deployments.values())))
    return RouterApp(
        name=name,
        status=state.status,
        message="\n".join(each for each in said if each),
        route_prefix=app.get("route_prefix"),
        replicas=app["deployments"][ROUTER]["target_num_replicas"] if ROUTER in app["deployments"] else None,
        port=0 if plan is None else plan.port,
        api_keys=None if plan is None else plan.api_keys,
    )


def _state(app: Any) -> AppState:
    deployments = {name: _deployment(each) for name, each in app["deployments"].items()}
    return AppState(_STATUS[str(_plain(app["status"]))], deployments, app.get("message") or "")


def _deployment(deployment: Any) -> DeploymentState:
    states = [str(_plain(each["state"])) for each in deployment["replicas"]]
    running, stopping = sum(each in _RUNNING for each in states), states.count("STOPPING")
    starting = len(states) - running - stopping - states.count("STOPPED")
    return DeploymentState(running, starting, stopping, deployment.get("message") or "")


def _plain(value: Any) -> Any:
    """An enumeration's value: Serve gives details with either."""
    return getattr(value, "value", value)
