"""One node's cache of weights, filled from an origin in memory: what is fetched, tried again, believed and told."""

import errno
import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandem.core.errors import TandemError
from tandem.weights import cache as cache_module
from tandem.weights import fetching
from tandem.weights.cache import Brought, Progress, WeightsCache
from tandem.weights.directory import digest_on_disk
from tandem.weights.fetching import Fetcher
from tandem.weights.listing import INDEX, SUMS, File
from tandem.weights.origin import Stream
from tests.worlds.weights_stage import safetensors

SOURCE = "s3://bucket/m"
WEIGHTS = "model.safetensors"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Store:
    """`tandem.weights.origin.Origin` of files in memory. `summed`: whether it knows checksums; `tagged`: whether
    there are tags. `cut`: after how many bytes the next reads of a file end; below zero: the read is refused."""

    def __init__(self, files: dict[str, bytes], *, summed: bool = False, tagged: bool = True) -> None:
        self.data = files
        self.summed = summed
        self.tagged = tagged
        self.cut: dict[str, list[int]] = {}
        self.refused: dict[str, str] = {}
        """Error codes by file."""
        self.opened: list[tuple[str, int]] = []
        self.entered: Callable[[str], None] = lambda name: None
        self.closed = 0

    def files(self) -> tuple[File, ...]:
        return tuple(File(name, len(data), digest(data) if self.summed else "") for name, data in self.data.items())

    @contextmanager
    def open(self, name: str, offset: int, tag: str) -> Iterator[Stream]:
        data = self.data.get(name, b"")
        current = digest(data)[:8] if self.tagged else ""
        if tag and tag != current:
            offset = 0
        self.opened.append((name, offset))
        self.entered(name)
        if name in self.refused or name not in self.data:
            raise TandemError(self.refused.get(name, "bad_model"), f"{name} is refused")
        cut = self.cut[name].pop(0) if self.cut.get(name) else len(data)
        yield Stream(offset, current, iter([data[offset : offset + cut]]))

    def close(self) -> None:
        self.closed += 1

    def times(self, name: str = WEIGHTS) -> list[int]:
        """From where a file was read, each time."""
        return [offset for each, offset in self.opened if each == name]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits between two tries."""
    monkeypatch.setattr(fetching, "_BACKOFF_S", 0.0)


def small(fill: int = 1) -> dict[str, bytes]:
    return {"config.json": b'{"model_type": "llama"}', WEIGHTS: safetensors(fill, 100)}


def bring(cache: WeightsCache, store: Store, pinned: str = "", source: str = SOURCE) -> Brought:
    return cache.bring(source, lambda: store, pinned)


def failure(run: Callable[[], object]) -> TandemError:
    with pytest.raises(TandemError) as caught:
        run()
    return caught.value


def here(found: Brought) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in found.directory.iterdir() if path.name != ".tandem.json"}


# ---- trying again ----


@pytest.mark.parametrize(
    ("cuts", "offsets"),
    [
        ([], [0]),
        ([10, 20, 30, 40, 10, 10], [0, 10, 30, 60, 100, 110, 120]),
        ([10, 0, 0, 0, 20, 0, 0, 0], [0, 10, 10, 10, 10, 30, 30, 30, 30]),
    ],
)
def test_a_file_is_tried_again_for_as_long_as_it_gets_on(cuts: list[int], offsets: list[int], tmp_path: Path) -> None:
    store = Store(small())
    store.cut[WEIGHTS] = cuts
    found = bring(WeightsCache(tmp_path), store)
    assert store.times() == offsets
    assert here(found) == store.data
    assert found.fetched_bytes == sum(map(len, store.data.values()))
    assert store.closed == 1


@pytest.mark.parametrize(("cuts", "offsets"), [([0] * 9, [0] * 5), ([10] + [0] * 9, [0] + [10] * 4)])
def test_one_that_does_not_get_on_is_given_up_after_five_tries(
    cuts: list[int], offsets: list[int], tmp_path: Path
) -> None:
    """What came stays, and the next one goes on from there."""
    store = Store(small())
    store.cut[WEIGHTS] = cuts
    error = failure(lambda: bring(WeightsCache(tmp_path), store))
    assert (error.code, store.times()) == ("link_lost", offsets)
    assert f"{WEIGHTS} was cut off: {offsets[-1]} of" in error.message
    assert store.closed == 1
    store.cut, store.opened = {}, []
    assert here(bring(WeightsCache(tmp_path), store)) == store.data
    assert store.times() == [offsets[-1]]


def test_the_wait_between_two_tries_doubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = list[float]()

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return self.is_set()

    store = Store({WEIGHTS: safetensors(1, 100)})
    store.refused[WEIGHTS] = "link_lost"
    monkeypatch.setattr(fetching, "_BACKOFF_S", 0.5)
    fetcher = Fetcher(store, tmp_path, lambda size: None, 1)
    monkeypatch.setattr(fetcher, "_stopped", Event())
    assert failure(lambda: fetcher.fetch(store.files())).code == "link_lost"
    assert waited == [1.0, 2.0, 4.0, 8.0]


def test_what_will_not_get_better_is_not_tried_again(tmp_path: Path) -> None:
    store = Store(small())
    store.refused[WEIGHTS] = "bad_model"
    assert failure(lambda: bring(WeightsCache(tmp_path), store)).code == "bad_model"
    assert store.times() == [0]


def test_without_tag_and_checksum_a_file_that_was_cut_off_begins_anew(tmp_path: Path) -> None:
    """Nothing would tell that the second part is of another file than the first."""
    store = Store(small(), tagged=False)
    store.cut = {WEIGHTS: [50], "config.json": [5]}
    found = bring(WeightsCache(tmp_path), store)
    assert (store.times(), store.times("config.json")) == ([0, 0], [0, 0])
    assert here(found) == store.data


def test_with_a_checksum_it_goes_on_and_what_does_not_fit_is_fetched_once_more(tmp_path: Path) -> None:
    store = Store(small(), summed=True, tagged=False)
    store.cut[WEIGHTS] = [50]
    found = bring(WeightsCache(tmp_path / "one"), store)
    assert store.times() == [0, 50]
    assert here(found) == store.data
    # What an earlier try has left is of another file.
    cache = WeightsCache(tmp_path / "two")
    store.cut[WEIGHTS] = [50, 0, 0, 0, 0]
    failure(lambda: bring(cache, store))
    (part,) = (tmp_path / "two").rglob(f"{WEIGHTS}.part")
    part.write_bytes(bytes(50))
    store.opened, store.cut = [], {}
    assert here(bring(cache, store)) == store.data
    assert store.times() == [50, 0]


def test_a_file_that_is_damaged_twice_is_named_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    store = Store(small(), summed=True)
    listed = store.files()
    store.data[WEIGHTS] = store.data[WEIGHTS][:-1] + b"x"
    store.files = lambda: listed  # type: ignore[method-assign]
    error = failure(lambda: bring(WeightsCache(tmp_path), store))
    assert error.code == "bad_model"
    assert error.message.startswith(f"{WEIGHTS} is corrupt: its SHA-256 is {digest(store.data[WEIGHTS])}")
    assert store.times() == [0, 0]
    assert not list(tmp_path.rglob(f"{WEIGHTS}*"))


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_than_listed_is_refused(change: int, tmp_path: Path) -> None:
    store = Store(small())
    listed = tuple(File(each.name, each.size + change * (each.name == "config.json")) for each in store.files())
    store.files = lambda: listed  # type: ignore[method-assign]
    error = failure(lambda: bring(WeightsCache(tmp_path), store))
    # One that is longer is another file; of one that is shorter the rest may still come.
    assert error.code == ("bad_model" if change < 0 else "link_lost")
    assert "config.json" in error.message


class Opened(ThreadPoolExecutor):
    """A pool whose files under way end only when those that wait have been given up."""

    gate = threading.Event()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(False, cancel_futures=cancel_futures)
        if cancel_futures:
            self.gate.set()
        super().shutdown(wait)


def test_the_file_at_fault_is_named_and_the_others_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user hears of the file that is missing, not of those that were stopped or never begun."""
    gate = Opened.gate = threading.Event()
    monkeypatch.setattr(fetching, "ThreadPoolExecutor", Opened)
    files = {f"f{number}": bytes(100 - number) for number in range(20)}
    store = Store(files)
    store.refused["f0"] = "bad_model"

    def entered(name: str) -> None:
        if name != "f0":
            assert gate.wait(20.0)

    store.entered = entered
    error = failure(lambda: Fetcher(store, tmp_path, lambda size: None, 1).fetch(store.files()))
    assert error.message == "f0 is refused"
    assert [name for name, _ in store.opened] in (["f0"], ["f0", "f1"])
    assert not [path for path in tmp_path.iterdir() if path.suffix not in (".part", ".tag")]


