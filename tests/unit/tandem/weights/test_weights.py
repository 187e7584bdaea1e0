"""Weights come whole or with the file at fault named, once per node, from buckets, hubs, registries and disks."""

import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.errors import TandemError
from tandem.spec.model import FETCHED
from tandem.weights import fetching
from tandem.weights.cache import Brought, WeightsCache
from tandem.weights.directory import digest_on_disk
from tandem.weights.listing import SUMS, TEXT_BYTES_MAX, File, digest_of, header_problem, parse_sums, texts
from tandem.weights.locate import bring_model, bring_texts
from tandem.weights.source import SCHEMES, parse_source
from tests.worlds.weights_stage import BUCKETS, Store, bucket_environment, model, safetensors, serving

SOURCES = (*BUCKETS, "hf", "oci")
SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture
def store() -> Iterator[Store]:
    with serving(Store(model())) as served:
        yield served


@pytest.fixture
def bring(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Brought]:
    """Bring from one of `SOURCES` into one cache."""
    monkeypatch.setattr(fetching, "_BACKOFF_S", 0.001)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", store.url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        store.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    environment = bucket_environment(store.url)
    host = store.url.removeprefix("http://")
    texts = BUCKETS | {"hf": "hf://org/model", "oci": f"oci://{host}/org/model:v1"}
    cache = WeightsCache(tmp_path / "cache", wait_s=20.0)

    def run(kind: str, digest: str = "") -> Brought:
        return bring_model(texts[kind], cache, digest=digest, environment=environment)

    return run


def _same(one: bytes, other: bytes) -> bool:
    """Whether they are equal, without a difference of hundreds of thousands of bytes to be told."""
    return one == other


def failure(run: Callable[[], object]) -> TandemError:
    with pytest.raises(TandemError) as caught:
        run()
    return caught.value


# ---- from everywhere ----


@pytest.mark.parametrize("kind", SOURCES)
def test_a_model_comes_whole_and_without_pickles(kind: str, store: Store, bring: Callable[..., Brought]) -> None:
    found = bring(kind)
    here = {path.name: path.read_bytes() for path in found.directory.iterdir() if not path.name.startswith(".")}
    assert here == {name: data for name, data in store.files.items() if not name.endswith(".bin")}
    assert found.fetched_bytes == sum(map(len, here.values()))
    assert found.digest == digest_on_disk(found.directory)


@pytest.mark.parametrize("kind", SOURCES)
def test_the_second_one_on_a_node_fetches_nothing(kind: str, store: Store, bring: Callable[..., Brought]) -> None:
    first = bring(kind)
    served = store.weights_served
    second = bring(kind)
    assert (second.directory, second.fetched_bytes) == (first.directory, 0)
    assert store.weights_served == served


def test_what_is_pinned_by_its_digest_needs_nobody(store: Store, bring: Callable[..., Brought]) -> None:
    first = bring("s3")
    store.status = dict.fromkeys(store.files, 503)
    store.files = {}
    assert bring("s3", digest=first.digest).directory == first.directory


@pytest.mark.parametrize("kind", SOURCES)
def test_another_digest_is_refused(kind: str, bring: Callable[..., Brought]) -> None:
    error = failure(lambda: bring(kind, digest=f"sha256:{'0' * 64}"))
    assert error.code == "bad_model"
    assert "digest" in error.message


# ---- what goes wrong, by name ----


@pytest.mark.parametrize("kind", ["hf", "oci"])
def test_a_corrupt_shard_is_named_and_nothing_is_left_of_it(
    kind: str, store: Store, bring: Callable[..., Brought], tmp_path: Path
) -> None:
    right = store.files[SHARD]
    store.broken[SHARD] = right[:-1] + bytes([right[-1] ^ 1])
    error = failure(lambda: bring(kind))
    assert error.code == "bad_model"
    assert SHARD in error.message
    assert "corrupt" in error.message
    assert not list((tmp_path / "cache").rglob(SHARD + "*"))
    store.broken.clear()
    assert bring(kind).digest


