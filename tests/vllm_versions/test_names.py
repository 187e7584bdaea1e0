"""Every name that Tandem imports from vLLM is where `internals` says."""

import pytest

from tandem.engine.vllm import internals


@pytest.mark.parametrize("name", sorted({*internals.NAMES, *internals.PATCHED, *internals.OF_CARDS}))
def test_is_where_it_was(name: str) -> None:
    assert getattr(internals, name) is not None


def test_this_version_is_supported() -> None:
    version = internals.vllm_version()
    assert version is not None
    assert version.rpartition(".")[0] in internals.SUPPORTED
