"""Tiny models of random numbers, in the files of the hub, with the demo model's tokenizer."""

import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM

from tests.vllm.lending import DEMO

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def write_mixtral(place: Path) -> Path:
    """A mixture of four experts, of which each token sees two, in two layers."""
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=1536,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=1024,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    MixtralForCausalLM(config).save_pretrained(place)
    return copy_tokenizer(place)


def write_like_demo(place: Path) -> Path:
    """The demo model a little wrong: what it drafts is often right."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.15 * weights.std() * torch.randn_like(weights)
    model.save_pretrained(place)
    return copy_tokenizer(place)


def copy_tokenizer(place: Path) -> Path:
    """The demo model's, into a model's directory."""
    for name in _TOKENIZER:
        shutil.copy(DEMO / name, place / name)
    return place
