"""Gives pods their model: from a claim, a directory of the image, a hub, or a fetch before the worker starts.

Workers read directories and hub ids. For a model in a bucket or a registry, or one pinned by a digest, `tandem fetch`
brings and checks it in an init container: once per node where the installation gives nodes a cache.
"""

from dataclasses import dataclass, replace
from typing import Final

from control_plane.objects.installation import Installation
from tandem.kube.kinds import Json
from tandem.spec.model import FETCHED, Model

_CLAIM: Final = "pvc://"
_MODELS: Final = "/models"
CACHE: Final = "/var/cache/tandem"
"""Where containers have the cache of fetched models."""
_LINKS: Final = "/var/run/tandem/model"
_DEMO: Final = "demo"


@dataclass(frozen=True)
class ModelVolume:
    """Where the pods of a worker find the model. `source` is the model as the worker's settings name it."""

    source: str
    volumes: tuple[Json, ...] = ()
    mounts: tuple[Json, ...] = ()
    environment: tuple[Json, ...] = ()
    fetch: tuple[str, ...] = ()
    """Arguments of `tandem fetch`, where that has to run first."""
    on_node: bool = False
    """Whether the cache is a directory of the node."""


def model_volume(model: Model, installation: Installation) -> ModelVolume:
    """The model volume of the pods that serve `model`."""
    if model.source.startswith(_CLAIM):
        claim, _, path = model.source.removeprefix(_CLAIM).partition("/")
        volume = {"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        mount = {"name": "model", "mountPath": _MODELS, "readOnly": True}
        directory = f"{_MODELS}/{path}".rstrip("/")
        check = (directory, "--digest", model.digest) if model.digest else ()
        return ModelVolume(directory, (volume,), (mount,), fetch=check)
    if model.source.startswith(FETCHED) or (model.digest and model.source != _DEMO):
        return _fetched(model, installation)
    for local in ("file://", "hf://"):
        if model.source.startswith(local):
            return _cached(model.source.removeprefix(local), installation)
    return _cached(model.source, installation)


def _fetched(model: Model, installation: Installation) -> ModelVolume:
    """The worker finds a link to the directory of the cache that has it."""
    cached, link = _cached(model.source, installation), f"{_LINKS}/model"
    fetch = [model.source, "--cache", f"{CACHE}/weights", "--link", link, "--report", f"{_LINKS}/fetch.json"]
    for flag, value in (("--revision", model.revision), ("--digest", model.digest)):
        fetch += [flag, value] if value else []
    volume, mount = {"name": "model", "emptyDir": {"sizeLimit": "16Mi"}}, {"name": "model", "mountPath": _LINKS}
    return replace(
        cached,
        source=link,
        volumes=(*cached.volumes, volume),
        mounts=(*cached.mounts, mount),
        fetch=tuple(fetch),
    )


def _cached(source: str, installation: Installation) -> ModelVolume:
    path = installation.cache_host_path
    place: Json = {"hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    if path is None:
        place = {"emptyDir": {"sizeLimit": installation.cache_size}}
    volume = {"name": "cache", **place}
    mount = {"name": "cache", "mountPath": CACHE}
    home = {"name": "HF_HOME", "value": f"{CACHE}/hub"}
    return ModelVolume(source, (volume,), (mount,), (home,), on_node=path is not None)
