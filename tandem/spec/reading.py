"""`ModelService` from YAML or JSON, checked: limits by types, then rules, then what the engine itself refuses."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from tandem.core.errors import TandemError
from tandem.spec.checking import broken, repeated
from tandem.spec.pool import engine_of
from tandem.spec.service import API_VERSION, KIND, ModelService
from tandem.spec.text import UNFIT
from tandem.spec.vllm import vllm_problem

_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_NOT_MATCHING: Final = re.compile(r"Expected `str` matching regex '(.*)'")
_OUT_OF_BOUNDS: Final = re.compile(
    r"Expected `(?:int|float)` (>=|<=) (.+)|Expected `(?:str|array|object)` of length .+"
)
_BOUNDS: Final = {">=": "at least", "<=": "at most"}


def read_service(path: Path) -> ModelService:
    """A checked service from a YAML file. Raises `bad_setting` naming file and path of what is wrong."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TandemError("bad_setting", f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TandemError("bad_setting", f"{path} is not YAML: {' '.join(str(error).split())}") from error
    try:
        return service_of(loaded)
    except TandemError as error:
        raise TandemError(error.code, f"{path}: {error.message}") from error


def service_of(loaded: object) -> ModelService:
    """A checked service from plain values. Raises `bad_setting` naming the path of what is wrong."""
    try:
        service = msgspec.convert(loaded, ModelService)
    except msgspec.ValidationError as error:
        raise TandemError("bad_setting", readable(str(error), loaded)) from error
    for problem in problems(service):
        raise TandemError("bad_setting", problem)
    return service


def check(service: ModelService) -> str | None:
    """What is wrong with a service however it was made, in one sentence with its path, or None."""
    try:
        service_of(msgspec.to_builtins(service))
    except TandemError as error:
        return error.message
    return None


def problems(service: ModelService) -> Iterator[str]:
    """Sentences about what is wrong beyond types and limits."""
    if service.api_version != API_VERSION or service.kind != KIND:
        found = f"{service.api_version} and {service.kind}"
        yield f"apiVersion and kind must be {API_VERSION} and {KIND}, not {found}"
    yield from repeated(service)
    yield from broken(service)
    for index, pool in enumerate(service.spec.pools):
        problem = vllm_problem(engine_of(service.spec.engine, pool))
        if problem is not None:
            own = pool.engine is not None or pool.parallelism is not None
            yield f"spec.pools[{index}]: {problem}" if own else f"spec.engine: {problem}"


def readable(message: str, loaded: object) -> str:
    """msgspec's `… - at `$.spec.x`` as `spec.x …`, with the value where that helps."""
    what, _, where = message.partition(" - at ")
    path = where.strip("`").removeprefix("$").removeprefix(".")
    if not path:
        return what
    bounds, unfit = _OUT_OF_BOUNDS.fullmatch(what), _NOT_MATCHING.fullmatch(what)
    if unfit is not None:
        return f"{path} {_value(loaded, path)!r} {_why_unfit(unfit[1])}"
    if bounds is None:
        return f"{path}: {what}"
    if bounds[1] is not None:
        return f"{path} is {_value(loaded, path)!r}: expected {_BOUNDS[bounds[1]]} {bounds[2]}"
    return f"{path}: {what.replace('`', '').replace('Expected', 'expected', 1)}"


def _why_unfit(pattern: str) -> str:
    """The patterns come as `repr` writes them."""
    return UNFIT.get(pattern.replace("\\\\", "\\"), f"must match {pattern}")


def _value(loaded: Any, path: str) -> object:
    """What is at a path of plain values; None where the path has a part that only msgspec knows (`[...]`)."""
    for key, index in _STEP.findall(path):
        inner = loaded[int(index)] if index and isinstance(loaded, list | tuple) else None
        loaded = loaded.get(key) if key and isinstance(loaded, dict) else inner
    return loaded
