"""Which revision of a service a specification is: equal ones run the same workers.

A revision is over everything that changes what workers are or compute. What only says how many there are, what they
cost, under which names they are asked for, who gets their traffic, or how one revision replaces another, is left out.
Fields that have their defaults are left out, too, so that a newer control plane with more fields finds the same
revision.
"""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from tandem.spec.model import Model
from tandem.spec.pool import Accelerator, Pool
from tandem.spec.service import Spec
from tandem.spec.text import camel

DIGITS: Final = 10
_TENANT: Final = b" of a tenant"
_NO_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType({})
SPEC_LEFT_OUT: Final = frozenset({"rollout", "routing", "slo", "router", "store"})
POOL_LEFT_OUT: Final = frozenset({"replicas", "autoscaling", "spare", "drain_seconds"})
MODEL_LEFT_OUT: Final = frozenset({"aliases"})
ACCELERATOR_LEFT_OUT: Final = frozenset({"dollars_per_hour"})
_LEFT_OUT: Final[Mapping[type, frozenset[str]]] = MappingProxyType(
    {Spec: SPEC_LEFT_OUT, Pool: POOL_LEFT_OUT, Model: MODEL_LEFT_OUT, Accelerator: ACCELERATOR_LEFT_OUT}
)


def revision_of(spec: Spec, defaults: Mapping[str, Any] = _NO_DEFAULTS, *, tenant: bool = False) -> str:
    """10 hexadecimal digits. The order of pools is of no matter. `defaults` are parts of worker pods that an
    installation gives to every service, as plain values. Workers of a `tenant` are another revision: they let others
    in than without tenants."""
    whole = {**_canonical(spec), **({"defaults": defaults} if defaults else {})}
    text = msgspec.json.encode(whole, order="sorted") + (_TENANT if tenant else b"")
    return hashlib.sha256(text).hexdigest()[:DIGITS]


def _canonical(value: Any) -> Any:
    """Plain values in which nothing has its default."""
    if isinstance(value, Spec):
        pools = sorted(value.pools, key=lambda pool: pool.name)
        return {**_fields(value), "pools": [_canonical(pool) for pool in pools]}
    if isinstance(value, msgspec.Struct):
        return _fields(value)
    if isinstance(value, tuple | list):
        return [_canonical(one) for one in value]
    return value


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    left_out = _LEFT_OUT.get(type(value), frozenset())
    values = {
        camel(field.name): (_canonical(getattr(value, field.name)), _canonical(_default(field)))
        for field in msgspec.structs.fields(value)
        if field.name not in left_out
    }
    return {key: found for key, (found, default) in values.items() if found != default}


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
