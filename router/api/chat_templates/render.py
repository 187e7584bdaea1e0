"""Conversion of text and messages to token ids, and of one token id back to its bytes.

A `Renderer` belongs to one model. `FileRenderer` reads the model's `tokenizer.json` and chat template;
`SimpleRenderer` serves models that have no files (the simulated engine). Neither needs torch.
"""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec
from tokenizers import Tokenizer

from router.api.chat_templates.chat_template import Message, Tools, takes_tools
from router.api.chat_templates.templates import AMPLE, Bounds, InlineTemplates, Template, Templates
from router.api.openai.defaults import AUTO, NEUTRAL, Defaults, defaults_of
from router.api.parsers.dialect import SILENT, Dialect, ParserSettings, dialect_of
from router.tokenization.split_points import NOWHERE, Places, SplitPoints, find_split_points
from router.tokenization.word_cache import find_word_cache
from tandem.core import simple_tokenizer
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.model.directory import ModelDirectory

_SPECIAL_NAMES: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenized(NamedTuple):
    """Packed token ids (uint32) of a text, and where it could have been cut."""

    packed: bytes
    places: Places


class Renderer(Protocol):
    """The text side of one model. Calls are pure; all but `render` may run on any thread."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        ...

    @property
    def cuts(self) -> SplitPoints | None:
        """The points where rendered text can be cut and tokenized piece by piece; None where it must be tokenized at
        once."""
        ...

    @property
    def dialect(self) -> Dialect:
        """The forms in which the model writes tool calls and reasoning."""
        ...

    @property
    def defaults(self) -> Defaults:
        """The sampling defaults for requests that leave them open."""
        ...

    async def render(self, messages: Sequence[Message], tools: Tools | None = None, bounds: Bounds = AMPLE) -> str:
        """The text of a conversation. Raises `invalid_request`, `unsupported_parameter`, `context_length_exceeded`,
        `deadline_exceeded`."""
        ...

    def tokenize(self, rendered: str) -> Tokenized:
        """Token ids of rendered text, or of what comes from a cut on."""
        ...

    def chat(self, rendered: str, owner: Hashable | None = None) -> bytes:
        """Token ids (packed uint32) of a conversation's whole text. The words of an owner are remembered for the
        owner's next prompts."""
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
    cuts: Final = None
    """Looking bytes up takes longer than copying them."""
    dialect: Final = SILENT
    defaults: Final = NEUTRAL

    def __init__(self, clock: Clock) -> None:
        templates = InlineTemplates(clock)
        self._template = templates.load(simple_tokenizer.CHAT_TEMPLATE, {}, "", "built-in template")

    async def render(self, messages: Sequence[Message], tools: Tools | None = None, bounds: Bounds = AMPLE) -> str:
        return await self._template.render(messages, tools, bounds)

    def tokenize(self, rendered: str) -> Tokenized:
        return Tokenized(simple_tokenizer.encode(rendered), NOWHERE)

    def chat(self, rendered: str, owner: Hashable | None = None) -> bytes:
        return simple_tokenizer.encode(rendered)

    def text(self, text: str) -> bytes:
        return simple_tokenizer.encode(text)

    def token_bytes(self, token: int) -> bytes:
        return simple_tokenizer.piece(token)


class FileRenderer:
    """`Renderer` over a Hugging Face model directory."""

    def __init__(
        self,
        model: ModelDirectory,
        templates: Templates,
        parsers: ParserSettings | None = None,
        generation_config: str = AUTO,
    ) -> None:
        """Raises `bad_model` naming the file and what is wrong with it."""
        self.defaults = defaults_of(model.generation, generation_config)
        self._tokenizer = _load_tokenizer(model.tokenizer_path)
        self._template = _load_template(model, templates)
        self._byte_level = _is_byte_level(model.tokenizer_path)
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {number: token.content.encode() for number, token in added.items()}
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        template = self._template
        self.dialect = dialect_of(
            template.source if template is not None else "",
            parsers or ParserSettings(),
            takes_tools=template is not None and takes_tools(template.source),
            special=[token.content for token in added.values() if token.special],
        )
        self.cuts = find_split_points(self._tokenizer, template.samples) if template is not None else None
        self._words = find_word_cache(self._tokenizer, self.cuts.tokens) if self.cuts is not None else None

    async def render(self, messages: Sequence[Message], tools: Tools | None = None, bounds: Bounds = AMPLE) -> str:
        if self._template is None:
            raise TandemError(
                "unsupported_parameter", "this model has no chat template: use /v1/completions", param="messages"
            )
        return await self._template.render(messages, tools, bounds)

    def tokenize(self, rendered: str) -> Tokenized:
        ids = self._ids(rendered)
        return Tokenized(pack_tokens(ids), self.cuts.places(rendered, ids) if self.cuts is not None else NOWHERE)

    def chat(self, rendered: str, owner: Hashable | None = None) -> bytes:
        words = self._words
        packed = words.tokens(rendered, owner) if words is not None and owner is not None else None
        return pack_tokens(self._ids(rendered)) if packed is None else packed

    def _ids(self, rendered: str) -> list[int]:
        # The template has written the special tokens already.
        return self._encode(rendered, special=False)

    def text(self, text: str) -> bytes:
        return pack_tokens(self._encode(text, special=True))

    def _encode(self, text: str, *, special: bool) -> list[int]:
        """Encode like `Tokenizer.encode`, which takes a third longer because it also locates each token in the
        text."""
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return encoding.ids

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


def _load_template(model: ModelDirectory, templates: Templates) -> Template | None:
    source = model.chat_template()
    if source is None:
        return None
    return templates.load(source, _special_tokens(model.tokenizer_config()), model.name, str(model.path))


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
