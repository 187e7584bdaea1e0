"""Only private anonymous memory is asked for in large pages, in whole ones, and what it holds stays."""

from tandem.process.large_pages import large_ranges, use_large_pages

MAPS = """\
55d000000000-55d000200000 r--p 00000000 08:01 1234  /usr/bin/python
55d000300000-55d000900000 rw-p 00000000 00:00 0     [heap]
7f0000000000-7f0000400000 rw-p 00000000 08:01 1234  /usr/lib/some.so
7f0000400000-7f0000600000 rw-p 00000000 00:00 0
7f0000700000-7f00008fffff rw-p 00000000 00:00 0
7f0000a00000-7f0000c00000 rw-s 00000000 00:01 99    /dev/shm/pool
7f0000c00000-7f0001000000 r-xp 00000000 00:00 0
"""


def test_whole_large_pages_of_private_anonymous_memory() -> None:
    found = [f"{address:x}" for address in large_ranges(MAPS.splitlines())]
    assert found == ["55d000400000", "55d000600000", "7f0000400000"]


def test_what_is_loaded_stays_as_it_was() -> None:
    kept = [bytes([number % 251]) * 4099 for number in range(4096)]
    assert use_large_pages() >= 0
    assert all(each == bytes([number % 251]) * 4099 for number, each in enumerate(kept))
