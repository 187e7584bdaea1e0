"""What `--model` may be, what a configuration may say, and how a bad directory is refused."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tandem.core.errors import TandemError
from tandem.engine.torch.spec import STORED
from tandem.model import checkpoint as checkpoint_module
from tandem.model.checkpoint import open_checkpoint
from tandem.model.config import parse_config
from tandem.model.directory import open_model

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


def write_weights(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


def write_model(path: Path, content: bytes = bytes(16), **changes: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**BASE, **changes}))
    write_weights(path / "model.safetensors", {"a": ("F32", [2, 2], content), "b": ("BF16", [3], b"\1\2\3\4\5\6")})
    return path


def test_demo_is_there() -> None:
    directory = open_model("demo")
    assert directory.name == "demo"
    assert directory.config.eos_token_ids
    assert directory.tokenizer_path.is_file()
    assert "messages" in (directory.chat_template() or "")


def test_directory(tmp_path: Path) -> None:
    directory = open_model(str(write_model(tmp_path / "my-model")))
    assert directory.name == "my-model"
    assert directory.config.dtype == "bfloat16"
    assert directory.config.head_dim == 16
    assert directory.chat_template() is None
    assert open_model(str(tmp_path / "my-model"), name="other").name == "other"
    with pytest.raises(TandemError, match=r"tokenizer\.json is missing"):
        _ = directory.tokenizer_path


def test_chat_template_places(tmp_path: Path) -> None:
    directory = open_model(str(write_model(tmp_path)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old"}))
    assert directory.chat_template() == "old"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert directory.chat_template() == "plain"
    (tmp_path / "chat_template.jinja").write_text("new")
    assert directory.chat_template() == "new"


@pytest.mark.parametrize("model", ["./nowhere", "no-such-name", "/no/such/place", "a/b/c"])
def test_neither_directory_nor_id(model: str) -> None:
    with pytest.raises(TandemError, match="no such directory, and not a hub id") as caught:
        open_model(model)
    assert caught.value.code == "bad_model"


def test_file_instead_of_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TandemError, match="is a file"):
        open_model(str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, r"architectures = \['GPT2LMHeadModel'\]: supported is one of Llama"),
        ({"architectures": None}, "architectures = None"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"quantization_config = \{'quant_method': 'fp8'\}"),
        ({"logit_scale": 0.5}, "logit_scale = 0.5: unknown setting"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5: not supported; only 1"),
        ({"auto_map": {"AutoConfig": "x.Y"}}, "auto_map"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu': supported are silu"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, r"rope_scaling\.type = 'longrope': supported are"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "x": 1}}, r"rope_scaling\.x = 1: unknown"),
        ({"rope_scaling": {"type": "linear"}}, r"rope_scaling\.factor = missing: expected a positive number"),
        ({"rope_scaling": [1]}, r"rope_scaling = \[1\]: expected an object"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": "four"}}, r"rope_parameters\.factor = 'four'"),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": [1]}}, r"mrope_section = \[1\]"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3: must divide num_attention_heads = 4"),
        ({"head_dim": 15}, "head_dim = 15: rotary positions need an even"),
        ({"hidden_size": None}, "hidden_size = None: expected a whole number"),
        ({"vocab_size": True}, "vocab_size = True"),
        ({"torch_dtype": "int8"}, "torch_dtype = 'int8'"),
        ({"sliding_window": 8}, "sliding_window = 8: this architecture has none"),
        ({"eos_token_id": "x"}, "eos_token_id = 'x'"),
        (
            {"architectures": ["MistralForCausalLM"], "attention_bias": True},
            "attention_bias = True: this architecture",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention", "linear_attention"]},
            "layer_types",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention", "sliding_attention"]},
            "names sliding_attention, but no sliding window is in use",
        ),
        (
            {"architectures": ["MixtralForCausalLM"], "num_experts_per_tok": 9},
            "num_experts_per_tok = 9: there are only 8",
        ),
    ],
)
def test_refusals_name_key_and_value(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(TandemError, match=says) as caught:
        parse_config({**BASE, **changes})
    assert caught.value.code == "bad_model"
    assert caught.value.message.startswith("config.json: ")


def test_both_spellings_give_the_same_model() -> None:
    old = parse_config({**BASE, "rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 4.0}})
    new = {**BASE, "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0}, "dtype": "bfloat16"}
    del new["torch_dtype"]
    assert parse_config(new) == old
    assert old.context_tokens == 512
    moe = {**BASE, "architectures": ["Qwen3MoeForCausalLM"], "moe_intermediate_size": 8, "num_experts_per_tok": 2}
    assert parse_config({**moe, "num_experts": 4}) == parse_config({**moe, "num_local_experts": 4})


@pytest.mark.parametrize(
    ("rope", "context"),
    [
        ({"type": "linear", "factor": 2.0}, 256),
        ({"type": "dynamic", "factor": 2.0}, 256),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        (
            {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
            128,
        ),
    ],
)
def test_context(rope: dict[str, Any], context: int) -> None:
    assert parse_config({**BASE, "rope_scaling": rope}).context_tokens == context


def test_windows_per_layer() -> None:
    qwen = {**BASE, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 16}
    assert parse_config(qwen).windows == (None, None)
    assert parse_config({**qwen, "use_sliding_window": True, "max_window_layers": 1}).windows == (None, 16)
    mistral = {**BASE, "architectures": ["MistralForCausalLM"]}
    assert parse_config(mistral).windows == (4096, 4096)
    assert parse_config({**mistral, "sliding_window": None}).windows == (None, None)


def test_the_tokenizers_own_end_is_found_among_added_tokens(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    model = open_model(str(tmp_path))
    assert model.tokenizer_end() is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    assert model.tokenizer_end() is None
    tokens = [{"id": 3, "content": "<s>", "special": True}, {"id": 32001, "content": "<|im_end|>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": tokens, "model": {}}))
    assert model.tokenizer_end() == 32001
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    assert model.tokenizer_end() is None


def test_end_tokens_come_from_both_files() -> None:
    assert parse_config({**BASE, "eos_token_id": [2, 7]}, {"eos_token_id": [9, 7]}).eos_token_ids == (9, 7, 2)
    assert parse_config({**BASE, "eos_token_id": None}).eos_token_ids == ()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.json", None, r"config\.json is missing"),
        ("config.json", b"{", "cannot be read as JSON"),
        ("config.json", b"[]", "expected a JSON object"),
        ("model.safetensors", None, r"model\.safetensors is missing; weights must be safetensors"),
        ("model.safetensors", b"abc", r"model\.safetensors: truncated or not a safetensors file"),
        ("model.safetensors", b"\xff" * 200, "truncated or not a safetensors file"),
        ("model.safetensors", b"\x02" + bytes(7) + b"no", "header is not JSON"),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"a": "gone.safetensors"}}',
            r"gone\.safetensors is missing",
        ),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../x"}}', "x is missing"),
        ("model.safetensors.index.json", b"{}", "weight_map must map"),
    ],
)
def test_broken_directories(name: str, content: bytes | None, says: str, tmp_path: Path) -> None:
    write_model(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TandemError, match=says) as caught:
        open_model(str(tmp_path)).checkpoint()
    assert caught.value.code == "bad_model"


def test_truncated_weights_name_the_tensor(tmp_path: Path) -> None:
    write_model(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        TandemError, match=r"model\.safetensors: truncated: b ends at byte \d+, the file has \d+ bytes"
    ):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("dtype", ["I8", "F8_E4M3"])
def test_quantized_weights_are_refused_where_they_cannot_be_computed(dtype: str, tmp_path: Path) -> None:
    write_weights(tmp_path / "model.safetensors", {"a": (dtype, [4], bytes(4))})
    with pytest.raises(TandemError, match=f"a is stored as {dtype}; supported are F32, BF16, F16"):
        open_checkpoint(tmp_path, STORED)
    assert open_checkpoint(tmp_path).tensors["a"].dtype == dtype


def test_shape_that_does_not_fit(tmp_path: Path) -> None:
    write_weights(tmp_path / "model.safetensors", {"a": ("F32", [2, 3], bytes(16))})
    with pytest.raises(TandemError, match=r"a of shape \[2, 3\] does not fit its 16 bytes"):
        open_checkpoint(tmp_path)


def content_hash(path: Path) -> str:
    directory = open_model(str(path))
    return directory.content_hash(directory.checkpoint())


@pytest.mark.parametrize("whole", [True, False])
def test_content_hash(whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not whole:
        monkeypatch.setattr(checkpoint_module, "WHOLE_BYTES_MAX", 0)
    first = content_hash(write_model(tmp_path / "first"))
    assert content_hash(write_model(tmp_path / "copy", transformers_version="9")) == first
    assert content_hash(write_model(tmp_path / "dtype", torch_dtype="float32", eos_token_id=5)) == first
    assert content_hash(write_model(tmp_path / "bytes", content=bytes(15) + b"\1")) != first
    assert content_hash(write_model(tmp_path / "config", rope_theta=5e5)) != first


class Hub(BaseHTTPRequestHandler):
    """The few routes of a model hub that a snapshot download uses."""

    files: dict[str, bytes]
    commit = "0123456789abcdef0123456789abcdef01234567"

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        status, content, headers = 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        if path.startswith("/api/models/team/tiny/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
                for name, data in self.files.items()
            ]
            status, content, headers = 200, json.dumps(tree).encode(), {}
        elif path.startswith("/api/models/team/tiny"):
            siblings = [{"rfilename": name} for name in self.files]
            info = {"id": "team/tiny", "sha": self.commit, "siblings": siblings, "private": False, "tags": []}
            status, content, headers = 200, json.dumps(info).encode(), {}
        elif path.startswith("/team/tiny/resolve/"):
            name = path.split("/", 5)[-1]
            status, content = 200, self.files[name]
            headers = {"ETag": f'"{len(content):040x}"', "X-Repo-Commit": self.commit}
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    source = write_model(tmp_path / "source")
    Hub.files = {path.name: path.read_bytes() for path in source.iterdir()}
    Hub.files |= {"pytorch_model.bin": b"never", "original/params.json": b"{}", "chat_template.jinja": b"hello"}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


SCRIPT = """
import sys
from pathlib import Path
from tandem.core.errors import TandemError
from tandem.model.directory import open_model
try:
    found = open_model(sys.argv[1], cache=Path(sys.argv[2]))
    names = sorted(path.name for path in found.path.rglob("*") if path.is_file())
    print(found.name, found.chat_template(), *names, len(found.checkpoint().tensors))
except TandemError as error:
    print(error.code, error.message)
"""


def from_hub(model: str, endpoint: str, cache: Path) -> str:
    """In a process of its own: the hub client reads its endpoint from the environment when it is imported."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, model, str(cache)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_hub_id_is_downloaded_from_the_endpoint(hub: str, tmp_path: Path) -> None:
    expected = "team/tiny hello chat_template.jinja config.json model.safetensors 2"
    assert from_hub("team/tiny", hub, tmp_path / "cache") == expected
    assert from_hub("team/tiny@main", hub, tmp_path / "cache") == expected


def test_unknown_hub_id(hub: str, tmp_path: Path) -> None:
    said = from_hub("team/other", hub, tmp_path / "cache")
    assert said.startswith("bad_model team/other: the hub answered with status 404")
