"""Reads the text side of a service's model: tokenizer, chat template and context. Blocks; for a thread."""

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from router.api.chat_templates.render import FileRenderer, SimpleRenderer
from router.api.chat_templates.templates import Templates
from router.api.parsers.dialect import ParserSettings
from router.discovery.model_service import TextSource
from router.discovery.texts import TextSide
from tandem.core.errors import TandemError
from tandem.engine.simulated.presets import SimulatedSettings
from tandem.model.directory import DEMO, open_model
from tandem.model.hub import download, is_hub_id
from tandem.spec.model import FETCHED
from tandem.weights.cache import DEFAULT_DIRECTORY, WeightsCache
from tandem.weights.locate import bring_texts

_HERE: Final = ("file://", "hf://")
_FLAG: Final = "--text_files=DIRECTORY, as NAMESPACE/NAME/"
_WAIT_S: Final = 600.0
"""Seconds to wait for another router on this machine that fetches the same files."""


def credentials_in(directory: Path) -> dict[str, str]:
    """The variables that lie there as files, as a mounted Secret has them; none without the directory."""
    if not directory.is_dir():
        return {}
    return {each.name: each.read_text() for each in directory.iterdir() if each.name[0] != "." and each.is_file()}


def load_text_side(
    name: str,
    source: TextSource,
    files: Path | None,
    cache: Path | None,
    templates: Templates,
    environment: Mapping[str, str] | None = None,
) -> TextSide:
    """`files` has a directory `NAMESPACE/NAME` for each service whose model the router cannot get by itself; what it
    has goes first. Of the models of hubs, buckets and registries only what the text needs is fetched, with the
    credentials in `environment`, by default this process's. With an `environment`, a tenant's, a source that is a
    directory of this machine is refused, since others' files lie here. Raises `bad_model`, `bad_setting`."""
    if source.simulated:
        return TextSide(
            SimpleRenderer(templates.clock), SimulatedSettings(preset=source.preset).resolved.context_tokens
        )
    place = _place(source, files, cache, environment)
    if environment is not None and is_hub_id(place):
        place = str(_from_hub(place, cache, environment))
    directory = open_model(place, name=name, cache=cache, weights=False)
    # Of the model's files alone: who may write a service may not have the router read any file that it can.
    directory = directory.with_template(source.model.chat_template)
    parsers = ParserSettings(source.model.tool_parser, source.model.reasoning_parser)
    # What of it is served says the first worker; until then what is asked for or, without that, what the file states.
    context = source.context_tokens or directory.facts.context_tokens
    return TextSide(FileRenderer(directory, templates, parsers, source.model.generation_config), context)


def _from_hub(model: str, cache: Path | None, environment: Mapping[str, str]) -> Path:
    """A token is for the hub that lies beside it."""
    token, endpoint = (environment.get(name, "").strip() for name in ("HF_TOKEN", "HF_ENDPOINT"))
    return download(model, cache, weights=False, token=token or False, endpoint=endpoint or None)


def _place(source: TextSource, files: Path | None, cache: Path | None, environment: Mapping[str, str] | None) -> str:
    """A directory, `demo`, or the id of a model at a hub. For a tenant no directory but what lies in `files`."""
    mounted = None if files is None else (files / source.service).absolute()
    if mounted is not None and mounted.is_dir():
        return str(mounted)
    where, revision = source.model.source, source.model.revision
    if where.startswith(FETCHED):
        own = os.environ if environment is None else environment
        brought = WeightsCache(cache or DEFAULT_DIRECTORY, wait_s=_WAIT_S)
        digest = source.model.digest or ""
        return str(bring_texts(where, brought, revision=revision or "", digest=digest, environment=own))
    for scheme in _HERE:
        where = where.removeprefix(scheme)
    if environment is not None and "://" not in where:
        return _elsewhere(source.service, where, revision)
    if "://" in where or (Path(where).is_absolute() and not Path(where).is_dir()):
        cure = f"put its tokenizer.json and config.json into {mounted or _FLAG}"
        raise TandemError("bad_model", f"{source.service}: this router cannot read {where}; {cure}", param="model")
    return where if revision is None or "@" in where or Path(where).is_dir() else f"{where}@{revision}"


def _elsewhere(service: str, where: str, revision: str | None) -> str:
    """What is no directory of this machine: `demo`, or the id of a model at a hub, which is no path in a cache."""
    place = where if revision is None or "@" in where else f"{where}@{revision}"
    within = PurePosixPath(place.partition("@")[2])
    if place == DEMO or (is_hub_id(place) and not within.is_absolute() and ".." not in within.parts):
        return place
    problem = f"{service}: {place!r} is no id of a model at a hub, and routers read no directories for tenants"
    raise TandemError("bad_model", f"{problem}; have the files put into {_FLAG}", param="model")
