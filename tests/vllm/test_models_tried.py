"""Five kinds of models against vLLM alone, as `make models` tries all of them.

They are dense, of experts with latents, with windows, with recurrent state, and quantized. Each is asked unified and,
where KV is handed over, with prefill and decode apart; each with its twins.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tools.models.catalogue import CI, named
from tools.models.checkpoints import write
from tools.models.reference import Reference, reference
from tools.models.trial import ALONE, trial

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(700)]
LIMIT_S = 600.0
ELSEWHERE = {"llama"}
"""What nearly every other test here serves."""
OF_SOME_PROCESSORS = {"awq"}
"""vLLM's kernel needs AVX-512, and ends where a virtual machine tells of an AMX that it does not have."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Reference]:
    """vLLM alone, imported once for all models."""
    async with reference(tmp_path_factory.mktemp("alone") / "log") as process:
        yield process


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in ELSEWHERE else []) for name in CI]
)
async def test_a_model_answers_as_vllm_alone_does_and_its_twins_do_not(
    name: str, alone: Reference, tmp_path: Path
) -> None:
    (entry,) = named(name)
    outcome = await trial(entry, write(entry, tmp_path / name), alone, LIMIT_S, print)
    if name in OF_SOME_PROCESSORS and outcome.problem.startswith(ALONE):
        pytest.skip(f"not on this processor: {outcome.problem}")
    assert not outcome.problem
    assert outcome.unified.wrong == ()
    assert outcome.unified_twins.holds
    assert (outcome.pair is not None) == entry.exchanged
    if outcome.pair is not None and outcome.pair_twins is not None:
        assert outcome.pair_twins.holds
        assert outcome.pair.wrong == ()
    assert outcome.holds
