"""Simulated models with the step times of real ones, by name.

A step of a preset takes `base_s + sequence_s * decoding sequences + read_s * their cached positions + token_s *
prompt tokens + context_s * positions those attend to` seconds. Sources, and the error against their rows:

- `h100-llama-3.1-8b`, `h100-llama-3.1-70b-tp4`, `h200-llama-3.1-70b-tp4`, `h100-qwen3-32b-tp2`: least squares over
  the measured inter-token times of NVIDIA's aiconfigurator (github.com/ai-dynamo/aiconfigurator, Apache-2.0,
  `systems/silicon_sample.csv`; TensorRT-LLM 1.0 for the first, vLLM for the others, FP8 weights for 70B; batches in
  which prompts are computed beside running sequences): within 12 % of every row. Those rows do not tell attention
  from the rest of a prompt's work. `context_s` and attention's share of `token_s` come from the tables of the
  attention kernel (the same source, `context_attention`, FlashAttention 3 in vLLM 0.24 with BF16 KV; times the
  layers): within 10 % of prompts of 2,048, 4,096, 8,192, 12,288 and 16,384 tokens. Kernels of shorter prompts take
  no less than their launches, 2 ms of a step at most, which is in no coefficient. `token_s` is the rows' time of a
  prompt token less `context_s` times the 1,024 positions that a token of a prompt of 2,048 attends to on average.
- `h100-llama-3.1-70b-bf16-tp4`: the FP8 preset of the same GPUs plus what BF16 weights add in the tables of the
  kernels (the same source; `gemm` by shape and NCCL's `all_reduce`, times the layers): 4.5 ms a step and, in chunks
  of 4,096 tokens, 13 us a prompt token. The tables' sums for FP8 are 1.5 ms and 1 us off that preset.
- `a800-llama-3-70b-tp8`: those tables' sums for A100 with BF16, NVLink of an A800 (400 GB/s for 600, so all-reduces
  take 1.5 times as long), attention of prompts and of sequences from its tables. Not measured as a whole.
- `h100-llama-2-70b-tp8`, `a100-llama-2-70b-tp8`: least squares over Splitwise's measurements
  (github.com/Mutinifni/splitwise-sim, MIT, `data/perf_model.csv`): within 7 % of its token times and 40 % of its
  prompt times, which do not grow evenly there.
- `a100-opt-13b`: DistServe's own fit of vLLM (github.com/LLMServe/DistServe, Apache-2.0,
  `simdistserve/estimators/profile_data`), with its formula for small batches.

`blocks` is what 90 % of the GPUs' memory holds beside the weights, in blocks of 16 tokens. A simulated block is 256
bytes long whatever the model; `kv_token_bytes` is what a token's KV would be, so that networks can be scaled.
"""

from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final

from tandem.core.errors import TandemError
from tandem.engine.simulated.model import SimulatedModel

_FROM_PRESET: Final = ("context_tokens", "blocks", "base_s", "sequence_s", "token_s", "context_s", "read_s")


@dataclass(frozen=True)
class Preset:
    """A simulated model, the bytes of KV that a token of the real model has, and attention's share of
    `model.token_s`, which is 0 where no table gives it."""

    model: SimulatedModel
    kv_token_bytes: int
    attention_token_s: float = 0.0

    def attention_s(self, tokens: int, cached: int = 0) -> float:
        """Seconds that attention takes of a prompt's `tokens` behind `cached` ones."""
        attended = tokens * cached + tokens * tokens / 2
        return tokens * self.attention_token_s + attended * self.model.context_s

    def simulated_rate(self, bytes_per_s: float) -> float:
        """The bytes per second at which simulated blocks carry as many tokens as real KV does on a link of
        `bytes_per_s`."""
        layout = self.model.layout
        return bytes_per_s * layout.block_bytes / layout.block_tokens / self.kv_token_bytes


