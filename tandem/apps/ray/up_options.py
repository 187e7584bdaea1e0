"""The options of `tandem up --on ray`. They can be read, and refused, where Ray is not installed."""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tandem.apps.cli.single_node import check_handoff
from tandem.apps.cli.up_options import add_place
from tandem.apps.ray.options import RaySettings
from tandem.apps.ray.placing import refusals
from tandem.core.errors import TandemError
from tandem.spec.reading import check, read_service
from tandem.spec.service import API_VERSION, ModelService

CLIENT: Final = "ray://"
KEY_VARIABLE: Final = "OPENAI_API_KEY"
"""Whence the key by which the command and the hub ask routers, where those want one."""
SHARED: Final = ("ingress", "routers", "route_prefix", "vllm_python", "api_keys")
"""Options about what all services of a cluster share, by their names in `RaySettings`: who comes later finds them as
they are."""
_PORT_MAX: Final = 65535


@dataclass(frozen=True)
class RayUpOptions:
    """What to run, on which cluster, and how the routers are reached."""

    service: ModelService
    file: Path
    settings: RaySettings
    start_s: float
    """Seconds within which everything must be ready."""
    reread: Callable[[], ModelService]
    """Reads the service again from the file, with the same flags. Raises `bad_setting`."""


def parse(arguments: Sequence[str]) -> RayUpOptions:
    """Raises `bad_setting` for what cannot be on Ray, naming the path of it; argparse itself exits with 2."""
    given = _parser().parse_args(arguments)
    _check(given)
    asked = {name: getattr(given, name) for name in SHARED if getattr(given, name) is not None}
    if "route_prefix" in asked:
        # As Serve wants it.
        asked["route_prefix"] = asked["route_prefix"].rstrip("/") or "/"
    settings = RaySettings(
        address=given.address,
        keep=given.keep,
        given=frozenset(asked),
        router_key=os.environ.get(KEY_VARIABLE, ""),
        **asked,
    )
    if settings.api_keys is not None and not settings.router_key:
        problem = (
            f'--api-keys: the hub asks routers, too: set {KEY_VARIABLE} to a key of that file with "operator": true'
        )
        raise TandemError("bad_setting", problem, param="api_keys")

    def read() -> ModelService:
        return read_for_ray(given.file, given.port)

    return RayUpOptions(read(), given.file, settings, given.start_timeout, read)


def read_for_ray(path: Path, port: int | None = None) -> ModelService:
    """A checked service from a YAML file that can be run on Ray; with `port` that one instead of the file's. Raises
    `bad_setting` naming the file and the path of what is wrong."""
    service = read_service(path)
    if port is not None:
        router = msgspec.structs.replace(service.spec.router, port=port)
        service = msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, router=router))
    problem = check(service) or next(refusals(service), None)
    if problem is not None:
        raise TandemError("bad_setting", f"{path}: {problem}")
    if not service.spec.router.port:
        raise TandemError("bad_setting", f"{path}: spec.router.port is 0; on Ray clients need a port that is known")
    try:
        check_handoff(service)
    except TandemError as error:
        raise TandemError(error.code, f"{path}: {error.message}", param=error.param) from error
    return service


def _check(given: argparse.Namespace) -> None:
    """Raises `bad_setting`."""
    if given.routers is not None and given.routers < 1:
        raise TandemError("bad_setting", f"--routers is {given.routers}; expected at least 1", param="routers")
    if given.route_prefix is not None and not given.route_prefix.startswith("/"):
        problem = f"--route-prefix is {given.route_prefix!r}; it begins with a slash"
        raise TandemError("bad_setting", problem, param="route_prefix")
    if given.address != "auto":
        host_and_port(given.address)


def host_and_port(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `ray://HOST:PORT`. Raises `bad_setting`."""
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
        problem = f"--address is {address!r}; expected auto, HOST:PORT or {CLIENT}HOST:PORT"
        raise TandemError("bad_setting", problem, param="address")
    return host.strip("[]"), int(port)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem up --on ray",
        description="Run the workers and routers of a ModelService on a Ray cluster, and follow edits of its file.",
        epilog="Ctrl-C drains the workers and takes the service away; a second one waits for nothing.",
    )
    parser.add_argument("file", type=Path, help=f"a ModelService ({API_VERSION}) as YAML")
    add_place(parser)
    parser.add_argument(
        "--address", default="auto",
        help=f"the Ray cluster: auto (the default: the one that this machine is a node of), HOST:PORT, or {CLIENT}"
        "HOST:PORT from a machine that is no node of it",
    )  # fmt: skip
    parser.add_argument(
        "--ingress", choices=("haproxy", "direct"),
        help="how clients reach the routers: through HAProxy on Serve's port of the head (the default), or each on "
        "its own port of its node",
    )  # fmt: skip
    parser.add_argument(
        "--routers", type=int, metavar="N", help="how many, each on a node of its own (default 2; 1 on one node)"
    )
    parser.add_argument("--route-prefix", metavar="PATH", help="of the routers at Serve's ingress (default /)")
    parser.add_argument("--port", type=int, help="OpenAI REST port (default: of the file, or 8000)")
    parser.add_argument(
        "--vllm-python", metavar="PATH", help="the interpreter of vLLM workers on every node (default: that of Ray)"
    )
    parser.add_argument(
        "--api-keys", metavar="PATH",
        help="a file of API keys on every node of routers (default: none, and everybody in reach may ask); a key of "
        f"it with \"operator\": true is wanted in {KEY_VARIABLE}",
    )  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="leave everything running when this command ends")
    parser.add_argument("--start-timeout", type=float, default=600.0, help="seconds until everything must be ready")
    return parser
