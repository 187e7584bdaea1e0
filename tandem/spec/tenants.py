"""Which names the models of a namespace may have, where several tenants share an installation: the decision of
routers, which do not serve others, and of the control plane, which starts none. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Final

from tandem.core.errors import TandemError
from tandem.spec.model_names import claim_of

WORKER_NAME: Final = "tandem-worker"
ROUTER_NAME: Final = "tandem-router"
"""Names in the certificates of workers and of routers."""
_ANY: Final = "*"


@dataclass(frozen=True)
class Tenants:
    """Patterns of names by namespace; in a pattern `*` stands for any text. Without any every namespace may take
    every name. Nothing of the namespaces in `keyless` is served."""

    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keyless: frozenset[str] = frozenset()
    """Namespaces whose ticket key a router cannot read."""

    def refusal(self, namespace: str, names: Iterable[str]) -> str | None:
        """Why a service of the namespace may not have these names, in one sentence; None where it may."""
        if not self.patterns:
            return None
        allowed = self.patterns.get(namespace)
        if allowed is None:
            return f"namespace {namespace} is no tenant's: add it to tenants in the chart's values"
        if namespace in self.keyless:
            return f"the ticket key of namespace {namespace} cannot be read: the router's log says why at its start"
        wrong = next((name for name in names if not any(_matches(pattern, name) for pattern in allowed)), None)
        if wrong is None:
            return None
        cure = "take such a name, or have its pattern added to tenants in the chart's values"
        return f"namespace {namespace} may call its models {' or '.join(allowed)}, and not {wrong!r}: {cure}"

    def refused(self, obj: dict[str, Any]) -> str | None:
        """The same of a ModelService's object."""
        return self.refusal(str(obj["metadata"].get("namespace", "")), names_of(obj)) if self.patterns else None


EVERYBODY: Final = Tenants()
"""An installation that is not parted into tenants."""


def read_tenants(entries: Iterable[str], param: str = "tenants") -> Tenants:
    """Tenants from `NAMESPACE=PATTERN` each. Raises `bad_setting` for what is not of that form."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        namespace, equals, pattern = entry.partition("=")
        if not (namespace and equals and pattern):
            raise TandemError("bad_setting", f"{param} = {entry!r}: expected NAMESPACE=PATTERN", param=param)
        found[namespace] = (*found.get(namespace, ()), pattern)
    return Tenants(found)


def tenant_name(name: str | None, namespace: str) -> str:
    """The name in the certificates of a tenant's workers, where it is `name` without tenants."""
    return f"{name or WORKER_NAME}.{namespace}"


def names_of(obj: dict[str, Any]) -> tuple[str, ...]:
    """Every name by which clients may ask for what a ModelService's object serves: model, aliases and adapters. What
    cannot be read of it has none."""
    spec = _part(obj, "spec")
    engines = [_part(spec, "engine"), *(_part(pool, "engine") for pool in _listed(spec, "pools"))]
    adapters = [_adapter(each) for engine in engines for each in _texts(engine, "adapters")]
    names = (claim_of(obj).model, *_texts(_part(spec, "model"), "aliases"), *adapters)
    return tuple(dict.fromkeys(names))


def _adapter(place: str) -> str:
    """The name of an adapter from `NAME=DIRECTORY` or `DIRECTORY`."""
    name, equals, directory = place.rpartition("=")
    return name if equals else PurePosixPath(directory).name


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split(_ANY))), re.DOTALL)


def _matches(pattern: str, name: str) -> bool:
    return _regex(pattern).fullmatch(name) is not None


def _part(value: Any, key: str) -> dict[str, Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _listed(value: Any, key: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def _texts(value: Any, key: str) -> list[str]:
    return [each for each in _listed(value, key) if isinstance(each, str)]
