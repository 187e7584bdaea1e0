"""`ModelService`s that are wrong, and what a person is told. The same table is for files and for the API server.

Each case is a service that is good but for what is laid over it: mappings are merged, anything else replaces. Where a
file is refused by a limit of a type, the API server has words of its own for that, which `server` has a part of; it
refuses unknown fields when it is asked to be strict, as kubectl asks it.
"""

from dataclasses import dataclass
from typing import Any, Final

import yaml

GOOD: Final = """
apiVersion: tandem.dev/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  model: {source: "hf://org/model", name: chat}
  engine: {type: vllm, device: cuda}
  pools:
  - {name: prefill, role: prefill, replicas: 1}
  - {name: decode, role: decode, replicas: 2}
"""


@dataclass(frozen=True)
class Bad:
    """What is laid over the good service, and a part of what is said; `server` where the API server says it another
    way."""

    name: str
    over: str
    said: str
    server: str | None = None

    def service(self) -> dict[str, Any]:
        """The whole object."""
        return over(yaml.safe_load(GOOD), yaml.safe_load(self.over))

    @property
    def server_says(self) -> str:
        """A part of the API server's answer."""
        return self.said if self.server is None else self.server


@dataclass(frozen=True)
class BadUpdate:
    """The same about an update of the good service."""

    name: str
    over: str
    said: str

    def service(self) -> dict[str, Any]:
        """The whole object after the update."""
        return over(yaml.safe_load(GOOD), yaml.safe_load(self.over))


def over(base: Any, upper: Any) -> Any:
    """`upper` laid over `base`; None removes a key."""
    if not isinstance(base, dict) or not isinstance(upper, dict):
        return upper
    merged = {key: over(base.get(key), value) for key, value in upper.items()}
    return {key: value for key, value in {**base, **merged}.items() if value is not None}


def _pools(first: str, second: str = "{name: decode, role: decode}") -> str:
    return f"spec: {{pools: [{first}, {second}]}}"


def _prefill(more: str) -> str:
    return _pools(f"{{name: prefill, role: prefill, {more}}}")


def _prefill_scaled(more: str) -> str:
    return _prefill(f"autoscaling: {{{more}}}")


