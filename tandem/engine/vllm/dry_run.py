"""A dry run of vLLM: what it makes of our arguments on a card that need not be here. It uses vLLM's own parser and
configuration, and loads nothing.

vLLM decides per process what it runs on, so a dry run has a process of its own, whose platform is the stub of a card.
`resolve` starts that process; `python -m tandem.engine.vllm.dry_run` is it. Only `config.json` of a model is read.
"""

import os
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from tandem.core.errors import TandemError
from tandem.engine.vllm.arguments import EngineArguments

if TYPE_CHECKING:
    from tandem.engine.vllm.dry_backends import Backends
    from tandem.engine.vllm.internals import VllmConfig

_EXTENSIONS: Final = {
    "cuda": ("vllm._C_stable_libtorch", "vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C"),
    "rocm": ("vllm._C", "vllm._C_stable_libtorch", "vllm._rocm_C"),
    "cpu": (),
}
"""Compiled modules of a build whose presence alone is asked for."""
_CAPABILITIES: Final = (
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_group_gemm_supported",
)
"""Kernels of such a build that say what the card can; those cards of Hopper's age have."""
_REFUSALS: Final = (
    ValueError, TypeError, LookupError, AttributeError, AssertionError, RuntimeError, OSError, ImportError
)  # fmt: skip
"""Exceptions with which vLLM refuses arguments."""
_LAST_LINE: Final = "tandem-dry-run "


Build = Literal["cuda", "rocm", "cpu"]
"""The platform that vLLM is built for."""


class Card(msgspec.Struct, frozen=True):
    """A kind of accelerator, or processors. `capability` is CUDA's, `architecture` AMD's word for the same (gfx942);
    `count` so many are in the machine."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    count: int = 8
    build: Build = "cuda"
    architecture: str = ""


PROCESSORS: Final = "processors"
H100: Final = Card("NVIDIA H100 80GB HBM3", (9, 0), 80 << 30)


class Resolved(msgspec.Struct, frozen=True):
    """The decisions that vLLM has made. `block_tokens` is the value before an attention backend has had its say.

    `backends` are the attention backends that vLLM could choose, best first, None where they are not known;
    `backends_lost` are those that our block size excludes, and `connector_lost` those that it takes only without any
    KV connector. `problem` is why vLLM would not start, in its words; the other fields mean nothing then.
    """

    async_scheduling: bool = False
    v2_model_runner: bool = False
    block_tokens: int = 0
    max_batched_tokens: int = 0
    executor: str = ""
    speculation: str | None = None
    processors: tuple[str, ...] = ()
    backends: tuple[str, ...] | None = None
    backends_lost: tuple[str, ...] = ()
    connector_lost: tuple[str, ...] = ()
    problem: str | None = None


class _Question(msgspec.Struct, frozen=True):
    """The message from the parent to the process of dry runs."""

    card: Card
    arguments: tuple[tuple[dict[str, Any], dict[str, str]], ...]


def resolve(
    arguments: Sequence[EngineArguments], card: Card = H100, timeout_s: float = 180.0
) -> tuple[Resolved, ...]:
    """Resolve each of the `arguments` in a dry run, in order. Takes about ten seconds, nearly all of them to import
    vLLM.

    Raises `engine_failed` when the process gives no answer in time: vLLM is not installed here, or cannot be stubbed.
    """
    question = _Question(card, tuple((dict(each.keywords), dict(each.environment)) for each in arguments))
    command = [sys.executable, "-m", "tandem.engine.vllm.dry_run"]
    try:
        ended = subprocess.run(
            command, input=msgspec.json.encode(question), capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise TandemError("engine_failed", f"a dry run of vLLM said nothing within {timeout_s:g} s") from None
    lines = ended.stdout.decode(errors="replace").splitlines()
    said = next((line for line in reversed(lines) if line.startswith(_LAST_LINE)), None)
    if said is None:
        words = ended.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise TandemError("engine_failed", f"a dry run of vLLM ended with {ended.returncode}: {words[-1]}")
    return msgspec.json.decode(said.removeprefix(_LAST_LINE), type=tuple[Resolved, ...])


def _main() -> None:
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=_Question)
    os.environ |= {"VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    pretend(question.card)
    answers = [_resolved(keywords, environment) for keywords, environment in question.arguments]
    sys.stdout.write(f"\n{_LAST_LINE}{msgspec.json.encode(answers).decode()}\n")


def _resolved(keywords: Mapping[str, Any], environment: Mapping[str, str]) -> Resolved:
    from tandem.engine.vllm.client import engine_args

    with _environment(environment):
        try:
            return _told(engine_args(keywords).create_engine_config())
        except _REFUSALS as error:
            return Resolved(problem=" ".join(str(error).split()) or type(error).__name__)


def _told(config: "VllmConfig") -> Resolved:
    speculation, found = config.speculative_config, _backends(config)
    return Resolved(
        async_scheduling=bool(config.scheduler_config.async_scheduling),
        v2_model_runner=bool(config.use_v2_model_runner),
        block_tokens=int(config.cache_config.block_size),
        max_batched_tokens=int(config.scheduler_config.max_num_batched_tokens),
        executor=str(config.parallel_config.distributed_executor_backend),
        speculation=None if speculation is None else str(speculation.method),
        processors=tuple(str(each) for each in config.model_config.logits_processors or ()),
        backends=None if found is None else found.left,
        backends_lost=() if found is None else found.lost_to_blocks,
        connector_lost=() if found is None else found.lost_to_connector,
    )


def _backends(config: "VllmConfig") -> "Backends | None":
    """None, too, where a backend asks the card for something that its stub does not know."""
    from tandem.engine.vllm.dry_backends import backends

    try:
        return backends(config)
    except _REFUSALS:
        return None


@contextmanager
def _environment(names: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables for the duration of the context: vLLM reads its own when it needs them."""
    before = {name: os.environ.get(name) for name in names}
    os.environ |= names
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def pretend(card: Card) -> None:
    """Make this process one with such cards, as far as vLLM's configuration asks. Nothing of vLLM may be imported."""
    sys.modules |= {name: types.ModuleType(name) for name in _EXTENSIONS[card.build]}
    if card.build == "rocm":
        sys.modules["amdsmi"] = _amdsmi(card)
    import torch

    from tandem.engine.vllm.internals import platforms

    if card.build == "cuda":
        for name in _CAPABILITIES:
            setattr(torch.ops._C, name, lambda _capability: True)
    platforms._current_platform = _platform(card)
    if card.build == "rocm":
        from tandem.engine.vllm.internals import triton_utils

        # Kernels for AMD name it when they are imported; vLLM's stand-in for Triton does not know it.
        triton_utils.tl.bfloat16 = getattr(triton_utils.tl, "bfloat16", None)
    if card.build != "cpu":
        # A card has one driver of Triton's, which is not looked for again.
        from tandem.engine.vllm.internals import vllm_config

        vllm_config.HAS_TRITON = True


