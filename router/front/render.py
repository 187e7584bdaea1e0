"""From text and messages to token ids, and from one token id back to its bytes.

A `Renderer` belongs to one model. `FileRenderer` reads the model's `tokenizer.json` and chat template;
`SimpleRenderer` serves models that have no files (the simulated engine). Neither needs torch.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec
from tokenizers import Tokenizer

from router.front.chat_template import ChatTemplate, Message
from tandem.core import simple_tokenizer
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.engine.model_directory import ModelDirectory

_SPECIAL_NAMES: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Renderer(Protocol):
    """The text side of one model. Calls are pure and may run on any thread."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        ...

    def chat(self, messages: Sequence[Message]) -> bytes:
        """Token ids (packed uint32) of a conversation. Raises `invalid_request`."""
        ...

    def text(self, text: str) -> bytes:
        """Token ids (packed uint32) of plain text, with the special tokens the model expects around it."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes one token adds to the text; they need not be UTF-8 by themselves."""
        ...


class SimpleRenderer:
    """`Renderer` over `tandem.core.simple_tokenizer`."""

    vocab_size: Final = simple_tokenizer.VOCAB_SIZE

    def __init__(self, clock: Clock) -> None:
        self._template = ChatTemplate(simple_tokenizer.CHAT_TEMPLATE, {}, clock, "built-in template")

    def chat(self, messages: Sequence[Message]) -> bytes:
        return simple_tokenizer.encode(self._template.render(messages))

    def text(self, text: str) -> bytes:
        return simple_tokenizer.encode(text)

    def token_bytes(self, token: int) -> bytes:
        return simple_tokenizer.piece(token)


class FileRenderer:
    """`Renderer` over a Hugging Face model directory."""

    def __init__(self, model: ModelDirectory, clock: Clock) -> None:
        """Raises `bad_model` naming the file and what is wrong with it."""
        self._tokenizer = _load_tokenizer(model.tokenizer_path)
        self._template = _load_template(model, clock)
        self._byte_level = _is_byte_level(model.tokenizer_path)
        self._added = {
            number: token.content.encode() for number, token in self._tokenizer.get_added_tokens_decoder().items()
        }
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def chat(self, messages: Sequence[Message]) -> bytes:
        if self._template is None:
            raise TandemError(
                "unsupported_parameter", "this model has no chat template: use /v1/completions", param="messages"
            )
        # The template has written the special tokens already.
        return pack_tokens(self._tokenizer.encode(self._template.render(messages), add_special_tokens=False).ids)

    def text(self, text: str) -> bytes:
        return pack_tokens(self._tokenizer.encode(text).ids)

    def token_bytes(self, token: int) -> bytes:
        added = self._added.get(token)
        if added is not None:
            return added
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level:
            return bytes(_BYTE_OF[character] for character in piece if character in _BYTE_OF)
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes((int(piece[3:5], 16),))
        return piece.replace("▁", " ").encode()


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        # The Rust library raises nothing more specific.
        raise TandemError("bad_model", f"{path}: not a tokenizer: {error}", param="model") from error


def _load_template(model: ModelDirectory, clock: Clock) -> ChatTemplate | None:
    source = model.chat_template()
    if source is None:
        return None
    return ChatTemplate(source, _special_tokens(model.tokenizer_config()), clock, str(model.path))


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """Special tokens by name; each is text or an object whose `content` is the text."""
    found = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[name] = content
    return found


class _Decoder(msgspec.Struct):
    type: str = ""
    decoders: tuple["_Decoder", ...] = ()


class _TokenizerFile(msgspec.Struct):
    """The one part of `tokenizer.json` that says how pieces become bytes."""

    decoder: _Decoder | None = None


def _is_byte_level(path: Path) -> bool:
    decoder = msgspec.json.decode(path.read_bytes(), type=_TokenizerFile).decoder
    if decoder is None:
        return False
    return "ByteLevel" in (decoder.type, *(inner.type for inner in decoder.decoders))


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins byte-level BPE uses for bytes (GPT-2's published table, inverted)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(value): value for value in printable}
    others = (value for value in range(256) if value not in printable)
    table.update({chr(256 + offset): value for offset, value in enumerate(others)})
    return table


_BYTE_OF: Final = _byte_alphabet()
