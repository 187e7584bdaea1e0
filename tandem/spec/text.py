"""Kinds of text in a specification, each bounded, and what a person is told when one does not fit."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tandem.spec.quantity import PATTERN as QUANTITY

_NAME: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_POOL_NAME: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_LABEL: Final = r"^([-a-z0-9.]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_DIGEST: Final = r"^sha256:[a-f0-9]{64}$"
_SHARE: Final = r"^(100|[1-9]?[0-9])%$"
_CRON: Final = r"^\S+ \S+ \S+ \S+ \S+$"
_NO_BLANK: Final = r"^\S+$"
_ARGUMENT: Final = r"^[a-z][a-z0-9_]*$"
_DATA_KEY: Final = r"^[-._a-zA-Z0-9]+$"

UNFIT: Final[Mapping[str, str]] = MappingProxyType(
    {
        QUANTITY: "is not a size such as 512Mi",
        _NAME: "must be lower-case letters, digits and dashes",
        _POOL_NAME: "must be lower-case letters, digits and dashes, a letter first",
        _LABEL: "is not a label's key such as topology.kubernetes.io/zone",
        _DIGEST: "must be sha256: and 64 hexadecimal digits",
        _SHARE: "must be a number, or a percentage from 0% to 100%",
        _CRON: "must be five fields as in cron: minute, hour, day, month, weekday",
        _NO_BLANK: "must not have blanks",
        _ARGUMENT: "must be an argument's name with underscores",
        _DATA_KEY: "must be a Secret's key: letters, digits, dashes, underscores and dots",
    }
)
"""What is said of text that does not match a pattern."""

Name = Annotated[str, Meta(pattern=_NAME, max_length=63)]
PoolName = Annotated[str, Meta(pattern=_POOL_NAME, max_length=20)]
"""Short, since names of what a pool consists of end in it and in a revision."""
LabelKey = Annotated[str, Meta(pattern=_LABEL, max_length=128)]
Line = Annotated[str, Meta(min_length=1, max_length=1024)]
Source = Annotated[str, Meta(pattern=_NO_BLANK, max_length=1024)]
ModelName = Annotated[str, Meta(pattern=_NO_BLANK, max_length=128)]
Digest = Annotated[str, Meta(pattern=_DIGEST, max_length=71)]
Cron = Annotated[str, Meta(pattern=_CRON, max_length=128)]
DataKey = Annotated[str, Meta(pattern=_DATA_KEY, max_length=253)]
"""Of what a Secret or a ConfigMap has."""
Argument = Annotated[str, Meta(pattern=_ARGUMENT, max_length=64)]
Count = Annotated[int, Meta(ge=1, le=2_147_483_647)]
Share = Annotated[str, Meta(pattern=_SHARE, max_length=4)] | Annotated[int, Meta(ge=0, le=10_000)]
"""A number of replicas, or a percentage of them."""


SET: Final = {"x-kubernetes-list-type": "set"}
"""A list in which nothing occurs twice."""


class Strict(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Fields are camelCase in files; what is not known is refused by its path."""


def camel(field: str) -> str:
    """A field's name in files."""
    first, *rest = field.split("_")
    return first + "".join(part.title() for part in rest)