def _platform(card: Card) -> Any:
    """vLLM's platform of that build with what it would ask the driver."""
    if card.build == "cpu":
        from tandem.engine.vllm.internals import CpuPlatform

        return _answered(CpuPlatform, {"get_device_total_memory": card.memory_bytes})
    from tandem.engine.vllm.internals import DeviceCapability

    answers: dict[str, Any] = {
        "get_device_capability": DeviceCapability(*card.capability),
        "get_device_name": card.name,
        "get_device_total_memory": card.memory_bytes,
        "is_fully_connected": True,
        "device_count": card.count,
        "num_compute_units": 132,
    }
    if card.build == "rocm":
        from tandem.engine.vllm.internals import RocmPlatform

        return _answered(RocmPlatform, answers)
    from tandem.engine.vllm.internals import CudaPlatformBase

    return _answered(CudaPlatformBase, answers)


def _answered(platform: type, answers: Mapping[str, Any]) -> Any:
    methods: dict[str, Any] = {name: classmethod(_answering(answer)) for name, answer in answers.items()}
    return type("StubPlatform", (platform,), methods)()


def _amdsmi(card: Card) -> Any:
    """A stub of AMD's library for asking its driver. vLLM asks it for the architecture when its platform is
    imported."""
    module: Any = types.ModuleType("amdsmi")
    module.AmdSmiException = RuntimeError
    module.AmdSmiMemoryType = types.SimpleNamespace(VRAM=0)
    module.amdsmi_get_processor_handles = lambda: list(range(card.count))
    module.amdsmi_get_gpu_asic_info = lambda _handle: {
        "target_graphics_version": card.architecture, "device_id": "", "market_name": card.name
    }  # fmt: skip
    module.amdsmi_get_gpu_memory_total = lambda _handle, _kind: card.memory_bytes
    for name in (
        "amdsmi_get_gpu_device_uuid", "amdsmi_init", "amdsmi_shut_down", "amdsmi_topo_get_link_type",
        "amdsmi_topo_get_numa_node_number",
    ):  # fmt: skip
        setattr(module, name, lambda *_asked: "")
    return module


def _answering(answer: Any) -> Any:
    return lambda _cls, *_asked, **_named: answer


if __name__ == "__main__":
    _main()