def test_checksums_beside_the_files_of_a_bucket_are_believed(store: Store, bring: Callable[..., Brought]) -> None:
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in store.files.items()]
    store.files[SUMS] = "".join(lines).encode()
    right = store.files[SHARD]
    store.broken[SHARD] = right[:-1] + bytes([right[-1] ^ 1])
    error = failure(lambda: bring("s3"))
    assert SHARD in error.message
    assert "corrupt" in error.message


def test_a_file_whose_header_promises_more_is_named_without_any_checksum(
    store: Store, bring: Callable[..., Brought]
) -> None:
    store.files[SHARD] = safetensors(1, 1000)[:-10]
    error = failure(lambda: bring("s3"))
    assert error.code == "bad_model"
    assert SHARD in error.message


@pytest.mark.parametrize("kind", SOURCES)
def test_a_shard_that_the_index_names_and_nobody_has_is_named(
    kind: str, store: Store, bring: Callable[..., Brought]
) -> None:
    del store.files[SHARD]
    error = failure(lambda: bring(kind))
    assert error.code == "bad_model"
    assert SHARD in error.message
    assert store.weights_served == 0, "nothing is fetched of what cannot be whole"


@pytest.mark.parametrize("kind", SOURCES)
def test_a_shard_that_goes_missing_under_way_is_named(kind: str, store: Store, bring: Callable[..., Brought]) -> None:
    store.status[SHARD] = 404
    error = failure(lambda: bring(kind))
    assert SHARD in error.message
    assert "missing" in error.message


@pytest.mark.parametrize("kind", SOURCES)
def test_a_transfer_that_is_cut_off_goes_on_where_it_stopped(
    kind: str, store: Store, bring: Callable[..., Brought]
) -> None:
    store.cut, store.cuts = {SHARD: 100_000}, 2
    bring(kind)
    assert store.served[SHARD] == len(store.files[SHARD])
    assert [each.partition("=")[2] for each in store.ranges] == ["100000-", "200000-"]


def test_one_that_is_always_cut_off_at_the_same_place_ends(store: Store, bring: Callable[..., Brought]) -> None:
    store.cut = {SHARD: 0}
    error = failure(lambda: bring("s3"))
    assert error.code == "link_lost"
    assert SHARD in error.message


def test_an_overloaded_server_is_asked_again_and_a_refusal_is_told(
    store: Store, bring: Callable[..., Brought]
) -> None:
    store.status[SHARD] = 503
    assert failure(lambda: bring("s3")).code == "link_lost"
    store.status[SHARD] = 403
    error = failure(lambda: bring("s3"))
    assert "credentialsSecret" in error.message


def test_pickles_alone_are_refused(store: Store, bring: Callable[..., Brought]) -> None:
    store.files = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    assert "run code" in failure(lambda: bring("s3")).message


# ---- one cache for a node ----


def test_files_that_another_revision_has_already_are_linked(store: Store, bring: Callable[..., Brought]) -> None:
    bring("oci")
    store.files["config.json"] = b'{"model_type": "llama", "rope_theta": 5}'
    found = bring("oci")
    assert found.fetched_bytes == len(store.files["config.json"])
    assert found.linked_bytes > 900_000


def _bring_s3(cache: Path, url: str, told: "multiprocessing.Queue[int]") -> None:
    brought = bring_model("s3://bucket/m", WeightsCache(cache, wait_s=20.0), environment=bucket_environment(url))
    told.put(brought.fetched_bytes)


