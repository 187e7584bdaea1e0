"""What a model consists of and where it lies: golden values and borders of the checks on names, sizes and headers."""

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.core.errors import TandemError
from tandem.weights.listing import (
    INDEX,
    File,
    digest_of,
    header_bytes,
    header_problem,
    missing_shards,
    parse_sums,
    texts,
    wanted,
)
from tandem.weights.source import parse_source
from tests.worlds.weights_stage import safetensors

MODEL = ("config.json", "model.safetensors")


def failure(run: Callable[[], object]) -> TandemError:
    with pytest.raises(TandemError) as caught:
        run()
    return caught.value


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("tokenizer.json", True),
        ("chat_template.jinja", True),
        ("tokenizer.model", True),
        ("merges.txt", True),
        ("other.safetensors", True),
        (INDEX, True),
        (".hidden.json", False),
        ("folder/config.json", False),
        ("model.py", False),
        ("pytorch_model.bin", False),
        ("README.md", False),
    ],
)
def test_of_a_source_what_is_served_from_is_brought_and_nothing_that_could_run(name: str, kept: bool) -> None:
    found = wanted([File(each, 1) for each in (name, *MODEL)], "s3://b/m")
    assert [each.name for each in found] == sorted([*MODEL, *([name] if kept else [])])


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ((), "no weights at all"),
        (("config.json",), "no weights at all"),
        (("config.json", "a.bin", "b.pt", "c.pth", "d.ckpt"), "only a.bin, b.pt, c.pth, which run code"),
        (("config.json", "x.pkl"), "only x.pkl, which run code"),
        (("model.safetensors",), "it has no config.json"),
        (("model.safetensors", "folder/config.json"), "it has no config.json"),
    ],
)
def test_a_source_that_cannot_be_served_is_told_why(names: tuple[str, ...], says: str) -> None:
    error = failure(lambda: wanted([File(each, 1) for each in names], "s3://b/m"))
    assert error.code == "bad_model"
    assert error.message.startswith("s3://b/m: ")
    assert says in error.message


def test_texts_are_those_that_a_tokenizer_needs() -> None:
    names = ("config.json", "tokenizer.json", "a.jinja", INDEX, "model.safetensors", "merges.txt")
    found = texts([File(each, 1) for each in names], "s3://b/m")
    assert [each.name for each in found] == ["config.json", "tokenizer.json", "a.jinja"]


def test_shards_that_an_index_names_are_compared_with_what_is_there() -> None:
    index = json.dumps({"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}}).encode()
    assert missing_shards(index, [File("1.safetensors", 1), File("2.safetensors", 1), File("3.safetensors", 1)]) == ()
    assert missing_shards(index, []) == ("1.safetensors", "2.safetensors")
    for broken in (b"", b"{}", b'{"weight_map": [1]}'):
        assert failure(functools.partial(missing_shards, broken, [])).code == "bad_model"


@pytest.mark.parametrize(
    "line", ["{sum}  a.json", "{sum} *a.json", "{sum}  ./a.json", "{SUM}  a.json", "\n{sum}  a.json\n"]
)
def test_a_checksum_is_read_in_each_way_it_is_written(line: str) -> None:
    checksum = hashlib.sha256(b"a").hexdigest()
    assert parse_sums(line.format(sum=checksum, SUM=checksum.upper())) == {"a.json": checksum}


@pytest.mark.parametrize("line", ["abc  a.json", "{sum}", "{sum}  ", "{sum}0  a.json"])
def test_a_line_that_is_no_checksum_is_named(line: str) -> None:
    good = f"{'0' * 64}  b.json\n"
    error = failure(lambda: parse_sums(good + line.format(sum="a" * 64)))
    assert (error.code, "line 2" in error.message) == ("bad_model", True)


def test_the_digest_is_what_sha256sum_says_of_its_own_output() -> None:
    """A user computes `model.digest` by `sha256sum * | sha256sum`."""
    files = [File("b", 1, "2" * 64), File("a", 1, "1" * 64)]
    lines = f"{'1' * 64}  a\n{'2' * 64}  b\n"
    assert digest_of(files) == f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def weights(header: object, data: int, length: int | None = None) -> bytes:
    """A file with this header, which says that it has `length` bytes, and so many bytes of tensors."""
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data)


def tensor(begin: int, end: int) -> dict[str, object]:
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (weights({"a": tensor(0, 5), "b": tensor(5, 9), "__metadata__": {"format": "pt"}}, 9), ""),
        (weights({"b": tensor(5, 9), "a": tensor(0, 5)}, 9), ""),
        (weights({}, 0), ""),
        (weights({"a": tensor(0, 5)}, 4), "where its header says"),
        (weights({"a": tensor(0, 5)}, 6), "where its header says"),
        (weights({"a": {"dtype": "U8"}}, 5), "cannot be read"),
        (weights(b"[]", 0), "cannot be read"),
        (weights(b"{}", 0, 3), "its header of 3 bytes does not fit"),
        (weights(b"{}", 0, 1 << 40), "does not fit"),
        (b"1234567", "7 bytes are no safetensors file"),
        (b"", "0 bytes are no safetensors file"),
    ],
)
def test_a_file_of_weights_is_whole_when_it_ends_where_its_header_says(file: bytes, says: str) -> None:
    found = header_problem("x", file, len(file))
    assert (found is None) if not says else (found is not None and says in found)


def test_the_header_alone_suffices_and_less_of_it_does_not() -> None:
    file = safetensors(1, 1000)
    head = file[: header_bytes(file[:8])]
    assert len(file) - len(head) == 1000
    assert header_problem("x", head, len(file)) is None
    assert header_problem("x", head[:-1], len(file)) is not None


@pytest.mark.parametrize(
    ("text", "revision", "scheme", "location", "at"),
    [
        ("org/model", "", "hf", "org/model", ""),
        ("org/model", "v1", "hf", "org/model", "v1"),
        ("hf://org/model@v2", "v1", "hf", "org/model", "v2"),
        ("hf://org/model", "v1", "hf", "org/model", "v1"),
        ("oci://r.example/team/model", "", "oci", "r.example/team/model", "latest"),
        ("oci://r.example/team/model", "v1", "oci", "r.example/team/model", "v1"),
        ("oci://r.example:5000/team/model:v2", "v1", "oci", "r.example:5000/team/model", "v2"),
        (f"oci://r.example/m:v2@sha256:{'a' * 64}", "v1", "oci", "r.example/m", f"sha256:{'a' * 64}"),
        ("s3://bucket/prefix/", "", "s3", "bucket/prefix", ""),
        ("s3://bucket", "", "s3", "bucket", ""),
        ("file:///models/m/", "", "file", "/models/m/", ""),
        ("pvc://claim/m", "", "file", "/volumes/claim/m", ""),
        ("/models/m", "", "file", "/models/m", ""),
        ("one", "", "file", "one", ""),
    ],
)
def test_a_source_means_one_place(text: str, revision: str, scheme: str, location: str, at: str) -> None:
    found = parse_source(text, revision, Path("/volumes"))
    assert (found.scheme, found.location, found.revision) == (scheme, location, at)


@pytest.mark.parametrize(
    "text", ["ftp://host/m", "://m", "s3://", "hf://", "hf://one", "hf://a/b/c", "oci://r.example"]
)
def test_a_source_that_means_none_is_refused(text: str) -> None:
    error = failure(lambda: parse_source(text))
    assert (error.code, error.param) == ("bad_setting", "model.source")
    assert repr(text) in error.message


def test_a_directory_that_looks_like_a_hub_id_is_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_source("org/model").scheme == "file"
    assert parse_source("org/other").scheme == "hf"
