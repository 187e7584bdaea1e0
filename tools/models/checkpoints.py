"""Writes the tiny models, in the files of the hub, with random weights and the demo model's tokenizer."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

import tandem.models
from tools.models import multimodal
from tools.models.catalogue import Entry
from tools.models.configs import KINDS, base_of, config_of

DEMO: Final = Path(tandem.models.__file__).parent / "demo"
_TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_DONE: Final = ".written"
_UNPACKED: Final = ("embed_tokens", "lm_head", "norm")


def write(entry: Entry, place: Path) -> Path:
    """The model's directory, written if it is not there. One that is not run has its configuration alone."""
    if (place / _DONE).exists():
        return place
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if entry.runs:
        _write_weights(entry, place)
    else:
        config_of(entry.name).save_pretrained(place)
    _settle_config(entry, place / "config.json")
    for name in _TOKENIZER:
        shutil.copy(DEMO / name, place / name)
    if entry.name in multimodal.KINDS:
        multimodal.write_processor(entry.name, place)
    (place / _DONE).touch()
    return place


def _write_weights(entry: Entry, place: Path) -> None:
    import torch
    import transformers
    from safetensors.torch import save_file

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    images = entry.name in multimodal.KINDS
    if images:
        model = getattr(transformers, entry.architecture)(multimodal.config_of(entry.name))
    else:
        kind, _ = KINDS[base_of(entry.name)]
        model = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config_of(entry.name))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and "conv" not in name:
                weight.normal_(0.0, 0.2)
            elif name.endswith("A_log"):
                # As they are made, states forget within a few tokens, and no answer depends on an earlier block.
                weight.uniform_(-6.0, -3.0)
    model.to(getattr(torch, entry.dtype) if entry.dtype != "float32" else torch.float32).save_pretrained(place)
    if images:
        save_file(multimodal.weights_of(model), place / "model.safetensors", {"format": "pt"})
    if base_of(entry.name) != entry.name:
        _pack(entry.name, place / "model.safetensors")


def _pack(name: str, file: Path) -> None:
    """Replace the weights of all linear layers but the head."""
    import torch
    from safetensors.torch import load_file, save_file

    from tools.models.quantize import PACKERS

    packed: dict[str, Any] = {}
    for key, weight in load_file(file).items():
        if weight.dim() != 2 or any(part in key for part in _UNPACKED):
            packed[key] = weight
            continue
        for suffix, tensor in PACKERS[name](weight.to(torch.float32)).items():
            packed[key.removesuffix("weight") + suffix] = tensor
    save_file(packed, file, {"format": "pt"})


def _settle_config(entry: Entry, file: Path) -> None:
    """The architecture's name, which a configuration without a model lacks, and how weights are packed."""
    config = json.loads(file.read_text())
    config["architectures"] = [entry.architecture]
    from tools.models.quantize import SETTINGS

    if entry.name in SETTINGS:
        config["quantization_config"] = SETTINGS[entry.name]
    file.write_text(json.dumps(config, indent=1, sort_keys=True))
