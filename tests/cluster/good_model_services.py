"""`ModelService`s that are good, from the smallest to large ones, by name."""

from typing import Final

SMALLEST: Final = """
apiVersion: tandem.dev/v1alpha1
kind: ModelService
metadata: {name: demo}
spec:
  pools:
  - {name: all, role: unified}
"""

ONE_NODE: Final = """
apiVersion: tandem.dev/v1alpha1
kind: ModelService
metadata: {name: one-node, namespace: llm, labels: {team: search}}
spec:
  model: {source: "pvc://models/llama-3.1-8b", aliases: [small], digest: "sha256:%s"}
  engine: {type: vllm, device: cuda, dtype: bfloat16, kvDtype: fp8, adapters: [sql=/models/sql], extraArgs: {seed: 1}}
  pools:
  - name: prefill
    role: prefill
    replicas: 2
    accelerator: {type: l40s, perNode: 4, dollarsPerHour: 7.5}
    template:
      spec:
        tolerations: [{key: gpu, operator: Exists}]
        containers:
        - name: worker
          resources: {limits: {memory: 64Gi}}
          securityContext: {capabilities: {add: [IPC_LOCK]}}
        volumes: [{name: dshm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]
  - {name: decode, role: decode, replicas: 2, accelerator: {type: l40s, perNode: 4}, spot: true}
  tiers: {dram: 32Gi, nvme: 500G, nvmeDir: /cache}
  redis: redis://cache:6379
""" % ("0" * 64)

LLAMA_70B: Final = """
apiVersion: tandem.dev/v1alpha1
kind: ModelService
metadata: {name: llama-70b, namespace: llm}
spec:
  model:
    source: hf://meta-llama/Llama-3.1-70B-Instruct
    revision: main
    name: llama-3.1-70b-instruct
    aliases: [llama-70b]
    credentialsSecret: hub
  engine: {type: vllm, device: cuda, dtype: bfloat16, blockTokens: 16, contextTokens: 32768}
  pools:
  - name: prefill
    role: prefill
    parallelism: {tensor: 4}
    accelerator: {type: h100-sxm, perNode: 8, memory: 80Gi, dollarsPerHour: 32.5}
    topology: {pack: kubernetes.io/hostname, near: topology.kubernetes.io/zone}
    autoscaling: {minReplicas: 1, maxReplicas: 8}
    image: registry.example/tandem-vllm@sha256:0123
  - name: decode
    role: decode
    parallelism: {tensor: 4}
    accelerator: {type: h100-sxm, perNode: 8, dollarsPerHour: 32.5}
    topology: {near: topology.kubernetes.io/zone}
    spare: 1
    drainSeconds: 600
    autoscaling:
      minReplicas: 2
      maxReplicas: 16
      schedule: [{start: "0 7 * * 1-5", durationSeconds: 36000, replicas: 6}]
  rollout: {weight: 10, maxSurge: "25%", maxUnavailable: 0, gate: {agreement: 0.98, kl: 0.1}}
  routing: {policy: prefix_aware, maxQueueSeconds: 120}
  slo: {ttftMs: 800, tpotMs: 40, percentile: 95}
"""

MOE: Final = """
apiVersion: tandem.dev/v1alpha1
kind: ModelService
metadata: {name: deepseek}
spec:
  model: {source: "s3://weights/deepseek-v3", credentialsSecret: weights}
  engine: {type: vllm, device: cuda, kvDtype: auto}
  pools:
  - name: prefill
    role: prefill
    replicas: 2
    parallelism: {tensor: 16, expert: true}
    accelerator: {type: h200-sxm, perNode: 8, resource: nvidia.com/gpu}
    topology: {pack: topology.kubernetes.io/rack}
  - name: decode
    role: decode
    replicas: 1
    parallelism: {tensor: 8, pipeline: 4, expert: true}
    accelerator: {type: h200-sxm, perNode: 8}
    topology: {pack: topology.kubernetes.io/rack}
"""

ASLEEP_AT_NIGHT: Final = """
apiVersion: tandem.dev/v1alpha1
kind: ModelService
metadata: {name: night}
spec:
  engine: {type: simulated, preset: h100-llama-3.1-70b-tp4, blockTokens: 16}
  pools:
  - {name: prefill, role: prefill, autoscaling: {minReplicas: 0, maxReplicas: 4, idleAfterSeconds: 900}}
  - {name: decode, role: decode, autoscaling: {minReplicas: 0, maxReplicas: 4, idleAfterSeconds: 900}}
  rollout: {paused: true, maxSurge: 0, maxUnavailable: 1}
"""

AMD: Final = """
apiVersion: tandem.dev/v1alpha1
kind: ModelService
metadata: {name: amd}
spec:
  model: {source: "oci://registry.example/models/qwen:32b"}
  engine: {type: vllm, device: cuda, speculative: {method: ngram, tokens: 4}}
  pools:
  - name: prefill
    role: prefill
    engine: {type: vllm, device: cuda, eager: true}
    accelerator: {type: mi300x, resource: amd.com/gpu}
    parallelism: {tensor: 2}
  - {name: decode, role: decode, accelerator: {type: mi300x, resource: amd.com/gpu}, parallelism: {tensor: 2}}
  - {name: small, role: unified, replicas: 0}
  store: {dram: 8Gi}
"""

SHARED: Final = """
apiVersion: tandem.dev/v1alpha1
kind: ModelService
metadata: {name: shared}
spec:
  model: {source: "hf://Qwen/Qwen3-0.6B"}
  engine: {type: vllm, device: cuda, contextTokens: 8192}
  pools:
  - {name: prefill, role: prefill, accelerator: {type: a10g, sharedBy: 2}}
  - {name: decode, role: decode, gpuMemoryShare: 0.4, accelerator: {type: a10g, sharedBy: 2}}
  - {name: slice, role: unified, accelerator: {type: h100, memory: 10G, resource: nvidia.com/mig-1g.10gb}}
"""

AUTO: Final = """
apiVersion: tandem.dev/v1alpha1
kind: ModelService
metadata: {name: auto}
spec:
  engine: {type: simulated, preset: h100-llama-3.1-70b-tp4}
  pools:
  - {name: workers, role: auto, accelerator: {type: h100-sxm}, autoscaling: {maxReplicas: 8}}
  - {name: spot, role: auto, accelerator: {type: h100-sxm}, replicas: 2, spot: true}
  slo: {ttftMs: 2000, tpotMs: 25}
"""

REDIS_IN_A_SECRET: Final = """
apiVersion: tandem.dev/v1alpha1
kind: ModelService
metadata: {name: indexed}
spec:
  pools:
  - {name: all, role: unified}
  redisSecretRef: {name: redis-of-llm, key: uri}
"""

GOOD: Final = {
    "a split that follows the load": AUTO,
    "parts of GPUs": SHARED,
    "smallest": SMALLEST,
    "one node": ONE_NODE,
    "70B, TP 4, P/D, autoscaled": LLAMA_70B,
    "MoE with experts": MOE,
    "asleep at night": ASLEEP_AT_NIGHT,
    "AMD, engines per pool": AMD,
    "Redis in a Secret": REDIS_IN_A_SECRET,
}
