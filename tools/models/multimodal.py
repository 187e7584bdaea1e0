"""Tiny models of text and images: their parts, and what their processors and chat templates read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.models.configs import BASE, VOCABULARY

IMAGE_PIXELS: Final = 32
"""Of both sides of what the vision towers see."""
_PATCH: Final = 8
_LATER: Final = 64
"""Token ids for what is no text, after those of the demo model's tokenizer."""
_VISION: Final[dict[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": IMAGE_PIXELS,
    "patch_size": _PATCH,
}
_PARTS: Final = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ IMAGE }}"
    "{% else %}{{ part['text'] | trim }}{% endif %}{% endfor %}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""In the manner of published templates of such models: content is a list, and text alone is none."""


@dataclass(frozen=True)
class Multimodal:
    """`text` and `vision` are the classes of the two configurations in transformers, each without `Config`, and
    `whole` that of both; `tokens` are added to the tokenizer, of which `image` stands for an image in a template."""

    whole: str
    text: str
    vision: str
    image: str
    tokens: tuple[str, ...]
    own: Mapping[str, Any]
    text_own: Mapping[str, Any]
    vision_own: Mapping[str, Any]
    processor: Mapping[str, Any]
    image_processor: Mapping[str, Any]


_RENAMED: Final = {
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.multi_modal": "multi_modal",
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
}
"""Prefixes of weights: as transformers has them, and as published files do."""
_SQUARE: Final = {"height": IMAGE_PIXELS, "width": IMAGE_PIXELS}
_MEAN: Final = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}

KINDS: Final = {
    "llava": Multimodal(
        "Llava",
        "Llama",
        "CLIPVision",
        "<image>",
        ("<image>",),
        {"image_token_id": VOCABULARY, "image_seq_length": 16, "vision_feature_layer": -1},
        {},
        {"projection_dim": 32},
        {"processor_class": "LlavaProcessor", "patch_size": _PATCH, "image_token": "<image>",
         "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": IMAGE_PIXELS}, "crop_size": _SQUARE,
         **_MEAN},
    ),
}  # fmt: skip


def config_of(name: str) -> Any:
    """A configuration of transformers."""
    import transformers

    kind = KINDS[name]
    text = getattr(transformers, f"{kind.text}Config")(**{**BASE, "vocab_size": VOCABULARY + _LATER, **kind.text_own})
    vision = getattr(transformers, f"{kind.vision}Config")(**{**_VISION, **kind.vision_own})
    own = {**kind.own, "tie_word_embeddings": BASE["tie_word_embeddings"]}
    return getattr(transformers, f"{kind.whole}Config")(text_config=text, vision_config=vision, **own)


def weights_of(model: Any) -> dict[str, Any]:
    """Of a model of transformers, by the names that published files have."""
    found = {}
    for key, weight in model.state_dict().items():
        prefix = next(each for each in _RENAMED if key.startswith(each))
        found[_RENAMED[prefix] + key.removeprefix(prefix)] = weight.contiguous()
    return found


def write_processor(name: str, place: Path) -> None:
    """What reads images, and a tokenizer and a template that know of them, over those in `place`."""
    kind = KINDS[name]
    image = {**kind.image_processor, "processor_class": kind.processor["processor_class"]}
    _write(place / "preprocessor_config.json", image)
    _write(place / "processor_config.json", kind.processor)
    tokenizer = json.loads((place / "tokenizer.json").read_text())
    shape = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] += [
        {**shape, "id": VOCABULARY + at, "content": token} for at, token in enumerate(kind.tokens)
    ]
    _write(place / "tokenizer.json", tokenizer)
    (place / "chat_template.jinja").write_text(_PARTS.replace("IMAGE", repr(kind.image)))


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1))