def test_of_several_processes_at_once_one_fetches(store: Store, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    workers = [context.Process(target=_bring_s3, args=(tmp_path, store.url, told)) for _ in range(3)]
    for worker in workers:
        worker.start()
    fetched = sorted(told.get(timeout=100.0) for _ in workers)
    for worker in workers:
        worker.join(10.0)
    assert fetched[:2] == [0, 0]
    assert fetched[2] > 0
    assert all(count == len(store.files[name]) for name, count in store.served.items() if "index" not in name)


def test_whoever_is_killed_leaves_what_it_has_to_the_next(tmp_path: Path) -> None:
    big = Store({"config.json": b"{}", "model.safetensors": safetensors(7, 30_000_000)})
    with serving(big):
        big.cut = {"model.safetensors": 12_000_000}
        environment = os.environ | bucket_environment(big.url)
        big.status["config.json"] = 503
        command = [sys.executable, "-m", "tandem.apps.cli", "fetch", "s3://bucket/m", "--cache", str(tmp_path)]
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        until = time.monotonic() + 30.0
        while time.monotonic() < until and not any(
            part.stat().st_size > 1_000_000 for part in tmp_path.rglob("*.part")
        ):
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        big.cut, big.status = {}, {}
        before = big.served["model.safetensors"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        directory = Path(done.stdout.strip())
        assert (directory / "model.safetensors").read_bytes() == big.files["model.safetensors"]
        assert big.served["model.safetensors"] - before < 30_000_000


# ---- on disks ----


@pytest.mark.parametrize("kind", [*BUCKETS, "oci"])
def test_texts_come_without_weights_and_once(kind: str, store: Store, tmp_path: Path) -> None:
    store.files |= {"tokenizer.json": b"{}", "chat_template.jinja": b"{{ messages }}"}
    environment = bucket_environment(store.url)
    source = BUCKETS.get(kind, f"oci://{store.url.removeprefix('http://')}/org/model:v1")
    cache = WeightsCache(tmp_path / "cache")
    found = bring_texts(source, cache, environment=environment)
    brought = {path.name for path in found.iterdir() if not path.name.startswith(".")}
    assert brought == {"config.json", "tokenizer.json", "chat_template.jinja"}
    assert store.weights_served == 0
    served = dict(store.served)
    assert bring_texts(source, cache, environment=environment) == found
    assert store.served == served
    # All of a registry's checksums are known: a digest of the whole is held against them without a byte of weights.
    whole = bring_model(source, WeightsCache(tmp_path / "whole"), environment=environment)
    assert bring_texts(source, cache, digest=whole.digest, environment=environment) == found
    if kind == "oci":
        other = f"sha256:{'0' * 64}"
        error = failure(lambda: bring_texts(source, cache, digest=other, environment=environment))
        assert f"its digest is {whole.digest}, and should be {other}" in error.message
    del store.files["tokenizer.json"]
    assert "it has no tokenizer.json" in failure(lambda: bring_texts(source, cache, environment=environment)).message


def test_a_text_that_is_larger_than_any_is_not_fetched() -> None:
    files = [File("config.json", 10), File("tokenizer.json", TEXT_BYTES_MAX + 1), File("a.safetensors", 1 << 40)]
    assert "tokenizer.json has 67,108,865 bytes" in failure(lambda: texts(files, "s3://b/m")).message
    files[1] = File("tokenizer.json", TEXT_BYTES_MAX)
    assert [each.name for each in texts(files, "s3://b/m")] == ["config.json", "tokenizer.json"]


def test_a_directory_is_used_where_it_is(tmp_path: Path) -> None:
    for name, data in model().items():
        (tmp_path / name).write_bytes(data)
    cache = WeightsCache(tmp_path / "cache")
    digest = digest_on_disk(tmp_path)
    assert bring_model(str(tmp_path), cache, digest=digest).directory == tmp_path
    claimed = bring_model(f"pvc://{tmp_path.name}", cache, volumes=tmp_path.parent)
    assert claimed.directory == tmp_path
    (tmp_path / SHARD).unlink()
    assert SHARD in failure(lambda: bring_model(f"file://{tmp_path}", cache)).message


@given(st.dictionaries(st.text("abc.-", min_size=1, max_size=5), st.binary(min_size=32, max_size=32), max_size=5))
def test_sums_are_read_as_they_are_written(sums: dict[str, bytes]) -> None:
    text = "".join(f"{checksum.hex()}  {name}\n" for name, checksum in sums.items())
    found = parse_sums(text)
    assert set(found.values()) == {checksum.hex() for checksum in sums.values()}
    files = [File(name, 1, checksum.hex()) for name, checksum in sums.items()]
    assert digest_of(files) == digest_of(reversed(files))


@given(st.integers(0, 400), st.integers(0, 50))
def test_a_file_that_is_cut_off_anywhere_shows(size: int, lost: int) -> None:
    whole = safetensors(1, size)
    cut = whole[: len(whole) - lost]
    assert (header_problem("x", cut, len(cut)) is None) == (lost == 0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hf://org/model@v1", "hf://org/model@v1"),
        ("org/model", "hf://org/model"),
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("gs://bucket/prefix/", "gs://bucket/prefix"),
        ("az://container/prefix", "az://container/prefix"),
        ("abfs://container/prefix", "az://container/prefix"),
        ("abfss://c@account.dfs.core.windows.net/p", "az://c@account.dfs.core.windows.net/p"),
        ("oci://registry.example/team/model:v2", "oci://registry.example/team/model@v2"),
        ("pvc://claim/path", "file:///claim/path"),
        ("/models/llama", "file:///models/llama"),
    ],
)
def test_sources_are_understood(text: str, told: str) -> None:
    assert str(parse_source(text)) == told


def test_every_source_that_a_specification_may_name_is_understood() -> None:
    local = {scheme for scheme, kind in SCHEMES.items() if kind in ("file", "hf")}
    assert {each.removesuffix("://") for each in FETCHED} == set(SCHEMES) - local


@pytest.mark.parametrize("text", ["ftp://x", "hf://no-owner", "oci://registry", "s3://", "gs:///prefix"])
def test_sources_that_are_none_are_refused_by_name(text: str) -> None:
    with pytest.raises(TandemError, match=r"model\.source"):
        parse_source(text)


def test_a_file_that_is_longer_than_its_header_says_is_named(store: Store, bring: Callable[..., Brought]) -> None:
    store.files[SHARD] = safetensors(1, 1000) + b"x"
    error = failure(lambda: bring("s3"))
    assert error.code == "bad_model"
    assert SHARD in error.message


@pytest.mark.parametrize("kind", BUCKETS)
@pytest.mark.parametrize("cuts", [1, 2])
def test_a_file_that_changes_between_two_parts_is_not_glued_together(
    kind: str, cuts: int, store: Store, bring: Callable[..., Brought]
) -> None:
    """Both have the same size, and a bucket knows no checksum: nothing else would notice. Nor when the first part of
    the new one is shorter than what there was of the old."""
    new = safetensors(9, 300_000)
    store.cut, store.cuts, store.changed[SHARD] = {SHARD: 100_000}, cuts, (new, 50_000)
    brought = bring(kind)
    assert _same((brought.directory / SHARD).read_bytes(), new)


@pytest.mark.parametrize(("kind", "answers"), [("hf", 1), ("s3", 2)])
def test_of_a_server_that_knows_no_ranges_the_whole_file_is_taken_once(
    kind: str, answers: int, store: Store, bring: Callable[..., Brought]
) -> None:
    """What a bucket answers to a range is looked at before a byte of it is taken, and asked for anew."""
    store.cut, store.cuts, store.whole_only = {SHARD: 100_000}, 1, True
    brought = bring(kind)
    assert _same((brought.directory / SHARD).read_bytes(), store.files[SHARD])
    assert brought.fetched_bytes == 100_000 + sum(path.stat().st_size for path in brought.directory.glob("[!.]*"))
    assert sum(target.endswith(SHARD) for target, _ in store.requests) == 1 + answers
