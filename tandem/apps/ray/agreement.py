"""Whether what a command was given agrees with the routers and the hub that run. Pure."""

from typing import Final, NoReturn

from tandem.apps.ray.options import RaySettings
from tandem.apps.ray.serving import RouterApp
from tandem.core.errors import TandemError

_OF_HUB: Final = ("url", "router_key", "vllm_python")
"""Settings that a hub acts by for as long as it lives."""


def agree(settings: RaySettings, running: RouterApp) -> None:
    """Raises `bad_setting` for an option that was given and that the routers which run have not."""
    ways = {"haproxy"} if running.route_prefix is not None else {"direct"}
    if running.port:
        ways.add("direct")
    what = f"the routers that run (application {running.name})"
    prefix = settings.route_prefix
    checks = (
        ("ingress", settings.ingress, settings.ingress in ways, f"are {running.where}"),
        ("route_prefix", prefix, prefix == running.route_prefix, f"are {running.where}"),
        ("routers", settings.routers, running.replicas in (None, settings.routers), f"are {running.replicas}"),
        ("api_keys", settings.api_keys, settings.api_keys == running.api_keys, _keys(running)),
    )
    for name, asked, agrees, runs in checks:
        if name in settings.given and not agrees:
            disagree(name, asked, f"{what} {runs}")


def different(asked: RaySettings, told: RaySettings) -> list[str]:
    """Names of what a hub was told otherwise than it would be now; `told` is as it shows it."""
    shown = asked.shown()
    return [name for name in _OF_HUB if getattr(shown, name) != getattr(told, name)]


def disagree(name: str, asked: object, runs: str) -> NoReturn:
    """Raises `bad_setting` for an option."""
    flag = "--" + name.replace("_", "-")
    problem = f"{flag} is {asked}, but {runs}; leave {flag} out to use them, or end all services first"
    raise TandemError("bad_setting", problem, param=name)


def _keys(running: RouterApp) -> str:
    return "take no API keys" if running.api_keys is None else f"take the API keys of {running.api_keys}"
