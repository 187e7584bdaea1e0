"""The models that are tried, and what is known of each before anything runs. Imports neither torch nor vLLM."""

from dataclasses import dataclass
from typing import Final

FULL: Final = "full attention"


@dataclass(frozen=True)
class Entry:
    """One model. `caches` says in words what its layers keep of a prompt; `exchanged`, whether the stage carries that
    to another worker; `dtype`, what it is served in, as its kernels on a CPU want it; `without`, which kernel of vLLM
    is turned off, in vLLM alone too, because it is wrong there; `attention`, which backend is asked of both."""

    name: str
    title: str
    architecture: str
    caches: str = FULL
    exchanged: bool = True
    dtype: str = "float32"
    without: str = ""
    attention: str = ""
    runs: bool = True
    """Otherwise its kernels exist on GPUs alone: configuration, sizing and arguments are checked."""

    def arguments(self) -> dict[str, object]:
        """Engine arguments of vLLM's by which it is served everywhere."""
        found: dict[str, object] = {}
        if self.without:
            found["compilation_config"] = {"custom_ops": [f"-{self.without}"]}
        if self.attention:
            found["attention_backend"] = self.attention
        return found


_WINDOWS: Final = "full attention and sliding windows"
_STATE: Final = "full attention and recurrent state"
_LATENTS: Final = "latents (MLA)"
_LATENTS_FLOAT: Final = "CPU_MLA"
"""On CPUs with AMX vLLM takes a backend for latents that computes in bfloat16 alone."""

ENTRIES: Final = (
    Entry("llama", "Llama", "LlamaForCausalLM"),
    Entry("mistral", "Mistral", "MistralForCausalLM"),
    Entry("qwen2", "Qwen2", "Qwen2ForCausalLM"),
    Entry("qwen3", "Qwen3", "Qwen3ForCausalLM"),
    Entry("mixtral", "Mixtral", "MixtralForCausalLM"),
    Entry("qwen3-moe", "Qwen3-MoE", "Qwen3MoeForCausalLM"),
    Entry("deepseek-v3", "DeepSeek-V3", "DeepseekV3ForCausalLM", _LATENTS, attention=_LATENTS_FLOAT),
    Entry("deepseek-v2-lite", "DeepSeek-V2-Lite", "DeepseekV2ForCausalLM", _LATENTS, attention=_LATENTS_FLOAT),
    Entry(
        "moonlight",
        "Moonlight",
        "DeepseekV3ForCausalLM",
        _LATENTS,
        without="rotary_embedding",
        attention=_LATENTS_FLOAT,
    ),
    Entry("gpt-oss", "gpt-oss, bfloat16", "GptOssForCausalLM", _WINDOWS, dtype="bfloat16"),
    Entry("gemma-3", "Gemma-3, text", "Gemma3ForCausalLM", _WINDOWS),
    Entry("qwen3-next", "Qwen3-Next", "Qwen3NextForCausalLM", _STATE, exchanged=False, dtype="bfloat16"),
    Entry("glm-4-moe", "GLM-4-MoE", "Glm4MoeForCausalLM"),
    Entry("phi-3", "Phi-3", "Phi3ForCausalLM"),
    Entry("granite", "Granite", "GraniteForCausalLM"),
    Entry("granite-4", "Granite-4 hybrid", "GraniteMoeHybridForCausalLM", _STATE, exchanged=False),
    Entry("olmo-2", "OLMo-2", "Olmo2ForCausalLM"),
    Entry("llama-4", "Llama-4, text", "Llama4ForCausalLM", "full attention and chunks"),
    Entry("cohere-2", "Cohere-2", "Cohere2ForCausalLM", _WINDOWS),
    Entry("llava", "LLaVA, texts", "LlavaForConditionalGeneration"),
    Entry("awq", "Llama, AWQ", "LlamaForCausalLM", dtype="bfloat16"),
    Entry("gptq", "Llama, GPTQ", "LlamaForCausalLM", dtype="bfloat16"),
    Entry("int8", "Llama, compressed-tensors INT8", "LlamaForCausalLM", dtype="bfloat16"),
    Entry("w4a16", "Llama, compressed-tensors W4A16", "LlamaForCausalLM", dtype="bfloat16"),
    Entry("fp8-channel", "Llama, compressed-tensors FP8 per channel", "LlamaForCausalLM", dtype="bfloat16"),
    Entry("fp8", "Llama, FP8", "LlamaForCausalLM", runs=False),
    Entry("block-fp8", "DeepSeek-V3, FP8 in blocks", "DeepseekV3ForCausalLM", _LATENTS, runs=False),
    Entry("mxfp4", "gpt-oss, MXFP4", "GptOssForCausalLM", _WINDOWS, runs=False),
    Entry("gptq-moe", "Qwen3-MoE, GPTQ", "Qwen3MoeForCausalLM", runs=False),
    Entry(
        "deepseek-v3.2",
        "DeepSeek-V3.2",
        "DeepseekV32ForCausalLM",
        "latents (MLA) and an index",
        exchanged=False,
        runs=False,
    ),
)
CI: Final = ("llama", "deepseek-v3", "gemma-3", "granite-4", "awq")
"""Dense, experts with latents, windows, recurrent state, quantized."""


def named(names: str) -> tuple[Entry, ...]:
    """The entries of a list with commas; all of them for an empty one. Raises KeyError with the unknown name."""
    by_name = {entry.name: entry for entry in ENTRIES}
    return tuple(by_name[name.strip()] for name in names.split(",") if name.strip()) or ENTRIES
