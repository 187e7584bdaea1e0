"""The engine contract on vLLM. What cannot hold is in `CANNOT_HOLD`, with the reason."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.contract import test_engine as contract
from tests.vllm.lending import Lender, engine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SMALL_BLOCKS = 16

LIMIT_S = 60.0
"""vLLM's processes share few cores with each other here."""

CANNOT_HOLD = {
    "test_impossible_works_are_refused_at_once": "vLLM does not start with a pool smaller than the context, so there "
    "is no work that fits the context and not the pool; what exceeds the context is tested in test_vllm_engine",
    "test_blocks_of_another_engine_beyond_a_hole_are_not_computed": "vLLM computes a prompt from its first missing "
    "block on: blocks beyond that have come in vain; its tokens are right all the same",
}

globals().update(
    {name: test for name, test in vars(contract).items() if name.startswith("test_") and name not in CANNOT_HOLD}
)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "LIMIT_S", LIMIT_S)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def factory() -> AsyncIterator[Lender]:
    async with engine(64, 3) as roomy, engine(SMALL_BLOCKS, 4) as small:
        yield Lender(roomy, small)
