"""Chat templates and tokenizers of model directories."""

import json
from pathlib import Path

import pytest

from router.api.chat_templates.chat_template import ChatTemplate
from router.api.chat_templates.render import FileRenderer, SimpleRenderer
from router.api.chat_templates.templates import InlineTemplates
from tandem.apps.simulation.loop import LoopClock, VirtualLoop
from tandem.core.errors import TandemError
from tandem.core.kv import unpack_tokens
from tandem.model.directory import ModelDirectory, open_model
from tests.worlds.rendered import chat

CLOCK = LoopClock(VirtualLoop())
USER = {"role": "user", "content": "hi"}


def template(source: str, **special: str) -> ChatTemplate:
    return ChatTemplate(source, special, CLOCK, "there")


def test_blocks_are_trimmed_as_published_templates_expect() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.role }}:{{ m.content }}\n    {% endif %}\n{% endfor %}"
    assert template(source).render([USER, USER]) == "user:hi\nuser:hi\n"


def test_the_answer_begins_where_the_template_ends() -> None:
    assert (
        template("{% if add_generation_prompt %}{{ bos_token }}A:{% endif %}", bos_token="<s>").render([]) == "<s>A:"
    )


def test_functions_and_filters_of_published_templates_are_there() -> None:
    assert template("{{ messages | tojson }}").render([{"role": "user", "content": "<é>"}]) == (
        '[{"role": "user", "content": "<é>"}]'
    )
    assert template("{{ strftime_now('%Y-%m-%d') }}").render([]) == "2027-01-15"
    assert template("{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}x{% endfor %}").render(
        [USER, USER]
    ) == ("x")
    assert template("{% generation %}a{% endgeneration %}{{ tools is none }}").render([]) == "aTrue"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[5].content.strip() }}",
        "{{ messages[0].content + 5 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
    ],
)
def test_a_template_that_refuses_or_misbehaves_is_a_bad_request(source: str) -> None:
    with pytest.raises(TandemError, match="chat template") as refused:
        template(source).render([USER])
    assert (refused.value.code, refused.value.param) == ("invalid_request", "messages")


def test_a_template_that_is_not_one_stops_the_start() -> None:
    with pytest.raises(TandemError, match="there") as failed:
        template("{% if %}")
    assert failed.value.code == "bad_model"


def test_the_demo_model_renders_with_its_special_tokens_once() -> None:
    renderer = FileRenderer(open_model("demo"), InlineTemplates(CLOCK))
    tokens = unpack_tokens(chat(renderer, [USER]))
    pieces = [renderer.token_bytes(token) for token in tokens]
    text = b"".join(pieces).decode()
    assert text.count("<|begin|>") == 1
    assert "<|user|>" in text
    assert "hi" in text
    assert all(token < renderer.vocab_size for token in tokens)


@pytest.mark.parametrize("text", ["The fox walks home.", "naïve café 🦊", "  spaces\n\nlines\t", "日本"])
def test_the_bytes_of_tokens_make_up_the_text(text: str) -> None:
    renderer = FileRenderer(open_model("demo"), InlineTemplates(CLOCK))
    special = renderer.token_bytes(unpack_tokens(renderer.text(""))[0]) if renderer.text("") else b""
    joined = b"".join(renderer.token_bytes(token) for token in unpack_tokens(renderer.text(text)))
    assert joined.removeprefix(special).decode() == text


def directory(path: Path, tokenizer: object = None, config: object = None) -> ModelDirectory:
    demo = open_model("demo")
    source = demo.tokenizer_path.read_text("utf-8") if tokenizer is None else json.dumps(tokenizer)
    (path / "tokenizer.json").write_text(source, "utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(config or {}), "utf-8")
    return ModelDirectory(path, "x", demo.raw)


def test_tokens_of_other_tokenizers_have_bytes_too(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "<s>": 1, "▁two": 2, "▁words": 3, "<0x0A>": 4}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": 1, "content": "<s>", "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        ],
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    }
    renderer = FileRenderer(directory(tmp_path, tokenizer), InlineTemplates(CLOCK))
    assert [renderer.token_bytes(token) for token in (1, 2, 3, 4, 99)] == [b"<s>", b" two", b" words", b"\n", b""]
    assert renderer.vocab_size == 5


def test_a_named_template_and_token_objects_are_understood(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<|begin|>"},
        "chat_template": [
            {"name": "tool_use", "template": "no"},
            {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"},
        ],
    }
    renderer = FileRenderer(directory(tmp_path, config=config), InlineTemplates(CLOCK))
    pieces = [renderer.token_bytes(token) for token in unpack_tokens(chat(renderer, [USER]))]
    assert b"".join(pieces) == b"<|begin|>hi"


def test_without_a_template_only_completions_are_served(tmp_path: Path) -> None:
    renderer = FileRenderer(directory(tmp_path), InlineTemplates(CLOCK))
    assert renderer.text("hi")
    with pytest.raises(TandemError, match="/v1/completions") as refused:
        chat(renderer, [USER])
    assert refused.value.code == "unsupported_parameter"


def test_a_file_that_is_no_tokenizer_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match=r"tokenizer\.json") as failed:
        FileRenderer(directory(tmp_path, {"nonsense": 1}), InlineTemplates(CLOCK))
    assert failed.value.code == "bad_model"


def test_a_model_without_files_speaks_bytes() -> None:
    renderer = SimpleRenderer(CLOCK)
    assert bytes(unpack_tokens(renderer.text("é"))) == "é".encode()
    assert bytes(unpack_tokens(chat(renderer, [USER]))) == b"user: hi\nassistant:"
    assert renderer.token_bytes(300).startswith(b" ")
