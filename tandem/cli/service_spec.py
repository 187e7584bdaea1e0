"""`ModelService` files, as `tandem up` and a cluster read them. Strict: what is not known is refused by its path."""

import re
from pathlib import Path
from typing import Final, Literal

import msgspec
import yaml

from tandem.core.errors import TandemError
from tandem.engine.simulated.presets import PRESETS

API_VERSION: Final = "tandem.dev/v1alpha1"
KIND: Final = "ModelService"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?")
_UNITS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
REPLICAS_MAX: Final = 256


class _Strict(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Fields are camelCase in files."""


class Metadata(_Strict, frozen=True):
    name: str


class Model(_Strict, frozen=True):
    """`source` is `demo`, a directory or a hub id; `name` is what clients ask for, by default the service's name."""

    source: str = "demo"
    name: str | None = None


class EngineSpec(_Strict, frozen=True):
    """None leaves a setting to the engine. `kv_memory` is a quantity such as `512Mi`; `preset` says whose step times
    the simulated engine has."""

    type: Literal["torch", "simulated"] = "torch"
    preset: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    device: Literal["cpu", "cuda"] | None = None
    block_tokens: int | None = None
    kv_memory: str | int | None = None


class Pool(_Strict, frozen=True):
    """Workers of one role; they are called `NAME-0`, `NAME-1`, …"""

    name: str
    role: Literal["prefill", "decode", "unified"]
    replicas: int = 1


class RouterSpec(_Strict, frozen=True):
    """`grpc_port` None serves no public gRPC; 0 lets the system choose."""

    port: int = 8000
    grpc_port: int | None = None
    host: str = "127.0.0.1"


class Spec(_Strict, frozen=True, kw_only=True):
    model: Model = Model()
    engine: EngineSpec = EngineSpec()
    pools: tuple[Pool, ...]
    router: RouterSpec = RouterSpec()


class ModelService(_Strict, frozen=True):
    """One model served by pools of workers behind a router."""

    api_version: str
    kind: str
    metadata: Metadata
    spec: Spec

    @property
    def model_name(self) -> str:
        """What clients ask for."""
        return self.spec.model.name or self.metadata.name


def read_service(path: Path) -> ModelService:
    """A checked service from a YAML file. Raises `bad_setting` naming file and path of what is wrong."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TandemError("bad_setting", f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TandemError("bad_setting", f"{path} is not YAML: {' '.join(str(error).split())}") from error
    try:
        service = msgspec.convert(loaded, ModelService)
    except msgspec.ValidationError as error:
        raise TandemError("bad_setting", f"{path}: {_readable(str(error))}") from error
    problem = check(service)
    if problem is not None:
        raise TandemError("bad_setting", f"{path}: {problem}")
    return service


def check(service: ModelService) -> str | None:
    """What is wrong beyond types, in one sentence with its path, or None."""
    spec = service.spec
    if service.api_version != API_VERSION or service.kind != KIND:
        return f"apiVersion and kind must be {API_VERSION} and {KIND}, not {service.api_version} and {service.kind}"
    if not _NAME.fullmatch(service.metadata.name):
        return f"metadata.name {service.metadata.name!r} must be lower-case letters, digits and dashes"
    if spec.engine.preset is not None and (spec.engine.type != "simulated" or spec.engine.preset not in PRESETS):
        return f"spec.engine.preset is {spec.engine.preset!r}: the simulated engine has {', '.join(PRESETS)}"
    if spec.engine.block_tokens is not None and not 1 <= spec.engine.block_tokens <= 1024:
        return f"spec.engine.blockTokens is {spec.engine.block_tokens}, not between 1 and 1024"
    if spec.engine.kv_memory is not None and quantity(spec.engine.kv_memory) is None:
        return f"spec.engine.kvMemory {spec.engine.kv_memory!r} is not a size such as 512Mi"
    for key, port in (("port", spec.router.port), ("grpcPort", spec.router.grpc_port)):
        if port is not None and not 0 <= port <= 65535:
            return f"spec.router.{key} is {port}, not between 0 and 65535"
    return _check_pools(spec.pools)


def _check_pools(pools: tuple[Pool, ...]) -> str | None:
    for index, pool in enumerate(pools):
        path = f"spec.pools[{index}]"
        if not _NAME.fullmatch(pool.name):
            return f"{path}.name {pool.name!r} must be lower-case letters, digits and dashes"
        if pool.name == "router" or pool.name in [other.name for other in pools[:index]]:
            return f"{path}.name {pool.name!r} is taken"
        if not 0 <= pool.replicas <= REPLICAS_MAX:
            return f"{path}.replicas is {pool.replicas}, not between 0 and {REPLICAS_MAX}"
    if not any(pool.replicas for pool in pools if pool.role != "prefill"):
        return "spec.pools has no worker that can decode: give a pool of role decode or unified a replica"
    return None


def quantity(text: str | int) -> int | None:
    """Bytes of a size such as `512Mi` or `2G`, or None when it is not one."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        return None
    unit = found[2] or ""
    return round(float(found[1]) * (_BINARY_UNITS.get(unit) or _UNITS[unit]))


def _readable(message: str) -> str:
    """msgspec's `… - at `$.spec.x`` as `spec.x: …`."""
    what, _, where = message.partition(" - at ")
    path = where.strip("`").removeprefix("$").removeprefix(".")
    return f"{path}: {what}" if path else what
