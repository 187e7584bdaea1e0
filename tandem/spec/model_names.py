"""Which of several services has a model's name, by which clients ask: the decision of routers, which serve it, and of
the control plane, which tells the others."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, order=True)
class Claim:
    """A service's claim on its model's name. `since` is when the service was made, as the API server writes times,
    which sort as text; `service` is its namespace and name."""

    since: str
    service: str
    model: str


def claim_of(obj: dict[str, Any]) -> Claim:
    """The claim of a ModelService's object, whether or not the rest of it can be read."""
    metadata, spec = obj["metadata"], obj.get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    name = model.get("name") if isinstance(model, dict) else None
    service = f"{metadata.get('namespace', '')}/{metadata['name']}"
    return Claim(str(metadata.get("creationTimestamp", "")), service, str(name or metadata["name"]))


def holders(claims: Iterable[Claim]) -> dict[str, Claim]:
    """The claim that holds for each model's name: the oldest service's. The oldest come first."""
    found: dict[str, Claim] = {}
    for claim in sorted(claims):
        found.setdefault(claim.model, claim)
    return found
