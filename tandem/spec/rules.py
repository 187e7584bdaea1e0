"""Rules over several fields at once: the same for files and for the API server.

Each is said twice, as CEL for the CRD (`x-kubernetes-validations`) and as a Python predicate for everybody else, with
one sentence for people. Both get values with defaults filled in; tests hold them against the same cases.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tandem.engine.simulated.presets import PRESETS
from tandem.spec.engine import EngineSpec, Parallelism, Speculative
from tandem.spec.engine_pool import EnginePoolSpec
from tandem.spec.model import FETCHED, Model
from tandem.spec.pool import Autoscaling, Pool, engine_of
from tandem.spec.rollout import Rollout
from tandem.spec.service import STORE, ModelService, Spec, StoreSpec, TiersSpec
from tandem.spec.text import camel

NAME_MAX: Final = 40
_SOURCES: Final = ("file", "hf", "pvc", *(each.removesuffix("://") for each in FETCHED))
_ROUTER: Final = "router"


@dataclass(frozen=True)
class Rule:
    """What must hold of every value of the type `of`, whose fields CEL calls `self`.

    `field` is the field that is named when it does not, None for the value as a whole. A `transition` is about an
    update: its CEL knows `oldSelf`, and its predicate takes the new and the old value.
    """

    of: type
    cel: str
    sentence: str
    holds: Callable[..., bool]
    field: str | None = None
    transition: bool = False


def _unchanged(of: type, field: str, sentence: str) -> Rule:
    """A field that stays as it was first written, present or absent."""

    def holds(new: Any, old: Any) -> bool:
        return bool(getattr(new, field) == getattr(old, field))

    key = camel(field)
    cel = f"has(self.{key}) == has(oldSelf.{key}) && (!has(self.{key}) || self.{key} == oldSelf.{key})"
    return Rule(of, cel, sentence, holds, key, transition=True)


def _vllm_only(field: str, cel_unset: str, unset: Callable[[EngineSpec], bool]) -> Rule:
    def holds(engine: EngineSpec) -> bool:
        return engine.type == "vllm" or unset(engine)

    key = camel(field)
    return Rule(EngineSpec, f"self.type == 'vllm' || {cel_unset}", f"{key} is for engine type vllm", holds, key)


def _vllm_only_if_given(field: str) -> Rule:
    def unset(engine: EngineSpec) -> bool:
        return getattr(engine, field) is None

    return _vllm_only(field, f"!has(self.{camel(field)})", unset)


def _agreeing(field: str) -> Rule:
    """Of pools that have an engine of their own: a field as the service's engine has it."""

    def holds(spec: Spec) -> bool:
        engines = (pool.engine for pool in spec.pools if pool.engine is not None)
        return all(getattr(engine, field) == getattr(spec.engine, field) for engine in engines)

    key = camel(field)
    ours, theirs = f"self.engine.{key}", f"p.engine.{key}"
    equal = f"has({theirs}) == has({ours}) && (!has({theirs}) || {theirs} == {ours})"
    sentence = f"workers hand KV to each other, so engine.{key} of a pool must be that of spec.engine"
    return Rule(Spec, f"self.pools.all(p, !has(p.engine) || ({equal}))", sentence, holds, "pools")


def _both_or_none(of: type[TiersSpec] | type[StoreSpec]) -> Rule:
    def holds(tiers: TiersSpec | StoreSpec) -> bool:
        return (tiers.nvme is None) == (tiers.nvme_dir is None)

    return Rule(
        of,
        "has(self.nvme) == has(self.nvmeDir)",
        "nvme and nvmeDir go together: how much, and where",
        holds,
    )


def _spread_as_nodes_are(pool: Pool) -> bool:
    if pool.accelerator is None or pool.parallelism is None:
        return True
    ranks, node = pool.parallelism.ranks, pool.accelerator.per_node
    return ranks <= node or ranks % node == 0


def _whole_gpus(spec: Spec, pool: Pool) -> bool:
    has = pool.accelerator
    part = has is not None and (has.shared_by > 1 or has.resource.startswith("nvidia.com/mig-"))
    return not part or engine_of(spec.engine, pool).parallelism.ranks == 1


def _sleeps_as_one(spec: Spec) -> bool:
    may = [pool.autoscaling is not None and pool.autoscaling.min_replicas == 0 for pool in spec.pools]
    return all(may) or not any(may)


