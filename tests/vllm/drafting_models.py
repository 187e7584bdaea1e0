"""Tiny models of random numbers with what drafts for them: EAGLE and EAGLE-3 heads, and a layer for MTP.

A head of random numbers of its own would never be right, and nothing would be accepted. These models have one layer,
and what drafts is that layer a little wrong: it guesses from the token before, as the model does, and is often right.
"""

import json
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.vllm.models import copy_tokenizer
from tools.models.configs import BASE, KINDS

_NOISE: Final = 0.15
_SPREAD: Final = 0.2
_CONTEXT: Final = 0.05
"""So much of what attention gives is heeded: a model that heeded more could not be guessed from one token."""
_LITTLE: Final = 0.003
_ATTENDING: Final = 2.0
"""Enough for a token of the EAGLE-3 head to attend to itself, nearly."""
_LAYER: Final = "model.layers.0."

Weights = dict[str, torch.Tensor]


def write_llama(place: Path) -> Path:
    """The model that EAGLE heads draft for."""
    config = transformers.LlamaConfig(**{**BASE, "num_hidden_layers": 1, "num_key_value_heads": 4})
    return _written(transformers.LlamaForCausalLM(config), "LlamaForCausalLM", place)


def write_eagle(target: Path, place: Path) -> Path:
    """A head in the files of EAGLE: it reads a token and the model's state, and here heeds the token alone."""
    own = load_file(target / "model.safetensors")
    layer = {f"layers.0.{name.removeprefix(_LAYER)}": each for name, each in own.items() if name.startswith(_LAYER)}
    # The first norm is left out in EAGLE; the embedding's rows are of the length that it would give them.
    del layer["layers.0.input_layernorm.weight"]
    hidden = own["model.norm.weight"].numel()
    layer["fc.weight"] = torch.cat([torch.eye(hidden), torch.zeros(hidden, hidden)], dim=1)
    return _head(target, place, _a_little_wrong(layer), {"architectures": ["LlamaForCausalLM"]})


def write_eagle3(target: Path, place: Path) -> Path:
    """A head in the files of EAGLE-3: attention carries the token to the model's feed-forward layer, and what the
    model's states add is little."""
    own = load_file(target / "model.safetensors")
    hidden = own["model.norm.weight"].numel()
    one, none = torch.eye(hidden), torch.zeros(hidden, hidden)
    head = {
        f"midlayer.{name}": own[_LAYER + name]
        for name in ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")
    }
    for name, weight in {"q": _ATTENDING * one, "k": _ATTENDING * one, "v": one}.items():
        head[f"midlayer.self_attn.{name}_proj.weight"] = torch.cat([weight, none], dim=1)
    head["midlayer.self_attn.o_proj.weight"] = one
    head["fc.weight"] = _LITTLE * torch.randn(hidden, 2 * hidden)
    head["lm_head.weight"] = own["lm_head.weight"]
    head = _a_little_wrong(head)
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        head[f"midlayer.{name}.weight"] = torch.ones(hidden)
    head["norm.weight"] = torch.ones(hidden)
    # The model's embedding and what its layer makes of it.
    states = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]}}
    return _head(target, place, head, {"architectures": ["LlamaForCausalLMEagle3"], **states})


def write_with_mtp(place: Path) -> Path:
    """A DeepSeek-V3 whose checkpoint has one layer for the token after the next."""
    _, kind = KINDS["deepseek-v3"]
    more = {"num_hidden_layers": 1, "first_k_dense_replace": 0, "num_nextn_predict_layers": 1}
    config = transformers.DeepseekV3Config(**{**BASE, **kind, **more})
    _written(transformers.DeepseekV3ForCausalLM(config), "DeepseekV3ForCausalLM", place)
    file = place / "model.safetensors"
    own = load_file(file)
    hidden = own["model.norm.weight"].numel()
    layer = {name.removeprefix(_LAYER): each for name, each in own.items() if name.startswith(_LAYER)}
    layer["eh_proj.weight"] = torch.cat([torch.eye(hidden), torch.zeros(hidden, hidden)], dim=1)
    layer = _a_little_wrong(layer)
    layer |= {f"{name}.weight": torch.ones(hidden) for name in ("enorm", "hnorm", "shared_head.norm")}
    layer |= {
        "shared_head.head.weight": own["lm_head.weight"],
        "embed_tokens.weight": own["model.embed_tokens.weight"],
    }
    save_file({**own, **{f"model.layers.1.{name}": each.clone() for name, each in layer.items()}}, file)
    return place


def _written(model: Any, architecture: str, place: Path) -> Path:
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() < 2:
                continue
            weight.normal_(0.0, _SPREAD)
            if "embed_tokens" in name:
                weight /= weight.square().mean(dim=1, keepdim=True).sqrt()
            if "o_proj" in name:
                # What is said depends on all that was said, but most on the last token.
                weight *= _CONTEXT
    model.save_pretrained(place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    return copy_tokenizer(place)


def _head(target: Path, place: Path, weights: Weights, differs: dict[str, Any]) -> Path:
    config = json.loads((target / "config.json").read_text())
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps({**config, **differs}))
    save_file({name: each.contiguous() for name, each in weights.items()}, place / "model.safetensors")
    return copy_tokenizer(place)


def _a_little_wrong(weights: Weights) -> Weights:
    return {name: each + _NOISE * each.std() * torch.randn_like(each) for name, each in weights.items()}
