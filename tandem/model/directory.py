"""Resolve what a user writes as `--model` to a directory: `demo`, a path, or a hub id. Torch-free.

All callers read `facts`, which any model has. Only the embedded engine reads `config`, which refuses what it cannot
compute.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from tandem.core.config_facts import ConfigFacts, facts_of
from tandem.core.errors import TandemError
from tandem.model.checkpoint import Checkpoint, open_checkpoint, read_object
from tandem.model.config import CONFIG_FILE, ModelConfig, parse_config
from tandem.model.config_known import NO_NUMBERS
from tandem.model.hub import download, is_hub_id

DEMO: Final = "demo"
GENERATION_FILE: Final = "generation_config.json"
TOKENIZER_FILE: Final = "tokenizer.json"
TOKENIZER_CONFIG_FILE: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
_TEMPLATE_BYTES_MAX: Final = 4 << 20
_OTHER_TOKENIZERS: Final = ("tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "*.tiktoken", "*.model")


@dataclass(frozen=True)
class ModelDirectory:
    """A model on disk. `name` is what clients call it; `raw` and `generation` are the objects in its `config.json`
    and `generation_config.json`; `template` is a file whose chat template goes before the model's own."""

    path: Path
    name: str
    raw: Mapping[str, object] = field(default_factory=dict)
    generation: Mapping[str, object] = field(default_factory=dict)
    template: Path | None = None

    @cached_property
    def facts(self) -> ConfigFacts:
        """Context, vocabulary and end tokens, as far as the files say."""
        return facts_of(self.raw, self.generation)

    @cached_property
    def config(self) -> ModelConfig:
        """The model configuration that the embedded engine computes. Raises `bad_model` naming the key that it does
        not know or support."""
        return parse_config(self.raw, self.generation)

    @property
    def tokenizer_path(self) -> Path:
        """The `tokenizer.json`. Raises `bad_model` when there is none, saying how to make one."""
        path = self.path / TOKENIZER_FILE
        if not path.is_file():
            raise TandemError("bad_model", f"{self.path}: {TOKENIZER_FILE} is missing; {self._other_tokenizer()}")
        return path

    def _other_tokenizer(self) -> str:
        found = sorted(path.name for pattern in _OTHER_TOKENIZERS for path in self.path.glob(pattern))
        if not found:
            return "the directory has no tokenizer at all"
        return (
            f"{found[0]} is another format. Convert it once, where `transformers` and `sentencepiece` are installed: "
            f"`python -c \"from transformers import AutoTokenizer as T; T.from_pretrained('{self.path}')"
            f".save_pretrained('{self.path}')\"`"
        )

    def tokenizer_config(self) -> dict[str, object]:
        """The object in `tokenizer_config.json`, empty when there is no such file."""
        path = self.path / TOKENIZER_CONFIG_FILE
        return read_object(path) if path.is_file() else {}

    def tokenizer_end(self) -> int | None:
        """The id of the token that the tokenizer calls its end; None where it names none that its files list. Raises
        `bad_model`."""
        end = self.tokenizer_config().get("eos_token")
        text = end.get("content") if isinstance(end, dict) else end
        path = self.path / TOKENIZER_FILE
        if not isinstance(text, str) or not path.is_file():
            return None
        try:
            added = msgspec.json.decode(path.read_bytes(), type=_TokenizerFile).added_tokens
        except msgspec.DecodeError as error:
            raise TandemError("bad_model", f"{path}: not a tokenizer: {error}", param="model") from error
        return next((token.id for token in added if token.content == text), None)

    def chat_template(self) -> str | None:
        """The Jinja source of the chat template, from its own file or from `tokenizer_config.json`."""
        if self.template is not None:
            return _text(self.template)
        path = self.path / TEMPLATE_FILE
        if path.is_file():
            return path.read_text(encoding="utf-8")
        template = self.tokenizer_config().get("chat_template")
        if isinstance(template, list):
            named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
            template = named.get("default")
        if template is not None and not isinstance(template, str):
            raise TandemError("bad_model", f"{TOKENIZER_CONFIG_FILE}: chat_template: expected text")
        return template

    def with_template(self, file: str | None, *, anywhere: bool = False) -> "ModelDirectory":
        """This model with the chat template in `file`: a path within the model's directory or, with `anywhere`, any
        path on this machine. With None the model keeps its own template. Raises `bad_model` when there is no such
        file."""
        if file is None:
            return self
        within = PurePosixPath(file)
        inside = not within.is_absolute() and ".." not in within.parts
        for path in (self.path / file if inside else None, Path(file).expanduser() if anywhere else None):
            if path is not None and path.is_file():
                return replace(self, template=path)
        raise TandemError("bad_model", f"{self.path} has no file {file!r}, which chat_template names", param="model")

    def checkpoint(self, dtypes: Collection[str] | None = None) -> Checkpoint:
        """The headers of the model's weights, which must be stored as one of `dtypes` where those are given. Raises
        `bad_model`."""
        return open_checkpoint(self.path, dtypes)

    def content_hash(self, checkpoint: Checkpoint) -> str:
        """A hash that is equal for equal configuration and weights, wherever they are stored; see
        `Checkpoint.content_hash`.

        Keys that say where the files come from do not count, nor do the declared dtype and end tokens: none of them
        changes a KV byte that block names do not tell apart.
        """
        identity = {key: value for key, value in self.raw.items() if key not in NO_NUMBERS}
        return checkpoint.content_hash(msgspec.json.encode(identity, order="sorted").decode())


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _TokenizerFile(msgspec.Struct):
    """The part of `tokenizer.json` that says which tokens are not pieces of words."""

    added_tokens: tuple[_AddedToken, ...] = ()


def open_model(
    model: str, *, name: str | None = None, cache: Path | None = None, weights: bool = True
) -> ModelDirectory:
    """Resolve `demo`, a directory or a hub id (`owner/name`, `owner/name@revision`), and read its configuration as it
    stands.

    A hub id is downloaded into `cache` (default: the hub's own), without `weights` only what is small; `HF_ENDPOINT`,
    `HF_TOKEN` and `HF_HUB_OFFLINE` are honoured. Blocks while downloading. Raises `bad_model` in one sentence.
    """
    path = _locate(model, cache, weights)
    raw = read_object(path / CONFIG_FILE)
    generation = path / GENERATION_FILE
    shown = model.partition("@")[0] if not Path(model).expanduser().is_dir() else path.resolve().name
    return ModelDirectory(path, name or shown, raw, read_object(generation) if generation.is_file() else {})


def _text(path: Path) -> str:
    """The text of a chat template at a given path, which may be any file."""
    try:
        if path.stat().st_size > _TEMPLATE_BYTES_MAX:
            raise TandemError("bad_model", f"{path}: more than {_TEMPLATE_BYTES_MAX:,} bytes are no chat template")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TandemError("bad_model", f"{path}: not a chat template: {error}", param="model") from error


def _locate(model: str, cache: Path | None, weights: bool) -> Path:
    if model == DEMO:
        return Path(__file__).resolve().parent.parent / "models" / DEMO
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.exists():
        raise TandemError("bad_model", f"{model} is a file; --model takes a directory, a hub id or {DEMO!r}")
    if not is_hub_id(model):
        raise TandemError("bad_model", f"{model}: no such directory, and not a hub id of the form owner/name")
    return download(model, cache, weights=weights)
