"""Every name that Tandem imports from vLLM is there."""

import pytest

from tandem.engine.vllm import internals


@pytest.mark.parametrize("name", sorted({*internals.NAMES, *internals.PATCHED}))
def test_is_where_it_was(name: str) -> None:
    assert getattr(internals, name) is not None


def test_this_version_is_supported() -> None:
    version = internals.vllm_version()
    assert version is not None
    assert version.rpartition(".")[0] in internals.SUPPORTED
