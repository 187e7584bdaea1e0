"""Simulated models with the step times of real ones, by name.

A step of a preset takes `base_s + sequence_s * decoding sequences + read_s * their cached positions + token_s *
prompt tokens + context_s * positions those attend to` seconds. Sources, and the error against their rows:

- `h100-llama-3.1-8b`, `h100-llama-3.1-70b-tp4`, `h200-llama-3.1-70b-tp4`, `h100-qwen3-32b-tp2`: least squares over
  the measured inter-token times of NVIDIA's aiconfigurator (github.com/ai-dynamo/aiconfigurator, Apache-2.0,
  `systems/silicon_sample.csv`; TensorRT-LLM 1.0 for the first, vLLM for the others, FP8 weights for 70B; batches in
  which prompts are computed beside running sequences): within 12 % of every row. Those rows do not tell attention
  from the rest of a prompt's work, so `context_s` is `4 * layers * heads * head_dim` FLOP per attended position at
  45 % of the GPUs' dense BF16 peak, and `token_s` is less by what that comes to in a prompt of 2,048 tokens.
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
    """A simulated model and the bytes that a token of its KV has in reality."""

    model: SimulatedModel
    kv_token_bytes: int

    def simulated_rate(self, bytes_per_s: float) -> float:
        """How fast simulated blocks must travel for a link of `bytes_per_s` to carry as many tokens."""
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
    return name, Preset(model, kv_token_bytes)


# fmt: off
PRESETS: Final = MappingProxyType(dict((
    _preset("h100-llama-3.1-8b", base_ms=6.421, sequence_us=0.0, read_ns=49.94, token_us=18.4, context_ns=1.18,
            context_tokens=131_072, blocks=26_600, kv_token_bytes=131_072),
    _preset("h100-llama-3.1-70b-tp4", base_ms=11.02, sequence_us=54.7, read_ns=27.91, token_us=43.1, context_ns=1.47,
            context_tokens=131_072, blocks=41_000, kv_token_bytes=327_680),
    _preset("h200-llama-3.1-70b-tp4", base_ms=9.183, sequence_us=45.5, read_ns=20.83, token_us=40.9, context_ns=1.47,
            context_tokens=131_072, blocks=83_000, kv_token_bytes=327_680),
    _preset("h100-qwen3-32b-tp2", base_ms=13.958, sequence_us=57.1, read_ns=54.24, token_us=46.6, context_ns=2.36,
            context_tokens=40_960, blocks=18_700, kv_token_bytes=262_144),
    _preset("h100-llama-2-70b-tp8", base_ms=29.8, sequence_us=201.6, read_ns=177.76, token_us=64.88, context_ns=7.04,
            context_tokens=8_192, blocks=83_000, kv_token_bytes=327_680),
    _preset("a100-llama-2-70b-tp8", base_ms=44.156, sequence_us=200.0, read_ns=309.96, token_us=150.24,
            context_ns=3.94, context_tokens=8_192, blocks=83_000, kv_token_bytes=327_680),
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
    """A simulated model as a worker process is told of it: `preset`, when given, decides step times, context and
    blocks."""

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