BAD: Final = (
    Bad("name too long", f"metadata: {{name: {'a' * 41}}}", "metadata.name must be at most 40"),
    Bad("name with a dot", "metadata: {name: a.b}", "metadata.name must be at most 40"),
    Bad("name with a digit first", "metadata: {name: 7b}", "a letter first"),
    Bad("unknown field", "spec: {surprise: 1}", "unknown field `surprise`", 'unknown field "spec.surprise"'),
    Bad(
        "unknown field of a pool",
        _prefill("gpus: 1"),
        "spec.pools[0]: Object contains unknown field `gpus`",
        'unknown field "spec.pools[0].gpus"',
    ),
    Bad("unknown source", "spec: {model: {source: 'ftp://x/y'}}", "source must be demo, a directory, a hub id"),
    Bad("empty source", "spec: {model: {source: 's3://'}}", "source must be demo, a directory, a hub id"),
    Bad("source with blanks", "spec: {model: {source: 'a b'}}", "must not have blanks", "spec.model.source"),
    Bad("bad digest", "spec: {model: {digest: 'sha256:12'}}", "must be sha256: and 64", "spec.model.digest"),
    Bad("alias twice", "spec: {model: {aliases: [a, a]}}", "aliases has 'a' twice", 'Duplicate value: "a"'),
    Bad(
        "unknown engine", "spec: {engine: {type: magic}}", "Invalid enum value 'magic'", 'Unsupported value: "magic"'
    ),
    Bad(
        "no blocks",
        "spec: {engine: {blockTokens: 0}}",
        "spec.engine.blockTokens is 0: expected at least 1",
        "spec.engine.blockTokens in body should be greater than or equal to 1",
    ),
    Bad("no size", "spec: {engine: {kvMemory: lots}}", "'lots' is not a size", "spec.engine.kvMemory"),
    Bad(
        "data parallel",
        "spec: {engine: {parallelism: {tensor: 2, data: 2}}}",
        "data must be 1: each of its engines would have a KV cache of its own",
    ),
    Bad("data parallel in a pool", _prefill("parallelism: {data: 4}"), "give the pool so many times the replicas"),
    Bad("preset of vllm", "spec: {engine: {preset: h100-llama-3.1-8b}}", "preset is for engine type simulated"),
    Bad(
        "unknown preset",
        "spec: {engine: {type: simulated, device: null, preset: b200}}",
        "preset is for engine type simulated, which has",
    ),
    Bad(
        "quantized torch", "spec: {engine: {type: torch, quantization: fp8}}", "quantization is for engine type vllm"
    ),
    Bad("adapters of torch", "spec: {engine: {type: torch, adapters: [a=/a]}}", "adapters is for engine type vllm"),
    Bad(
        "arguments of torch",
        "spec: {engine: {type: torch, extraArgs: {seed: 1}}}",
        "extraArgs is for engine type vllm",
    ),
    Bad(
        "context of torch", "spec: {engine: {type: torch, contextTokens: 9}}", "contextTokens is for engine type vllm"
    ),
    Bad("share of a CPU", "spec: {engine: {device: cpu, gpuMemoryShare: 0.5}}", "gpuMemoryShare is for device cuda"),
    Bad(
        "simulated share",
        "spec: {engine: {type: simulated, gpuMemoryShare: 0.5}}",
        "gpuMemoryShare is for device cuda",
    ),
    Bad(
        "share of a pool on CPUs",
        "spec: {engine: {device: cpu}, pools: [{name: all, role: unified, gpuMemoryShare: 0.5}]}",
        "gpuMemoryShare of a pool is for device cuda",
    ),
    Bad(
        "more than a GPU",
        "spec: {engine: {gpuMemoryShare: 1.5}}",
        "spec.engine.gpuMemoryShare",
        "should be less than or equal to 1",
    ),
    Bad(
        "ranks on one shared GPU",
        _prefill("parallelism: {tensor: 2}, accelerator: {type: a10, sharedBy: 2}"),
        "a worker on a part of a GPU",
    ),
    Bad(
        "ranks on slices",
        _prefill("parallelism: {tensor: 2}, accelerator: {type: h100, resource: nvidia.com/mig-3g.40gb}"),
        "a worker on a part of a GPU",
    ),
    Bad("8 bits in torch", "spec: {engine: {type: torch, kvDtype: fp8}}", "kvDtype is for engine type vllm"),
    Bad("torch alone", "spec: {engine: {type: torch, kvTransfer: always}}", "kvTransfer is for engine type vllm"),
    Bad(
        "images in torch",
        "spec: {engine: {type: torch, imagesPerPrompt: 2}}",
        "imagesPerPrompt is for engine type vllm",
    ),
    Bad(
        "handing over what stays",
        "spec: {engine: {type: vllm, device: cuda, kvTransfer: never}}",
        "kvTransfer never is for pools of role unified",
    ),
    Bad(
        "guessing torch",
        "spec: {engine: {type: torch, speculative: {method: ngram, tokens: 4}}}",
        "speculative is for engine type vllm",
    ),
    Bad("eager torch", "spec: {engine: {type: torch, eager: true}}", "eager is for engine type vllm"),
    Bad(
        "split torch",
        "spec: {engine: {type: torch, parallelism: {tensor: 2}}}",
        "parallelism is for engine type vllm",
    ),
    Bad(
        "split pool of torch",
        "spec: {engine: {type: torch}, pools: [{name: all, role: unified, parallelism: {tensor: 2}}]}",
        "engine type torch runs on one accelerator",
    ),
    Bad(
        "speculation over a pipeline",
        "spec: {engine: {speculative: {method: ngram, tokens: 4}, parallelism: {pipeline: 2}}}",
        "speculative cannot be combined with parallelism.pipeline",
    ),
    Bad(
        "a draft model that is not there",
        "spec: {engine: {speculative: {method: draft_model, tokens: 4}}}",
        "model is what drafts",
    ),
    Bad(
        "experts on one rank",
        "spec: {engine: {parallelism: {expert: true}}}",
        "experts are dealt out over tensor x data ranks",
    ),
    Bad("no pools", "spec: {pools: []}", "spec.pools: expected array of length >= 1", "should have at least 1 items"),
    Bad(
        "auto beside a fixed role",
        _pools("{name: p, role: auto}"),
        "pools of role auto go with no others",
    ),
    Bad(
        "auto on two kinds of GPU",
        _pools(
            "{name: p, role: auto, accelerator: {type: h100-sxm}}",
            "{name: q, role: auto, accelerator: {type: l40s}}",
        ),
        "pools of role auto have equal workers",
    ),
    Bad(
        "auto over other numbers of GPUs",
        _pools("{name: p, role: auto, parallelism: {tensor: 2}}", "{name: q, role: auto}"),
        "pools of role auto have equal workers",
    ),
    Bad(
        "auto that must not hand over",
        "spec: {engine: {type: vllm, device: cuda, kvTransfer: never}, pools: [{name: p, role: auto}]}",
        "kvTransfer never is for pools of role unified",
    ),
    Bad("nobody decodes", "spec: {pools: [{name: p, role: prefill}]}", "pools has none that can decode"),
    Bad("pool twice", _pools("{name: decode, role: prefill}"), "'decode' is taken", "Duplicate value"),
    Bad("pool called router", _pools("{name: router, role: prefill}"), "router and kv-store are names of other"),
    Bad(
        "pool with a bad name",
        _pools("{name: No Good, role: prefill}"),
        "spec.pools[0].name 'No Good' must be lower-case letters",
        "spec.pools[0].name",
    ),
    Bad("unknown role", _pools("{name: p, role: both}"), "Invalid enum value 'both'", 'Unsupported value: "both"'),
    Bad("no role", _pools("{name: p}"), "missing required field `role`", "spec.pools[0].role: Required value"),
    Bad(
        "fewer than none",
        _prefill("replicas: -1"),
        "spec.pools[0].replicas is -1: expected at least 0",
        "spec.pools[0].replicas in body should be greater than or equal to 0",
    ),
    Bad(
        "text for a number",
        _prefill("replicas: two"),
        "spec.pools[0].replicas: Expected `int | null`, got `str`",
        "spec.pools[0].replicas in body must be of type integer",
    ),
    Bad(
        "two owners of the number",
        _prefill("replicas: 2, autoscaling: {maxReplicas: 4}"),
        "give replicas or autoscaling, not both",
    ),
    Bad("least above most", _prefill_scaled("minReplicas: 5, maxReplicas: 4"), "minReplicas must not be above"),
    Bad(
        "sleep without a time",
        "spec: {pools: [{name: u, role: unified, autoscaling: {minReplicas: 0, maxReplicas: 4}}]}",
        "minReplicas 0 needs idleAfterSeconds",
    ),
    Bad(
        "half of it asleep",
        _prefill_scaled("minReplicas: 0, maxReplicas: 4, idleAfterSeconds: 600"),
        "going to sleep is one decision for the whole service",
    ),
    Bad(
        "floor above most",
        _prefill_scaled("maxReplicas: 4, schedule: [{start: '0 7 * * 1-5', durationSeconds: 3600, replicas: 9}]"),
        "a floor in schedule must not be above maxReplicas",
    ),
    Bad(
        "no clock",
        _prefill_scaled("maxReplicas: 4, schedule: [{start: daily, durationSeconds: 3600, replicas: 2}]"),
        "must be five fields as in cron",
        "spec.pools[0].autoscaling.schedule[0].start",
    ),
    Bad("nothing but spares", _prefill("spare: 4, autoscaling: {maxReplicas: 4}"), "spare must be below"),
    Bad(
        "part of a node",
        _prefill("parallelism: {tensor: 12}, accelerator: {type: h100, perNode: 8}"),
        "tensor x pipeline x data must be at most accelerator.perNode",
    ),
    Bad(
        "another engine in a pool",
        _prefill("engine: {type: torch}"),
        "engine.type must be the same in every pool",
    ),
    Bad(
        "other blocks in a pool",
        _prefill("engine: {type: vllm, device: cuda, blockTokens: 64}"),
        "engine.blockTokens of a pool must be that of spec.engine",
    ),
    Bad(
        "other numbers in a pool",
        _prefill("engine: {type: vllm, device: cuda, dtype: float16}"),
        "engine.dtype of a pool must be that of spec.engine",
    ),
    Bad(
        "8 bits in one pool",
        _prefill("engine: {type: vllm, device: cuda, kvDtype: fp8}"),
        "engine.kvDtype of a pool must be that of spec.engine",
    ),
    Bad(
        "a pool that keeps what it has",
        _prefill("engine: {type: vllm, device: cuda, kvTransfer: never}"),
        "kvTransfer never is for pools of role unified",
    ),
    Bad(
        "a rollout that cannot move",
        "spec: {rollout: {maxSurge: '0%', maxUnavailable: 0}}",
        "maxSurge and maxUnavailable must not both be 0",
    ),
    Bad("more than all", "spec: {rollout: {maxSurge: '101%'}}", "must be a number, or a percentage", "spec.rollout"),
    Bad(
        "too much weight",
        "spec: {rollout: {weight: 101}}",
        "spec.rollout.weight is 101: expected at most 100",
        "spec.rollout.weight in body should be less than or equal to 100",
    ),
    Bad("disk without a place", "spec: {tiers: {nvme: 4Gi}}", "nvme and nvmeDir go together"),
    Bad("store without a place", "spec: {store: {nvme: 4Gi}}", "nvme and nvmeDir go together"),
    Bad("no Redis", "spec: {redis: 'http://cache'}", "redis must be a URL that begins with redis://"),
    Bad(
        "two places for Redis",
        "spec: {redis: 'redis://cache', redisSecretRef: {name: redis}}",
        "give redis or redisSecretRef, not both",
    ),
    Bad(
        "no key of a Secret",
        "spec: {redisSecretRef: {name: redis, key: a key}}",
        "spec.redisSecretRef.key 'a key' must be a Secret's key",
        "spec.redisSecretRef.key in body should match",
    ),
    Bad(
        "no such port",
        "spec: {router: {port: 70000}}",
        "spec.router.port is 70000: expected at most 65535",
        "spec.router.port in body should be less than or equal to 65535",
    ),
    Bad(
        "half a certainty",
        "spec: {rollout: {gate: {agreement: 1.5}}}",
        "spec.rollout.gate.agreement is 1.5: expected at most 1",
        "spec.rollout.gate.agreement in body should be less than or equal to 1",
    ),
)

BAD_IN_A_CLUSTER: Final = tuple(
    Bad(f"a Redis with credentials, {url}", f"spec: {{redis: '{url}'}}", "name that in redisSecretRef instead")
    for url in (
        "redis://:word@cache:6379/0",
        "redis://user@cache",
        "redis://a,rediss://u:w@b",
        "redis://c?password=w",
    )
)
"""Refused in a cluster alone; `tandem up` and Ray take them."""

BAD_UPDATES: Final = (
    BadUpdate("another name", "spec: {model: {name: talk}}", "name is what clients ask for and cannot be changed"),
    BadUpdate("no name any more", "spec: {model: {name: null}}", "name is what clients ask for"),
    BadUpdate(
        "another role",
        "spec: {pools: [{name: prefill, role: unified}, {name: decode, role: decode}]}",
        "role cannot be changed; add a pool with the new role",
    ),
)
