"""Settings of vLLM as the engine. Nothing here imports vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

from tandem.core.errors import TandemError
from tandem.core.images import IMAGES_MAX
from tandem.engine.vllm.exchange import TRANSFERS

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES: Final[tuple[str, ...]] = get_args(Dtype)
KvDtype = Literal[
    "auto",
    "float16",
    "bfloat16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
    "ultraquant_4bit",
    "int4_per_token_head",
    "int8_per_token_head",
    "fp8_per_token_head",
    "nvfp4",
    "nvfp4_4over6",
]
"""All that vLLM 0.32 has; which of them a device has, vLLM says at start."""
KV_DTYPES: Final[tuple[str, ...]] = get_args(KvDtype)
CPU_BLOCK_TOKENS: Final = 32
"""vLLM's CPU kernels pack whole blocks of a multiple of so many tokens."""


@dataclass(frozen=True)
class Parallelism:
    """Over how many ranks one worker spreads the model. `expert` shards MoE layers by expert instead of by column."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data"):
            count = getattr(self, name)
            if count < 1:
                raise TandemError("bad_setting", f"{name} = {count}: expected at least 1", param=name)

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data


Method = Literal["ngram", "draft_model", "eagle", "eagle3", "mtp"]
METHODS: Final[tuple[str, ...]] = get_args(Method)
"""How vLLM drafts tokens: from the text, by a smaller model, by heads on the model's own states, or by layers that
came with it."""


@dataclass(frozen=True)
class Speculative:
    """Draft `tokens` at a time and have the model check them in one step; 0 does not."""

    method: str = "ngram"
    """One of `METHODS`, in vLLM's words."""
    model: str | None = None
    """The draft model's or the heads' directory or hub id; for `mtp` by default the model itself."""
    tokens: int = 0
    lookup: int = 4
    """For `ngram`: the longest run of tokens that is looked for earlier in the text."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise self._bad("method", f"expected one of {', '.join(METHODS)}")
        if self.tokens < 0:
            raise self._bad("tokens", "expected 0 or more")
        if self.lookup < 1:
            raise self._bad("lookup", "expected at least 1")
        if self.tokens and self.method in ("draft_model", "eagle", "eagle3") and not self.model:
            raise self._bad("model", f"{self.method} needs the directory or hub id of what drafts")
        if self.method == "ngram" and self.model:
            raise self._bad("model", "ngram looks in the text, it has no model")

    @property
    def keeps_kv(self) -> bool:
        """Whether what drafts has a KV cache of its own."""
        return self.tokens > 0 and self.method != "ngram"

    def _bad(self, name: str, what: str) -> TandemError:
        return TandemError("bad_setting", f"{name} = {getattr(self, name)!r}: {what}", param=name)


class RunnerKind(NamedTuple):
    """How vLLM samples on a worker: by its second model runner (`v2`), as on GPUs, or by its first, as on CPUs.

    The first draws from a generator per request, whose state depends on every step before; the second from seed and
    absolute position. The first takes no logits processors while it speculates.
    """

    v2: bool = False
    speculates: bool = False

    @property
    def processes(self) -> bool:
        """Whether our logits processors run: they force known tokens and, on the first runner, draw with seeds."""
        return self.v2 or not self.speculates


@dataclass(frozen=True)
class Nodes:
    """Over how many machines one worker spreads its ranks, evenly, and which of them this is: `rank` 0 leads and is
    the worker; the others hold ranks of its engine and follow it.

    `leader` is the leader's name or address, where it listens for followers at `port`; `host` is this machine's own
    address, as the others reach it.
    """

    count: int = 1
    rank: int = 0
    leader: str = "127.0.0.1"
    port: int = 7403
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise TandemError("bad_setting", f"count = {self.count}: expected at least 1", param="count")
        if not 0 <= self.rank < self.count:
            problem = f"rank = {self.rank}: expected 0 to {self.count - 1}, as there are {self.count} nodes"
            raise TandemError("bad_setting", problem, param="rank")
        if not 1 <= self.port <= 65535:
            raise TandemError("bad_setting", f"port = {self.port}: expected 1 to 65535", param="port")


@dataclass(frozen=True)
class VllmSettings:
    """What to load and how to run it. `bad_setting` errors name these fields.

    How much runs at once is in `SchedulerSettings`, as for every engine.
    """

    model: str = "demo"
    """`demo`, a model directory or a hub id."""
    name: str | None = None
    """What clients call the model; by default the directory's name or the hub id."""
    dtype: str = "auto"
    block_tokens: int | None = None
    """Tokens of a KV block. By default vLLM chooses what the model and its attention backend are best with, and the
    worker announces what that is."""
    blocks: int | None = None
    """Number of KV blocks; overrides `kv_memory_bytes`."""
    kv_memory_bytes: int | None = None
    """KV memory of vLLM itself; by default 1 GiB on a CPU, elsewhere `gpu_memory_share` of the device."""
    gpu_memory_share: float = 0.9
    """Of each GPU: weights, KV and activations together."""
    start_locks: tuple[str, ...] = ()
    """Files, one per GPU, that are locked while the engine starts: vLLM takes memory that a neighbour on the GPU
    allocates meanwhile for its own, and fails when the neighbour frees some."""
    context_tokens: int | None = None
    """Serve at most this context (vLLM's `max_model_len`)."""
    device: str = "cpu"
    """`cpu` or `cuda`."""
    parallelism: Parallelism = field(default_factory=Parallelism)
    nodes: Nodes = field(default_factory=Nodes)
    quantization: str | None = None
    """One of vLLM's methods; by default what the checkpoint says."""
    kv_dtype: str = "auto"
    kv_transfer: str = "auto"
    """`auto` exchanges KV with other workers and with tiers where the model's caches can be, and where that costs a
    unified worker nothing; `always` insists; `never` runs vLLM without a KV connector."""
    images_per_prompt: int = 4
    """Of a model with vision in a unified worker: the most images that a prompt may have; 0 does not load what reads
    them."""
    adapters: tuple[str, ...] = ()
    """Directories of LoRA adapters; each is served under the directory's name, or as `NAME=DIRECTORY` says."""
    adapter_rank_max: int = 16
    speculative: Speculative = field(default_factory=Speculative)
    eager: bool | None = None
    """Without compiling the model: starts in seconds. By default on a CPU, where compiling gains little."""
    threads: int | None = None
    """Threads of each rank on a CPU; by default one less than the cores this process may use, at least one."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """More of vLLM's engine arguments, as on its command line but with underscores; see `extra_args.py`."""
    cache: Path | None = None
    """Where hub downloads go; by default the hub's own place."""
    directory: str | None = None
    """Where the sockets of its processes are made; None is the system's place for temporary files."""
    start_timeout_s: float = 600.0
    step_timeout_s: float = 600.0
    """The most that a step may take, whatever it is predicted to; also for the first request, on which nothing is
    known."""
    step_timeout_min_s: float = 30.0
    """A step may take eight times as long as the longest is predicted to, and so long in any case."""
    beat_lost_s: float = 2.0
    """A process of the engine that shows no sign of life for so long is ended."""

    def __post_init__(self) -> None:
        self._require("dtype", self.dtype in DTYPES, f"one of {', '.join(DTYPES)}")
        self._require("kv_dtype", self.kv_dtype in KV_DTYPES, f"one of {', '.join(KV_DTYPES)}")
        self._require("kv_transfer", self.kv_transfer in TRANSFERS, f"one of {', '.join(TRANSFERS)}")
        self._require("device", self.device in ("cpu", "cuda"), "cpu or cuda")
        for name in ("block_tokens", "blocks", "kv_memory_bytes", "context_tokens", "threads"):
            value = getattr(self, name)
            self._require(name, value is None or value >= 1, "at least 1")
        self._require("images_per_prompt", 0 <= self.images_per_prompt <= IMAGES_MAX, f"0 to {IMAGES_MAX}")
        self._require("adapter_rank_max", self.adapter_rank_max >= 1, "at least 1")
        self._require("gpu_memory_share", 0 < self.gpu_memory_share <= 1, "above 0 and at most 1")
        for name in ("start_timeout_s", "step_timeout_s", "step_timeout_min_s"):
            self._require(name, getattr(self, name) > 0, "above 0")
        self._require("beat_lost_s", self.beat_lost_s >= 1, "at least 1")
        if self.device == "cpu":
            fits = self.block_tokens is None or self.block_tokens % CPU_BLOCK_TOKENS == 0
            self._require("block_tokens", fits, f"a multiple of {CPU_BLOCK_TOKENS} on a CPU")

    def of_role(self, role: str) -> "VllmSettings":
        """As a worker of this role gives them to vLLM: a prompt with images is computed where its answer is."""
        return self if role == "unified" else replace(self, images_per_prompt=0)

    @property
    def runs_eager(self) -> bool:
        return self.device == "cpu" if self.eager is None else self.eager

    @property
    def ranks_here(self) -> int:
        """Ranks on this machine."""
        return max(1, self.parallelism.ranks // self.nodes.count)

    @property
    def runner(self) -> RunnerKind:
        """vLLM 0.32 has no second model runner for CPUs."""
        return RunnerKind(self.device != "cpu", self.speculates)

    @property
    def speculates(self) -> bool:
        return self.speculative.tokens > 0

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise TandemError("bad_setting", f"{name} = {getattr(self, name)!r}: expected {what}", param=name)
