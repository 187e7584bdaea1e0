"""Resolve `model.source` to a directory on this node."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tandem.core.errors import TandemError
from tandem.weights.bucket_origin import BucketOrigin
from tandem.weights.cache import Brought, Progress, WeightsCache
from tandem.weights.directory import DirectoryOrigin, digest_on_disk
from tandem.weights.hub_origin import HubOrigin
from tandem.weights.listing import INDEX, missing_shards, wanted
from tandem.weights.oci_origin import OciOrigin
from tandem.weights.origin import Origin
from tandem.weights.source import Source, parse_source

LOGIN: Final = "OCI_LOGIN"
"""Environment variable: `USER:PASSWORD` for a registry."""


def bring_model(
    text: str,
    cache: WeightsCache,
    *,
    revision: str = "",
    digest: str = "",
    volumes: Path = Path("/"),
    tell: Callable[[Progress], None] = lambda progress: None,
    environment: Mapping[str, str] = os.environ,
) -> Brought:
    """Bring the model that `model.source` names to this node. A directory stays where it is and is checked;
    everything else goes through the cache. Credentials are in the environment.

    Raises as `WeightsCache.bring`, and `bad_setting` for an invalid source.
    """
    source = parse_source(text, revision, volumes)
    if source.scheme == "file":
        return _in_place(Path(source.location), digest)
    return cache.bring(str(source), lambda: origin_of(source, environment), digest, tell)


def bring_texts(
    text: str,
    cache: WeightsCache,
    *,
    revision: str = "",
    digest: str = "",
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """The directory with the model's files but for its weights, of a source that is not a directory. Raises as
    `bring_model`."""
    source = parse_source(text, revision)
    assert source.scheme != "file", "a directory is where it is"
    return cache.bring(str(source), lambda: origin_of(source, environment), digest, without_weights=True).directory


def origin_of(source: Source, environment: Mapping[str, str]) -> Origin:
    """The origin of a source that is not a directory. Raises `bad_setting` for credentials that cannot be read."""
    if source.scheme == "hf":
        return HubOrigin(source.location, source.revision)
    if source.scheme == "oci":
        return OciOrigin(source.location, source.revision, environment.get(LOGIN, ""))
    return BucketOrigin(source, environment)


def _in_place(directory: Path, digest: str) -> Brought:
    began = time.monotonic()
    if not directory.is_dir():
        raise TandemError("bad_model", f"{directory} is no directory", param="model.source")
    files = wanted(DirectoryOrigin(directory).files(), str(directory))
    if any(each.name == INDEX for each in files):
        lost = missing_shards((directory / INDEX).read_bytes(), files)
        if lost:
            raise TandemError("bad_model", f"{directory}: {', '.join(lost)} missing, which {INDEX} names")
    found = digest_on_disk(directory, files) if digest else ""
    if found != digest:
        raise TandemError("bad_model", f"{directory}: its digest is {found}, and should be {digest}")
    return Brought(directory, found, 0, 0, time.monotonic() - began)
