"""Model directories with the chat templates and tokenizers of well-known families, small and written for the tests.

The tokenizers are trained on a few sentences. What matters is how they are put together: which tokens are added and
how these are matched, what is done to text before, and what is done at the beginning of a text only.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from router.api.chat_templates.render import FileRenderer
from router.api.chat_templates.templates import InlineTemplates
from tandem.core.clock import Clock
from tandem.model.directory import ModelDirectory, open_model

_CORPUS = (
    "The user asks and the assistant answers, in two or three words.",
    "user assistant system model begin end of turn\n\n a b c 1 2 3 < | > [ ] { % }",
    "naïve café, 日本語, and some more words so that there is something to merge: word words word.",
)

CHATML = """
{%- for m in messages %}
    {%- if loop.first and m.role != 'system' %}
        {{- '<|im_start|>system\\nBe of help.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

LLAMA3 = """
{{- bos_token }}
{%- set today = strftime_now('%d %b %Y') %}
{%- if messages[0].role == 'system' %}
    {%- set system, turns = messages[0].content | trim, messages[1:] %}
{%- else %}
    {%- set system, turns = '', messages %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' ~ today ~ '\\n\\n' ~ system ~ '<|eot_id|>' }}
{%- for m in turns %}
    {{- '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\\n\\n' ~ (m.content | trim) ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

MISTRAL = """
{%- if messages[0].role == 'system' %}
    {%- set system, turns = messages[0].content, messages[1:] %}
{%- else %}
    {%- set system, turns = none, messages %}
{%- endif %}
{{- bos_token }}
{%- for m in turns %}
    {%- if (m.role == 'user') != (loop.index0 is even) %}
        {{- raise_exception('user and assistant take turns') }}
    {%- endif %}
    {%- if m.role == 'user' %}
        {%- if loop.last and system is not none %}
            {{- '[INST] ' ~ system ~ '\\n\\n' ~ m.content ~ '[/INST]' }}
        {%- else %}
            {{- '[INST] ' ~ m.content ~ '[/INST]' }}
        {%- endif %}
    {%- else %}
        {{- ' ' ~ m.content ~ eos_token }}
    {%- endif %}
{%- endfor %}"""

GEMMA = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{- raise_exception('no system messages') }}{%- endif %}
{%- for m in messages %}
    {%- set role = 'model' if m.role == 'assistant' else m.role %}
    {{- '<start_of_turn>' ~ role ~ '\\n' ~ (m.content | trim) ~ '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""

THINKING = """
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'assistant' and loop.index0 < ns.last %}
        {{- '<|im_start|>assistant\\n' ~ m.content.split('</think>')[-1] ~ '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' ~ m.role ~ ' of ' ~ messages | length ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}"""


@dataclass(frozen=True)
class Family:
    """A chat template and what its tokenizer is like. `special` are the added tokens that it writes."""

    name: str
    template: str
    special: tuple[str, ...]
    named: dict[str, str] = field(default_factory=dict)
    byte_level: bool = True
    first: bool = False
    """Whether a word sign is put before the beginning of a text only."""
    composed: bool = False
    """Whether text is put together in Unicode's composed form first."""
    also: tuple[AddedToken, ...] = ()
    """Added tokens that no template writes."""


FAMILIES = (
    Family("chatml", CHATML, ("<|im_start|>", "<|im_end|>"), composed=True),
    Family(
        "llama3",
        LLAMA3,
        ("<|begin|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        {"bos_token": "<|begin|>"},
        also=(AddedToken("<tool>", special=False, normalized=True), AddedToken(" ||", rstrip=True, normalized=False)),
    ),
    Family(
        "mistral", MISTRAL, ("<s>", "</s>"), {"bos_token": "<s>", "eos_token": "</s>"}, byte_level=False, first=True
    ),
    Family(
        "mistral-added",
        MISTRAL,
        ("<s>", "</s>", "[INST]", "[/INST]"),
        {"bos_token": "<s>", "eos_token": "</s>"},
        byte_level=False,
        first=True,
        also=(AddedToken("word", single_word=True, normalized=False), AddedToken("gap", lstrip=True, rstrip=True)),
    ),
    Family("gemma", GEMMA, ("<bos>", "<start_of_turn>", "<end_of_turn>"), {"bos_token": "<bos>"}, byte_level=False),
    Family("thinking", THINKING, ("<|im_start|>", "<|im_end|>")),
)


def family_renderer(family: Family, path: Path, clock: Clock) -> FileRenderer:
    """Its text side, from files in the directory `path`."""
    write_files(path, tokenizer_of(family), family.template, family.named)
    return FileRenderer(ModelDirectory(path, family.name, open_model("demo").raw), InlineTemplates(clock))


def write_files(path: Path, tokenizer: Tokenizer, template: str, named: dict[str, str]) -> None:
    """The files of a model directory that a router reads."""
    path.mkdir(exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({**named, "chat_template": template}), "utf-8")


def tokenizer_of(family: Family) -> Tokenizer:
    """Byte-level BPE, or BPE over words with a word sign and a fallback to bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token=None if family.byte_level else "<unk>", byte_fallback=True))
    added = [AddedToken(text, normalized=False, special=True) for text in family.special]
    alphabet = pre_tokenizers.ByteLevel.alphabet() if family.byte_level else []
    if family.byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        scheme = "first" if family.first else "never"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    if family.composed:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=480, special_tokens=["<unk>", *family.special], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_special_tokens(added)
    tokenizer.add_tokens(list(family.also))
    return tokenizer
