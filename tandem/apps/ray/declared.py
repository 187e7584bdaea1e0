"""Services as the configuration of routers at Serve declares them. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from tandem.apps.ray.placing import refusals
from tandem.core.errors import TandemError
from tandem.kube.kinds import Json
from tandem.spec.reading import service_of
from tandem.spec.service import ModelService

SERVICES: Final = "services"
"""The key of `user_config` that lists ModelServices."""
DECLARED: Final = "ray.tandem.dev/declared-by"
"""Annotation of a service: the application of Serve that declares it. Without it nobody takes the service away."""
_MARGIN_S: Final = 5.0
_DRAIN_S: Final = 30.0


def user_config(services: Iterable[ModelService]) -> dict[str, Any]:
    """The `user_config` that declares these services."""
    return {SERVICES: [msgspec.to_builtins(service) for service in services]}


def declared_of(config: dict[str, Any], application: str) -> tuple[ModelService, ...]:
    """The services that a `user_config` declares, marked as those of `application`. Raises `bad_setting` with the
    place and what is wrong."""
    listed = config.get(SERVICES)
    if not isinstance(listed, list) or config.keys() != {SERVICES}:
        raise TandemError("bad_setting", f"user_config: expected one key `{SERVICES}`, a list of ModelServices")
    found = []
    for index, each in enumerate(listed):
        try:
            service = service_of(each)
        except TandemError as error:
            raise TandemError("bad_setting", f"{SERVICES}[{index}].{error.message}") from error
        for problem in refusals(service):
            raise TandemError("bad_setting", f"{SERVICES}[{index}].{problem}")
        noted = {**service.metadata.annotations, DECLARED: application}
        found.append(msgspec.structs.replace(service, metadata=_with(service, noted)))
    names = [service.metadata.name for service in found]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise TandemError("bad_setting", f"{SERVICES}: {', '.join(sorted(repeated))} is listed twice")
    return tuple(found)


def no_more(there: Iterable[Json], wanted: Sequence[ModelService], application: str) -> Iterator[tuple[str, float]]:
    """The names of services that `application` has declared and does not any more, and the seconds that each may take
    to drain."""
    names = {service.metadata.name for service in wanted}
    for obj in there:
        metadata = obj["metadata"]
        if metadata["name"] in names or (metadata.get("annotations") or {}).get(DECLARED) != application:
            continue
        drains = [float(pool.get("drainSeconds", _DRAIN_S)) for pool in obj["spec"]["pools"]]
        yield str(metadata["name"]), max(drains) + _MARGIN_S


def _with(service: ModelService, annotations: dict[str, str]) -> Any:
    return msgspec.structs.replace(service.metadata, annotations=annotations)