def test_large_files_come_first_and_are_given_by_name(tmp_path: Path) -> None:
    store = Store({"a": bytes(1), "b": bytes(30), "c": bytes(20)})
    found = Fetcher(store, tmp_path, lambda size: None, 1).fetch(store.files())
    assert [name for name, _ in store.opened] == ["b", "c", "a"]
    assert found == tuple(File(name, len(data), digest(data)) for name, data in store.data.items())


def test_one_that_is_stopped_keeps_what_came(tmp_path: Path) -> None:
    store = Store({"a": bytes(30)})
    fetcher = Fetcher(store, tmp_path, lambda size: fetcher.stop(), 1)
    assert failure(lambda: fetcher.fetch(store.files())).code == "cancelled"
    assert (tmp_path / "a.part").stat().st_size == 30
    assert not (tmp_path / "a").exists()


# ---- what is believed ----


def test_a_model_that_is_pinned_by_its_digest_costs_nothing(tmp_path: Path) -> None:
    cache, store = WeightsCache(tmp_path), Store(small())
    first = bring(cache, store)

    def nobody() -> Store:
        raise AssertionError("nobody is to be asked")

    again = cache.bring(SOURCE, nobody, first.digest)
    assert (again.directory, again.digest) == (first.directory, first.digest)
    assert (again.fetched_bytes, again.linked_bytes) == (0, 0)
    assert first.digest == digest_on_disk(first.directory)
    assert 0.0 <= again.seconds < 60.0


