"""Facts that the checks need about a service, each of its pools and this machine. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from control_plane.operator.model_facts import facts_of
from tandem.core.errors import TandemError
from tandem.engine.vllm.exchange import decide
from tandem.engine.vllm.settings import CPU_BLOCK_TOKENS
from tandem.engine.vllm.stage_settings import StageSettings
from tandem.engine.vllm.stage_size import default_bytes
from tandem.spec.engine import EngineSpec
from tandem.spec.pool import Pool, engine_of
from tandem.spec.quantity import quantity
from tandem.spec.service import ModelService
from tandem.spec.vllm import kinds_served

Config = Mapping[str, Any]
GPU_BLOCK_TOKENS: Final = 16
"""Block size of vLLM in tokens on a GPU when neither the file nor the attention backend sets another."""


@dataclass(frozen=True)
class Host:
    """This machine. `shm_bytes` is None when unknown. `busy` maps each port that is taken to the reason."""

    memory_bytes: int
    shm_bytes: int | None = None
    gpus: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    busy: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One pool. `config` is the model's `config.json`, None where it is not on this machine. `here`: its workers can
    run on this machine, so what holds here holds for them."""

    service: ModelService
    pool: Pool
    config: Config | None
    here: bool
    memory_bytes: int | None

    @property
    def name(self) -> str:
        return self.pool.name

    @property
    def vllm_role(self) -> str:
        """The role that vLLM is set up for: workers of role `auto` are set up like unified ones."""
        return "unified" if self.pool.role == "auto" else self.pool.role

    @property
    def engine(self) -> EngineSpec:
        return engine_of(self.service.spec.engine, self.pool)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that the pool's pod template sets, those with plain values only."""
        containers = _at(self.pool.template, "spec", "containers") or ()
        return {
            str(each.get("name")): str(each["value"])
            for container in containers
            for each in container.get("env") or ()
            if "value" in each
        }


def case_of(service: ModelService, pool: Pool, config: Config | None, host: Host) -> Case:
    """A pool's workers run in pods with a memory limit, or share this machine with all others of the file."""
    here = engine_of(service.spec.engine, pool).device != "cuda" or host.gpus
    limits = [_at(each, "resources", "limits", "memory") for each in _at(pool.template, "spec", "containers") or ()]
    found = [size for limit in limits if limit is not None and (size := quantity(limit)) is not None]
    return Case(service, pool, config, here, max(found, default=host.memory_bytes if here else None))


def no_handoff_reason(case: Case) -> str | None:
    """The reason why the pool's engines get no connector and no stage; None when they do, or may. Raises
    `bad_setting` for a role whose KV cannot be handed off."""
    engine = case.engine
    if engine.type != "vllm":
        return f"the engine {engine.type} has none"
    transfer = engine.kv_transfer or "auto"
    if case.config is None:
        return "kv_transfer is never" if transfer == "never" else None
    found = decide(kinds_served(case.config, engine), transfer, case.vllm_role, engine.kv_dtype or "auto")
    return None if found.connector else found.reason


def stage_settings(case: Case) -> StageSettings | None:
    """The stage settings that the pool's workers will have; None when the memory of their pods is not known."""
    dram = case.service.spec.tiers.dram
    size = None if dram is None else quantity(dram)
    if size is None:
        sharers = sum(each.first_replicas for each in case.service.spec.pools) if case.here else 1
        size = None if case.memory_bytes is None else default_bytes(case.memory_bytes, max(1, sharers))
    plain = StageSettings()
    shares = {"prefill": plain.export_share, "decode": 1 - plain.export_share}
    return None if not size else StageSettings(memory_bytes=size, context_share=shares.get(case.pool.role))


def block_tokens(case: Case) -> int:
    return case.engine.block_tokens or (GPU_BLOCK_TOKENS if case.engine.device == "cuda" else CPU_BLOCK_TOKENS)


def kv_token_bytes(case: Case) -> int | None:
    """Bytes of one token in the stage, over all layers and ranks; None for a model whose sizes are not known here."""
    facts = None if case.config is None else facts_of(case.config)
    if facts is None or facts.shape is None:
        return None
    engine = case.engine
    stated = facts.dtype if engine.dtype in (None, "auto") else engine.dtype
    dtype = "fp8" if (engine.kv_dtype or "").startswith("fp8") else stated
    try:
        return facts.shape.kv_token_bytes(dtype if dtype in ("float32", "fp8") else "bfloat16")
    except TandemError:
        return None


def context_tokens(case: Case) -> int | None:
    """The longest sequence that is served."""
    facts = None if case.config is None else facts_of(case.config)
    return case.engine.context_tokens or (None if facts is None else facts.context)


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