def _preset(
    name: str,
    *,
    base_ms: float,
    sequence_us: float,
    read_ns: float,
    token_us: float,
    context_ns: float,
    context_tokens: int,
    blocks: int,
    kv_token_bytes: int,
    attention_us: float = 0.0,
) -> tuple[str, Preset]:
    model = SimulatedModel(
        context_tokens=context_tokens,
        blocks=blocks,
        base_s=base_ms / 1e3,
        sequence_s=sequence_us / 1e6,
        read_s=read_ns / 1e9,
        token_s=token_us / 1e6,
        context_s=context_ns / 1e9,
    )
    return name, Preset(model, kv_token_bytes, attention_us / 1e6)


# fmt: off
PRESETS: Final = MappingProxyType(dict((
    _preset("h100-llama-3.1-8b", base_ms=6.421, sequence_us=0.0, read_ns=49.94, token_us=18.9, context_ns=0.71,
            attention_us=0.66, context_tokens=131_072, blocks=26_600, kv_token_bytes=131_072),
    _preset("h100-llama-3.1-70b-tp4", base_ms=11.02, sequence_us=54.7, read_ns=27.91, token_us=43.7, context_ns=0.863,
            attention_us=0.88, context_tokens=131_072, blocks=41_000, kv_token_bytes=327_680),
    _preset("h100-llama-3.1-70b-bf16-tp4", base_ms=15.5, sequence_us=54.7, read_ns=27.91, token_us=57.0,
            context_ns=0.863, attention_us=0.88, context_tokens=131_072, blocks=28_836, kv_token_bytes=327_680),
    _preset("h200-llama-3.1-70b-tp4", base_ms=9.183, sequence_us=45.5, read_ns=20.83, token_us=41.5, context_ns=0.859,
            attention_us=0.92, context_tokens=131_072, blocks=83_000, kv_token_bytes=327_680),
    _preset("h100-qwen3-32b-tp2", base_ms=13.958, sequence_us=57.1, read_ns=54.24, token_us=47.5, context_ns=1.468,
            attention_us=1.21, context_tokens=40_960, blocks=18_700, kv_token_bytes=262_144),
    _preset("h100-llama-2-70b-tp8", base_ms=29.8, sequence_us=201.6, read_ns=177.76, token_us=64.88, context_ns=7.04,
            context_tokens=8_192, blocks=83_000, kv_token_bytes=327_680),
    _preset("a100-llama-2-70b-tp8", base_ms=44.156, sequence_us=200.0, read_ns=309.96, token_us=150.24,
            context_ns=3.94, context_tokens=8_192, blocks=83_000, kv_token_bytes=327_680),
    _preset("a800-llama-3-70b-tp8", base_ms=18.0, sequence_us=72.0, read_ns=26.99, token_us=103.0, context_ns=1.67,
            attention_us=1.96, context_tokens=131_072, blocks=83_000, kv_token_bytes=327_680),
    _preset("a100-opt-13b", base_ms=23.475, sequence_us=60.7, read_ns=593.0, token_us=140.5, context_ns=16.15,
            context_tokens=2_048, blocks=4_134, kv_token_bytes=819_200),
)))
# fmt: on


def preset(name: str) -> Preset:
    """The preset of that name. Raises `bad_setting` with the names there are."""
    found = PRESETS.get(name)
    if found is None:
        problem = f"there is no preset {name!r}; there are {', '.join(PRESETS)}"
        raise TandemError("bad_setting", problem, param="preset")
    return found


@dataclass(frozen=True)
class SimulatedSettings(SimulatedModel):
    """The settings that a worker process receives for a simulated model: `preset`, when given, decides step times,
    context and blocks."""

    preset: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preset is not None:
            preset(self.preset)

    @property
    def resolved(self) -> SimulatedModel:
        """The model that is meant."""
        given = {field.name: getattr(self, field.name) for field in fields(SimulatedModel)}
        if self.preset is not None:
            given |= {name: getattr(preset(self.preset).model, name) for name in _FROM_PRESET}
        return SimulatedModel(**given)
