"""Parcels of wheels for a GPU machine: none is too large, and nothing is lost."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tools.gpu_wheels import pack, parcels


@given(st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(1, 500), max_size=12), st.integers(1, 100))
def test_parcels_are_bounded_and_whole(sizes: dict[str, int], limit: int) -> None:
    found = parcels(sizes, limit)
    assert all(sum(size for _, _, size in parcel) <= limit for parcel in found)
    for name, size in sizes.items():
        parts = sorted((start, length) for parcel in found for other, start, length in parcel if other == name)
        assert [start for start, _ in parts] == [sum(length for _, length in parts[:at]) for at in range(len(parts))]
        assert sum(length for _, length in parts) == size


def test_a_large_wheel_is_put_together_again_by_name(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "large.whl").write_bytes(bytes(range(250)))
    (wheels / "small.whl").write_bytes(b"small")
    folders = pack(wheels, tmp_path / "out", 100)
    parts = sorted(
        (path for folder in folders for path in folder.glob("large.whl.part-*")), key=lambda each: each.name
    )
    assert b"".join(path.read_bytes() for path in parts) == bytes(range(250))
    assert [path.read_bytes() for folder in folders for path in folder.glob("small.whl")] == [b"small"]