def test_a_file_that_was_lost_is_fetched_again(tmp_path: Path) -> None:
    cache, store = WeightsCache(tmp_path), Store(small())
    first = bring(cache, store)
    (first.directory / WEIGHTS).unlink()
    assert here(bring(cache, store, first.digest)) == store.data
    (first.directory / WEIGHTS).write_bytes(b"short")
    assert here(bring(cache, store, first.digest)) == store.data


def test_of_two_contents_under_one_name_none_is_taken_for_whole_while_they_are_mixed(tmp_path: Path) -> None:
    """A bucket without checksums whose files were replaced by others of the same sizes: fetching them over the old
    ones fails half way. What lies there then is neither, although all sizes are right."""
    cache, old, new = WeightsCache(tmp_path, at_once=1), Store(small(1)), Store(small(2))
    # The larger comes first.
    old.data["config.json"] = b'{"model_type": "llama"}' + bytes(500)
    new.data["config.json"] = b'{"model_type": "qwen2"}' + bytes(500)
    first = bring(cache, old)
    (first.directory / "config.json").unlink()
    new.refused[WEIGHTS] = "bad_model"
    failure(lambda: bring(cache, new))
    assert here(first)["config.json"] == new.data["config.json"]
    assert here(first)[WEIGHTS] == old.data[WEIGHTS]
    new.refused = {}
    found = bring(cache, new)
    assert here(found) == new.data
    assert found.digest == digest_on_disk(found.directory) != first.digest


