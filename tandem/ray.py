"""Tandem as an application of Ray Serve: `serve run tandem.ray:app model=FILE`, and `import_path: tandem.ray:app` in
the configuration of a RayService."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tandem.apps.ray.declared import user_config
from tandem.apps.ray.up_options import read_for_ray


class Args(BaseModel):
    """The arguments of `app`."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    """A ModelService file, read where the application is built. Without one the deployment `router` gets its services
    from its `user_config`."""
    ingress: Literal["haproxy", "direct"] = "haproxy"
    """With `direct` routers also listen on the service's port of their nodes; Serve's ingress reaches them too."""
    routers: int = Field(1, ge=1)
    vllm_python: str | None = None
    """The interpreter of vLLM workers on every node; by default that of Ray."""


def app(args: Args) -> Any:
    """The application of routers, which make the hub and declare the services to it. Calls nothing of Ray, which is
    not yet connected. Raises `bad_setting` for a file that cannot be on Ray."""
    from tandem.apps.ray.application import router_application
    from tandem.apps.ray.declaring_router import DeclaringRouter
    from tandem.apps.ray.router_replica import RouterPlan

    services = () if args.model is None else (read_for_ray(Path(args.model)),)
    router = services[0].spec.router if services else None
    port = router.port if router is not None and args.ingress == "direct" else 0
    streams = None if router is None else router.max_streams
    return router_application(
        RouterPlan(port=port, max_streams=streams),
        args.routers,
        streams,
        replica=DeclaringRouter,
        user_config=user_config(services),
        more=(args.vllm_python,),
    )
