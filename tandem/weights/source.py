"""Parse `model.source`, which says where a model's files are."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tandem.core.errors import TandemError

Scheme = Literal["file", "hf", "s3", "oci"]
_SCHEMES: Final[dict[str, Scheme]] = {"file": "file", "pvc": "file", "hf": "hf", "s3": "s3", "oci": "oci"}
_HUB_ID: Final = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}")
_OCI: Final = re.compile(
    r"(?P<registry>[^/]+)/(?P<repository>[^:@]+)(:(?P<tag>[\w.-]+))?(@(?P<digest>sha256:\w{64}))?"
)


@dataclass(frozen=True)
class Source:
    """`location` is a directory, `OWNER/NAME`, `BUCKET/PREFIX` or `REGISTRY/REPOSITORY`; `revision` is a branch, tag
    or commit of a hub, or a tag or digest of a registry, empty for the default."""

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
    if scheme not in _SCHEMES or not rest:
        raise _bad(text, f"it must be a directory, a hub id, or begin with one of {', '.join(_SCHEMES)}")
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
    return Source(_SCHEMES[scheme], rest.rstrip("/") if scheme == "s3" else rest, revision)


def _bad(text: str, why: str) -> TandemError:
    return TandemError("bad_setting", f"model.source {text!r}: {why}", param="model.source")