@pytest.mark.parametrize("summed", [False, True])
def test_what_another_model_has_is_linked_by_its_checksum(summed: bool, tmp_path: Path) -> None:
    cache, one, other = WeightsCache(tmp_path), Store(small()), Store(small(), summed=summed)
    bring(cache, one, source="s3://bucket/one")
    other.data["config.json"] = b"{}"
    found = bring(cache, other, source="s3://bucket/other")
    weights = len(other.data[WEIGHTS])
    assert (found.fetched_bytes, found.linked_bytes) == ((2, weights) if summed else (2 + weights, 0))
    assert here(found) == other.data
    assert ((found.directory / WEIGHTS).stat().st_nlink == 2) == summed


def test_checksums_beside_the_files_are_used_and_those_of_the_origin_come_first(tmp_path: Path) -> None:
    store = Store(small())
    store.data[SUMS] = f"{'0' * 64}  config.json\n{digest(store.data[WEIGHTS])} *{WEIGHTS}\n".encode()
    error = failure(lambda: bring(WeightsCache(tmp_path / "one"), store))
    assert error.message.startswith("config.json is corrupt")
    store.summed = True
    assert set(here(bring(WeightsCache(tmp_path / "two"), store))) == {"config.json", WEIGHTS}


def test_texts_come_of_a_model_whose_weights_are_not_there(tmp_path: Path) -> None:
    """A router needs none: it does not read the list of them, and serves although one is missing."""
    store = Store(small() | {"tokenizer.json": b"{}", INDEX: b'{"weight_map": {"w": "lost.safetensors"}}'})
    error = failure(lambda: bring(WeightsCache(tmp_path / "one"), store))
    assert "lost.safetensors missing" in error.message
    assert store.opened == [(INDEX, 0)], "nothing is fetched of what cannot be whole"
    store.opened = []
    found = WeightsCache(tmp_path / "two").bring(SOURCE, lambda: store, without_weights=True)
    assert set(here(found)) == {"config.json", "tokenizer.json"}
    assert {name for name, _ in store.opened} == {"config.json", "tokenizer.json"}


# ---- what is told ----


def test_progress_is_told_from_nothing_to_everything(tmp_path: Path) -> None:
    cache, store, told = WeightsCache(tmp_path, at_once=1), Store(small()), list[Progress]()
    cache.bring(SOURCE, lambda: store, tell=told.append)
    weights = len(store.data[WEIGHTS])
    total = weights + len(store.data["config.json"])
    assert told == [Progress(0, total), Progress(weights, total), Progress(total, total)]
    told.clear()
    cache.bring(SOURCE, lambda: store, tell=told.append)
    assert told == [], "it is here"


def lock_of(directory: Path) -> Path:
    return directory.parent / f"{directory.name}.lock"


def test_while_another_process_fetches_that_is_told_and_then_what_it_brought_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_LOOK_S", 0.001)
    cache, store, told = WeightsCache(tmp_path), Store(small()), list[Progress]()
    first = bring(cache, store)
    with lock_of(first.directory).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def tell(progress: Progress) -> None:
            told.append(progress)
            if len(told) == 3:
                fcntl.flock(lock, fcntl.LOCK_UN)

        second = cache.bring(SOURCE, lambda: store, tell=tell)
    assert told == [Progress(0, 0, waiting=True)] * 3
    assert (second.directory, second.fetched_bytes) == (first.directory, 0)


def test_another_process_that_never_ends_is_waited_for_within_the_bound(tmp_path: Path) -> None:
    cache, store = WeightsCache(tmp_path, wait_s=0.0), Store(small())
    first = bring(cache, store)
    with lock_of(first.directory).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        error = failure(lambda: bring(cache, store))
    assert error.code == "deadline_exceeded"
    assert "within 0 s" in error.message
    assert bring(cache, store).directory == first.directory


def test_a_cache_that_this_user_may_not_write_to_is_said_with_the_user_and_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(TandemError, match=rf"by user {os.getuid()}: Permission denied; let that user own") as raised:
        bring(WeightsCache(tmp_path), Store(small()))
    assert raised.value.code == "bad_setting"