def _hands_over_where_it_must(spec: Spec) -> bool:
    engines = [pool.engine or spec.engine for pool in spec.pools if pool.role != "unified"]
    return all(engine.kv_transfer != "never" for engine in engines)


def _chosen_alone(spec: Spec) -> bool:
    auto = [pool.role == "auto" for pool in spec.pools]
    return all(auto) or not any(auto)


def _chosen_of_equals(spec: Spec) -> bool:
    first = spec.pools[0]
    kinds = {None if pool.accelerator is None else pool.accelerator.type for pool in spec.pools}
    equal = len(kinds) == 1 and all(pool.parallelism == first.parallelism for pool in spec.pools)
    return equal or all(pool.role != "auto" for pool in spec.pools)


def _known_source(model: Model) -> bool:
    scheme, found, rest = model.source.partition("://")
    return not found or (scheme in _SOURCES and bool(rest))


def _moves(rollout: Rollout) -> bool:
    return not all(share in (0, "0%") for share in (rollout.max_surge, rollout.max_unavailable))


_NAME_CEL = f"self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= {NAME_MAX}"


def _good_name(service: ModelService) -> bool:
    name = service.metadata.name
    plain = name.isascii() and name.replace("-", "a").isalnum() and name == name.lower()
    return plain and len(name) <= NAME_MAX and name[0].isalpha() and name[-1] != "-"


_HANDS_OVER_CEL: Final = (
    "self.pools.all(p, p.role == 'unified' || !(has(p.engine) ? has(p.engine.kvTransfer) && "
    "p.engine.kvTransfer == 'never' : has(self.engine.kvTransfer) && self.engine.kvTransfer == 'never'))"
)
_FIRST: Final = "self.pools[0]"
_EQUALS_CEL: Final = (
    f"self.pools.all(p, p.role != 'auto') || self.pools.all(p, has(p.accelerator) == has({_FIRST}.accelerator) && "
    f"(!has(p.accelerator) || p.accelerator.type == {_FIRST}.accelerator.type) && "
    f"has(p.parallelism) == has({_FIRST}.parallelism) && "
    f"(!has(p.parallelism) || p.parallelism == {_FIRST}.parallelism))"
)
_TYPES_CEL: Final = "self.pools.all(p, !has(p.engine) || p.engine.type == self.engine.type)"
_RANKS_CEL: Final = "self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.data"
_POOL_RANKS_CEL: Final = (
    "(has(p.parallelism) ? p.parallelism.tensor * p.parallelism.pipeline * p.parallelism.data : (has(p.engine) ? "
    "p.engine.parallelism.tensor * p.engine.parallelism.pipeline * p.engine.parallelism.data : "
    "self.engine.parallelism.tensor * self.engine.parallelism.pipeline * self.engine.parallelism.data))"
)

