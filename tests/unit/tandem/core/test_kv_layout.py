"""Which blocks can be copied as they are: layouts, and versions of an engine beside each other."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.kv import Layout, compatibility_key
from tandem.engine.vllm import internals
from tandem.engine.vllm.internals import PAGE_FORMATS, engine_name

PAGES = Layout("vllm/pages-1/0.32", "keys-values", "bfloat16", 2, 32, 16, 8, 128)


def _pairs(ours: str, theirs: str) -> bool:
    return replace(PAGES, engine=ours).incompatibility(replace(PAGES, engine=theirs)) is None


@given(
    st.integers(0, 3), st.integers(0, 3), st.integers(0, 50), st.integers(0, 50), st.integers(0, 2), st.integers(0, 2)
)
def test_neighbours_of_one_format_pair(
    pages: int, other_pages: int, minor: int, other_minor: int, major: int, other_major: int
) -> None:
    expected = pages == other_pages and major == other_major and abs(minor - other_minor) <= 1
    ours, theirs = f"vllm/pages-{pages}/{major}.{minor}", f"vllm/pages-{other_pages}/{other_major}.{other_minor}"
    assert _pairs(ours, theirs) == _pairs(theirs, ours) == expected
    if expected:
        assert compatibility_key(replace(PAGES, engine=ours)) == compatibility_key(replace(PAGES, engine=theirs))


@pytest.mark.parametrize(
    ("ours", "theirs", "pairs"),
    [
        ("torch", "torch", True),
        ("torch", "vllm/pages-1/0.32", False),
        ("vllm-0.40.0", "vllm-0.40.0", True),
        ("vllm-0.40.0", "vllm-0.41.0", False),
        ("vllm/0.32", "vllm/0.33", False),
        ("vllm/pages-1/0.32", "sglang/pages-1/0.33", False),
        ("vllm/pages-1/0.x", "vllm/pages-1/0.y", False),
    ],
)
def test_other_engines_pair_with_themselves(ours: str, theirs: str, pairs: bool) -> None:
    assert _pairs(ours, theirs) == pairs
    assert not pairs or compatibility_key(replace(PAGES, engine=ours)) == compatibility_key(
        replace(PAGES, engine=theirs)
    )


@pytest.mark.parametrize(
    "other", [{"isa": "amx"}, {"packing": "latent"}, {"dtype": "fp8"}, {"block_tokens": 32}, {"kv_heads": 4}]
)
def test_a_neighbour_of_another_shape_does_not_pair(other: dict[str, object]) -> None:
    neighbour = replace(PAGES, engine="vllm/pages-1/0.33", **other)  # type: ignore[arg-type]
    assert PAGES.incompatibility(neighbour) is not None


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("0.32.0", "vllm/pages-1/0.32"),
        ("0.33.1", "vllm/pages-1/0.33"),
        ("0.99.0", "vllm-0.99.0"),
        (None, "vllm-unknown"),
    ],
)
def test_a_version_says_its_page_format(version: str | None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "vllm_version", lambda: version)
    assert engine_name() == name


def test_supported_versions_are_neighbours() -> None:
    minors = [int(each.partition(".")[2]) for each in PAGE_FORMATS]
    assert minors == list(range(minors[0], minors[0] + len(minors)))
