"""A LoRA adapter of random numbers for a model directory, in the files that training leaves behind."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK = 4


def write_adapter(model: Path, place: Path, *, strength: float = 0.15, seed: int = 0) -> Path:
    """Of the query and value projections of every layer. Strong enough to change what a greedy model says."""
    config = json.loads((model / "config.json").read_text())
    hidden, head = config["hidden_size"], config["head_dim"]
    outputs = {"q_proj": config["num_attention_heads"] * head, "v_proj": config["num_key_value_heads"] * head}
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, width in outputs.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(RANK, hidden, generator=random) * strength
            weights[f"{prefix}.lora_B.weight"] = torch.randn(width, RANK, generator=random) * strength
    place.mkdir(parents=True)
    save_file(weights, place / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(outputs),
        "base_model_name_or_path": str(model),
    }
    (place / "adapter_config.json").write_text(json.dumps(described))
    return place
