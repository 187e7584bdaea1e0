"""Copies of the demo model with one thing changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tandem.model.directory import open_model


def copy_of_demo(path: Path, change: Callable[[Path], None] | None = None) -> Path:
    """A model directory at `path`, changed."""
    shutil.copytree(open_model("demo").path, path)
    if change is not None:
        change(path)
    return path


def other_rope(path: Path) -> None:
    """Another base of rotary positions."""
    config = path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "rope_theta": 500000.0}))


def rounded_to_int8(path: Path) -> None:
    """Every matrix through int8 and back, one scale for each row."""
    weights = path / "model.safetensors"
    save_file({name: _rounded(value) for name, value in load_file(weights).items()}, weights)


def _rounded(value: torch.Tensor) -> torch.Tensor:
    if value.ndim < 2:
        return value
    full = value.float()
    scale = full.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
    return ((full / scale).round() * scale).to(value.dtype)


def swapped_entries(path: Path) -> None:
    """Two entries of the vocabulary have each other's ids."""
    file = path / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    one, other = "Ġfox", "Ġlantern"
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    file.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