RULES: Final = (
    Rule(
        ModelService,
        _NAME_CEL,
        f"metadata.name must be at most {NAME_MAX} lower-case letters, digits and dashes, a letter first: it is in "
        "the names of all parts of the service",
        _good_name,
    ),
    Rule(
        Model,
        f"!self.source.contains('://') || self.source.matches('^({'|'.join(_SOURCES)})://.+')",
        "source must be demo, a directory, a hub id, or begin with "
        f"{', '.join(f'{each}://' for each in _SOURCES[:-1])} or {_SOURCES[-1]}://",
        _known_source,
        "source",
    ),
    _unchanged(Model, "name", "name is what clients ask for and cannot be changed; make another ModelService"),
    Rule(
        EngineSpec,
        f"!has(self.preset) || (self.type == 'simulated' && self.preset in [{', '.join(map(repr, PRESETS))}])",
        f"preset is for engine type simulated, which has {', '.join(PRESETS)}",
        lambda engine: engine.preset is None or (engine.type == "simulated" and engine.preset in PRESETS),
        "preset",
    ),
    _vllm_only("parallelism", f"{_RANKS_CEL} == 1", lambda engine: engine.parallelism.ranks == 1),
    Rule(
        EngineSpec,
        "!has(self.gpuMemoryShare) || (self.type != 'simulated' && has(self.device) && self.device == 'cuda')",
        "gpuMemoryShare is for device cuda: it is a part of each GPU's memory",
        lambda engine: engine.gpu_memory_share is None or (engine.type != "simulated" and engine.device == "cuda"),
        "gpuMemoryShare",
    ),
    _vllm_only_if_given("context_tokens"),
    _vllm_only_if_given("quantization"),
    _vllm_only_if_given("kv_dtype"),
    _vllm_only_if_given("kv_transfer"),
    _vllm_only_if_given("images_per_prompt"),
    _vllm_only("adapters", "!has(self.adapters) || size(self.adapters) == 0", lambda engine: not engine.adapters),
    _vllm_only_if_given("speculative"),
    _vllm_only_if_given("eager"),
    _vllm_only("extra_args", "!has(self.extraArgs)", lambda engine: not engine.extra_args),
    Rule(
        EngineSpec,
        "!has(self.speculative) || self.parallelism.pipeline == 1",
        "speculative cannot be combined with parallelism.pipeline above 1",
        lambda engine: engine.speculative is None or engine.parallelism.pipeline == 1,
        "speculative",
    ),
    Rule(
        Speculative,
        "has(self.model) ? self.method != 'ngram' : self.method == 'ngram' || self.method == 'mtp'",
        "model is what drafts: draft_model, eagle and eagle3 need it, ngram has none",
        lambda given: given.method != "ngram" if given.model else given.method in ("ngram", "mtp"),
        "model",
    ),
    Rule(
        Parallelism,
        "self.data == 1",
        "data must be 1: each of its engines would have a KV cache of its own, and a worker hands over one; give the "
        "pool so many times the replicas instead",
        lambda parallel: parallel.data == 1,
        "data",
    ),
    Rule(
        Parallelism,
        "!self.expert || self.tensor * self.data > 1",
        "experts are dealt out over tensor x data ranks, and there is one",
        lambda parallel: not parallel.expert or parallel.tensor * parallel.data > 1,
        "expert",
    ),
    Rule(
        Pool,
        f"!(self.name in ['{_ROUTER}', '{STORE}'])",
        f"{_ROUTER} and {STORE} are names of other processes; give the pool another one",
        lambda pool: pool.name not in (_ROUTER, STORE),
        "name",
    ),
    _unchanged(Pool, "role", "role cannot be changed; add a pool with the new role and then remove this one"),
    Rule(
        Pool,
        "!(has(self.replicas) && has(self.autoscaling))",
        "give replicas or autoscaling, not both: only one can have the number",
        lambda pool: pool.replicas is None or pool.autoscaling is None,
        "replicas",
    ),
    Rule(
        Pool,
        "!has(self.autoscaling) || self.spare < self.autoscaling.maxReplicas",
        "spare must be below autoscaling.maxReplicas, or nothing is left for load",
        lambda pool: pool.autoscaling is None or pool.spare < pool.autoscaling.max_replicas,
        "spare",
    ),
    Rule(
        Pool,
        "!has(self.accelerator) || !has(self.parallelism) || "
        f"{_RANKS_CEL} <= self.accelerator.perNode || ({_RANKS_CEL}) % self.accelerator.perNode == 0",
        "tensor x pipeline x data must be at most accelerator.perNode, or a multiple of it: a worker has whole nodes",
        _spread_as_nodes_are,
        "parallelism",
    ),
    Rule(
        Spec,
        "self.pools.all(p, !has(p.gpuMemoryShare) || (has(p.engine) ? (has(p.engine.device) && p.engine.device == "
        "'cuda') : (has(self.engine.device) && self.engine.device == 'cuda')))",
        "gpuMemoryShare of a pool is for device cuda: it is a part of each GPU's memory",
        lambda spec: all(
            pool.gpu_memory_share is None or (pool.engine or spec.engine).device == "cuda" for pool in spec.pools
        ),
        "pools",
    ),
    Rule(
        Spec,
        "self.pools.all(p, !has(p.accelerator) || !(p.accelerator.sharedBy > 1 || "
        "p.accelerator.resource.startsWith('nvidia.com/mig-')) || "
        f"{_POOL_RANKS_CEL} == 1)",
        "a worker on a part of a GPU (accelerator.sharedBy above 1, or a MIG resource) has one: the parts that a pod "
        "gets may be of one GPU, and ranks need a GPU each",
        lambda spec: all(_whole_gpus(spec, pool) for pool in spec.pools),
        "pools",
    ),
    Rule(
        Autoscaling,
        "self.minReplicas <= self.maxReplicas",
        "minReplicas must not be above maxReplicas",
        lambda scaling: scaling.min_replicas <= scaling.max_replicas,
        "minReplicas",
    ),
    Rule(
        Autoscaling,
        "self.minReplicas > 0 || has(self.idleAfterSeconds)",
        "minReplicas 0 needs idleAfterSeconds: how long without requests before the service goes to sleep",
        lambda scaling: scaling.min_replicas > 0 or scaling.idle_after_seconds is not None,
        "minReplicas",
    ),
    Rule(
        Autoscaling,
        "!has(self.schedule) || self.schedule.all(s, s.replicas <= self.maxReplicas)",
        "a floor in schedule must not be above maxReplicas",
        lambda scaling: all(floor.replicas <= scaling.max_replicas for floor in scaling.schedule),
        "schedule",
    ),
    Rule(
        Rollout,
        "!(string(self.maxSurge) in ['0', '0%'] && string(self.maxUnavailable) in ['0', '0%'])",
        "maxSurge and maxUnavailable must not both be 0: no worker could ever be replaced",
        _moves,
        "maxSurge",
    ),
    _both_or_none(TiersSpec),
    _both_or_none(StoreSpec),
    Rule(
        Spec,
        "self.pools.exists(p, p.role != 'prefill')",
        "pools has none that can decode: add one of role decode, unified or auto",
        lambda spec: any(pool.role != "prefill" for pool in spec.pools),
        "pools",
    ),
    Rule(
        Spec,
        _TYPES_CEL,
        "engine.type must be the same in every pool: one engine cannot read another's KV",
        lambda spec: all(pool.engine is None or pool.engine.type == spec.engine.type for pool in spec.pools),
        "pools",
    ),
    Rule(
        Spec,
        _HANDS_OVER_CEL,
        "kvTransfer never is for pools of role unified: workers of any other role hand KV over",
        _hands_over_where_it_must,
        "pools",
    ),
    Rule(
        Spec,
        "self.pools.all(p, p.role == 'auto') || self.pools.all(p, p.role != 'auto')",
        "pools of role auto go with no others: routers choose which of all workers take prompts, and a fixed role "
        "has chosen already; give every pool role auto, or none",
        _chosen_alone,
        "pools",
    ),
    Rule(
        Spec,
        _EQUALS_CEL,
        "pools of role auto have equal workers, since routers may take any for any: accelerator.type and parallelism "
        "must be those of the first pool; unequal ones are for pools of role prefill and decode",
        _chosen_of_equals,
        "pools",
    ),
    _agreeing("dtype"),
    _agreeing("block_tokens"),
    _agreeing("kv_dtype"),
    Rule(
        Spec,
        "self.engine.type != 'torch' || self.pools.all(p, !has(p.parallelism) || "
        "p.parallelism.tensor * p.parallelism.pipeline * p.parallelism.data == 1)",
        "engine type torch runs on one accelerator; take vllm for parallelism",
        lambda spec: (
            spec.engine.type != "torch"
            or all(pool.parallelism is None or pool.parallelism.ranks == 1 for pool in spec.pools)
        ),
        "pools",
    ),
    Rule(
        Spec,
        "self.pools.all(p, has(p.autoscaling) && p.autoscaling.minReplicas == 0) || "
        "self.pools.all(p, !has(p.autoscaling) || p.autoscaling.minReplicas > 0)",
        "going to sleep is one decision for the whole service: give minReplicas 0 to every pool, or to none",
        _sleeps_as_one,
        "pools",
    ),
    Rule(
        Spec,
        "!has(self.redis) || self.redis.startsWith('redis://') || self.redis.startsWith('rediss://') || "
        "self.redis.startsWith('unix://')",
        "redis must be a URL that begins with redis://, rediss:// or unix://",
        lambda spec: spec.redis is None or spec.redis.startswith(("redis://", "rediss://", "unix://")),
        "redis",
    ),
    Rule(
        Spec,
        "!(has(self.redis) && has(self.redisSecretRef))",
        "give redis or redisSecretRef, not both: only one can say where Redis is",
        lambda spec: spec.redis is None or spec.redis_secret_ref is None,
        "redis",
    ),
    _unchanged(EnginePoolSpec, "model_service_name", "modelServiceName cannot be changed; it is set at creation"),
    _unchanged(EnginePoolSpec, "pool", "pool cannot be changed; it is set at creation"),
    _unchanged(EnginePoolSpec, "role", "role cannot be changed; it is set at creation"),
)
