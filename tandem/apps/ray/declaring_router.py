"""A router whose configuration at Serve says which services there are: for `serve run` and RayService, where nobody
is there to talk to the hub."""

import asyncio
import logging
from typing import Any, Final

from ray import serve

from tandem.apps.ray.declared import declared_of, no_more
from tandem.apps.ray.hub_actor import make_hub
from tandem.apps.ray.hub_client import hub_of_this_cluster
from tandem.apps.ray.options import RaySettings
from tandem.apps.ray.placing import without_meaning
from tandem.apps.ray.ray_serving import mark_routers
from tandem.apps.ray.router_replica import RouterReplica
from tandem.core.errors import TandemError
from tandem.process.logs import event

_log = logging.getLogger(__name__)

_START_S: Final = 60.0
_ASK_S: Final = 30.0


class DeclaringRouter(RouterReplica):
    """A router that also makes the hub where there is none, and passes on which services are wanted. All routers of
    an application have the same configuration, so that it does not matter which of them is the last to pass it on."""

    async def __init__(self, plan: bytes, vllm_python: str | None = None) -> None:  # type: ignore[misc]  # as above
        await asyncio.to_thread(make_hub, RaySettings(vllm_python=vllm_python))
        await hub_of_this_cluster().call("key", within_s=_START_S)
        await asyncio.to_thread(mark_routers, serve.get_replica_context().app_name, plan)
        await super().__init__(plan)

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Called by Serve after the start and for each change of `user_config`, which keeps the routers running.

        Services that this application has declared before and does not any more leave. Raises `bad_setting` for what
        the hub refuses: Serve then reports the application as unhealthy.
        """
        application = serve.get_replica_context().app_name
        wanted = declared_of(user_config, application)
        hub = hub_of_this_cluster()
        for service in wanted:
            for sentence in without_meaning(service):
                event(_log, "not_for_ray", level=logging.WARNING, service=service.metadata.name, field=sentence)
            await hub.call("want", service, within_s=_ASK_S)
        for name, within_s in no_more(await hub.call("services"), wanted, application):
            self._leaving = asyncio.create_task(_leave(name, within_s), name=f"{name} leaves")


async def _leave(name: str, within_s: float) -> None:
    """Begin it, and wait for it apart from what Serve waits for."""
    try:
        hub = hub_of_this_cluster()
        asked = await hub.call("turn", within_s=_START_S)
        await hub.call("leave", name, within_s, asked, within_s=3 * within_s + _START_S)
    except TandemError as error:
        event(_log, "service_stays", level=logging.WARNING, service=name, problem=error.message)
