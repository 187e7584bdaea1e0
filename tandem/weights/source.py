"""Parse `model.source`, which says where a model's files are."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from tandem.core.errors import TandemError

Scheme = Literal["file", "hf", "s3", "gs", "az", "oci"]
SCHEMES: Final[Mapping[str, Scheme]] = MappingProxyType(
    {
        "file": "file",
        "pvc": "file",
        "hf": "hf",
        "s3": "s3",
        "gs": "gs",
        "az": "az",
        "abfs": "az",
        "abfss": "az",
        "oci": "oci",
    }
)
"""Kind of origin by the scheme of `model.source`."""
_BUCKETS: Final = ("s3", "gs", "az")
_HUB_ID: Final = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}")
_OCI: Final = re.compile(
    r"(?P<registry>[^/]+)/(?P<repository>[^:@]+)(:(?P<tag>[\w.-]+))?(@(?P<digest>sha256:\w{64}))?"
)


@dataclass(frozen=True)
class Source:
    """`location` is a directory, `OWNER/NAME`, `BUCKET/PREFIX`, `REGISTRY/REPOSITORY`, or of Azure `CONTAINER/PREFIX`
    or `CONTAINER@HOST/PREFIX`, where the host names the account; `revision` is a branch, tag or commit of a hub, or a
    tag or digest of a registry, empty for the default."""

    scheme: Scheme
    location: str
    revision: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.location}" + (f"@{self.revision}" if self.revision else "")


def parse_source(text: str, revision: str = "", volumes: Path = Path("/")) -> Source:
    """`text` as in `model.source`. `pvc://CLAIM/PATH` is the directory `volumes`/CLAIM/PATH, where the claim is
    mounted. Raises `bad_setting` with what is wrong."""
    scheme, found, rest = text.partition("://")
    if not found:
        if _HUB_ID.fullmatch(text) and not Path(text).is_dir():
            return Source("hf", text, revision)
        return Source("file", text)
    if scheme not in SCHEMES or not rest:
        raise _bad(text, f"it must be a directory, a hub id, or begin with one of {', '.join(SCHEMES)}")
    if scheme == "pvc":
        return Source("file", str(volumes / rest))
    if scheme == "hf":
        repository, _, own = rest.partition("@")
        if not _HUB_ID.fullmatch(repository):
            raise _bad(text, "a hub id is OWNER/NAME")
        return Source("hf", repository, own or revision)
    if scheme == "oci":
        match = _OCI.fullmatch(rest)
        if match is None:
            raise _bad(text, "an image is REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:DIGEST")
        wanted = match["digest"] or match["tag"] or revision or "latest"
        return Source("oci", f"{match['registry']}/{match['repository']}", wanted)
    kind = SCHEMES[scheme]
    if kind not in _BUCKETS:
        return Source(kind, rest, revision)
    if rest.startswith("/"):
        raise _bad(text, "it names no bucket")
    return Source(kind, rest.rstrip("/"), revision)


def _bad(text: str, why: str) -> TandemError:
    return TandemError("bad_setting", f"model.source {text!r}: {why}", param="model.source")
