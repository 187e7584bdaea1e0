"""Serve's controller follows the hub's table, keeps what it has where the table is silent, and never waits for it."""

import gc
import sys
import threading
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tandem.apps.ray import policy
from tandem.apps.ray.policy import STALE_S, WantedReplicas, WantedTable, decode_table, encode_table


@dataclass
class Written:
    """A store with one key, which may be away, and a clock."""

    value: bytes | None = None
    away: bool = False
    now_s: float = 100.0
    reads: int = 0
    read_once: threading.Event = field(default_factory=threading.Event)

    def read(self) -> bytes | None:
        self.reads += 1
        if self.away:
            raise ConnectionError("the store is away")
        self.read_once.set()
        return self.value

    def now(self) -> float:
        return self.now_s


def context(target: int) -> types.SimpleNamespace:
    return types.SimpleNamespace(target_num_replicas=target)


def test_a_table_is_read_as_it_was_written() -> None:
    counts = {"m-r1": {"prefill": 2, "decode": 0}, "m-r2": {}}
    assert decode_table(encode_table(counts, 7)) == counts


@pytest.mark.parametrize("written", [b"", b"[]", b"{}", b'{"counts": 3}', b"\xff"])
def test_what_is_no_table_is_refused(written: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 json's and ours
        decode_table(written)


def test_what_the_table_does_not_name_is_unknown() -> None:
    store = Written(encode_table({"m-r1": {"decode": 0}}, 1))
    table = WantedTable(store.read, store.now)
    assert table.count("m-r1", "decode") is None  # not read yet
    table.look()
    assert table.count("m-r1", "decode") == 0
    assert table.count("m-r1", "prefill") is None
    assert table.count("m-r2", "decode") is None


def test_the_last_table_stays_while_the_store_is_away_or_has_something_else() -> None:
    store = Written(encode_table({"a": {"d": 3}}, 1))
    table = WantedTable(store.read, store.now)
    table.look()
    for store.away, store.value in ((True, None), (False, None), (False, b"not a table")):
        table.look()
        assert table.count("a", "d") == 3


def test_a_table_that_nobody_writes_is_stale_and_counts_again_when_written() -> None:
    store = Written(encode_table({"a": {"d": 3}}, 1))
    table = WantedTable(store.read, store.now)
    table.look()
    store.now_s += STALE_S
    table.look()
    assert table.count("a", "d") == 3
    store.now_s += 0.1
    table.look()
    assert table.count("a", "d") is None
    store.value = encode_table({"a": {"d": 3}}, 2)
    table.look()
    assert table.count("a", "d") == 3


def test_whole_gangs_are_wanted_and_silence_keeps_the_target() -> None:
    store = Written(encode_table({"a": {"d": 3}}, 1))
    of_gangs, unknown = WantedReplicas("a", "d", 2, store.read), WantedReplicas("a", "x", 2, store.read)
    of_gangs._table.look()
    unknown._table.look()
    assert of_gangs(context(1)) == (6, {})
    assert unknown(context(5)) == (5, {})


def test_its_thread_ends_with_it() -> None:
    followed = WantedReplicas("a", "d", 1, Written().read)
    over = followed._table.over
    del followed
    gc.collect()
    assert over.wait(30)


def test_it_imports_the_standard_library_alone() -> None:
    """Serve pickles it by value: what it imports has to be there wherever the controller is."""
    assert policy.__file__ is not None
    imported = {
        line.split()[1].split(".")[0] for line in Path(policy.__file__).read_text().splitlines() if _imports(line)
    }
    assert imported <= set(sys.stdlib_module_names)


def _imports(line: str) -> bool:
    return line.startswith(("import ", "from "))
