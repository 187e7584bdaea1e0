"""The demo model in the repository: small, complete, and readable without torch."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

DEMO = Path(__file__).resolve().parents[4] / "tandem" / "models" / "demo"
SIZE_MAX_BYTES = 8 * 2**20


def settings(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DEMO / name).read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def tensors() -> dict[str, Any]:
    """The header of the safetensors file: name to dtype and shape."""
    with (DEMO / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def test_files_are_there_and_small() -> None:
    names = {path.name for path in DEMO.iterdir()}
    assert names >= {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in DEMO.iterdir()) <= SIZE_MAX_BYTES


def test_config_is_a_small_llama(tokenizer: Tokenizer) -> None:
    config = settings("config.json")
    assert config["model_type"] == "llama"
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["num_hidden_layers"]) == (192, 6)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (6, 2, 32)
    assert config["tie_word_embeddings"] is True
    assert config["max_position_embeddings"] >= 4096
    assert config["vocab_size"] == tokenizer.get_vocab_size() == 1536


def test_special_tokens_agree(tokenizer: Tokenizer) -> None:
    config, generation, texts = (
        settings(f"{name}.json") for name in ("config", "generation_config", "tokenizer_config")
    )
    for kind in ("bos", "eos", "pad"):
        token_id = tokenizer.token_to_id(texts[f"{kind}_token"])
        assert config[f"{kind}_token_id"] == generation[f"{kind}_token_id"] == token_id


def test_weights_are_bfloat16_and_complete() -> None:
    found = tensors()
    assert {entry["dtype"] for entry in found.values()} == {"BF16"}
    assert "lm_head.weight" not in found
    assert found["model.embed_tokens.weight"]["shape"] == [1536, 192]
    assert len(found) == 2 + 6 * 9


@pytest.mark.parametrize("text", ["Hello world.", "1. Apples\n2. Pears", "naïve café — 12 + 34\t!", "  two  spaces "])
def test_tokenizer_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(text).ids == [tokenizer.token_to_id("<|begin|>"), *ids]


def test_chat_template_renders_to_single_special_tokens(tokenizer: Tokenizer) -> None:
    template = ImmutableSandboxedEnvironment().from_string((DEMO / "chat_template.jinja").read_text(encoding="utf-8"))
    texts = settings("tokenizer_config.json")
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": " Hello! \n"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Who are you?"},
    ]
    rendered = template.render(
        messages=messages,
        add_generation_prompt=True,
        bos_token=texts["bos_token"],
        eos_token=texts["eos_token"],
    )
    assert rendered == (
        "<|begin|><|system|>Be kind.<|end|><|user|>Hello!<|end|><|assistant|>Hi.<|end|>"
        "<|user|>Who are you?<|end|><|assistant|>"
    )
    tokens = tokenizer.encode(rendered, add_special_tokens=False).tokens
    assert [token for token in tokens if token.startswith("<|")] == [
        "<|begin|>",
        *["<|system|>", "<|end|>", "<|user|>", "<|end|>", "<|assistant|>", "<|end|>", "<|user|>", "<|end|>"],
        "<|assistant|>",
    ]
