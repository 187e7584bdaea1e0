"""A worker that speculates says what one that does not would say, and counts what came of it: with every method of
drafting, each as a service names it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from openai import BadRequestError

from tandem.apps.cli.supervisor import ROUTER
from tests.vllm.drafting_models import write_eagle, write_eagle3, write_llama, write_with_mtp
from tests.vllm.lending import DEMO
from tests.vllm.models import write_like_demo
from tests.vllm.plain_llm import answers
from tests.vllm.serving import Serving, serving, token_ids

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

TOKENS = 60
PROMPTS = [[3 + (base * 37 + at * (base + 5)) % 900 for at in range(12)] * (base + 1) for base in range(6)]
"""They repeat themselves, so that looking up what followed finds something."""
WHOLE_PROMPTS = {"TANDEM_SCHEDULER__MAX_BATCHED_TOKENS": "256"}
"""vLLM's CPU kernels for latents compute a prompt in one step, and with speculation never one longer than a step."""
BLOCKS = 129
"""Of vLLM alone: those of latents have 16 tokens."""


def drafting(method: str, place: Path) -> tuple[Path, str]:
    """A model, and what `--speculative` says so that it drafts by this method."""
    match method:
        case "draft_model":
            return DEMO, f"draft_model:3:{write_like_demo(place / 'drafts')}"
        case "eagle" | "eagle3":
            model = write_llama(place / "model")
            head = {"eagle": write_eagle, "eagle3": write_eagle3}[method](model, place / "head")
            return model, f"{method}:3:{head}"
        case "mtp":
            return write_with_mtp(place / "model"), "mtp:3"
    return DEMO, f"{method}:3"


@pytest.fixture(
    scope="module",
    params=[
        "ngram",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("draft_model", "eagle", "eagle3", "mtp")),
    ],
)
def drafts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return drafting(request.param, tmp_path_factory.mktemp(request.param))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def speculating(drafts: tuple[Path, str]) -> AsyncIterator[Serving]:
    model, flag = drafts
    environment = WHOLE_PROMPTS if flag.startswith("mtp") else {}
    flags = ["--prefill", "0", "--decode", "1", "--speculative", flag]
    async with serving(flags, environment, model) as running:
        yield running


async def test_greedy_tokens_are_those_without_speculation(speculating: Serving, drafts: tuple[Path, str]) -> None:
    model, _ = drafts
    sampling = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True}
    plain = asyncio.create_task(
        asyncio.to_thread(
            answers,
            [{"prompt": prompt, "sampling": sampling} for prompt in PROMPTS],
            {"model": str(model), "num_gpu_blocks_override": BLOCKS},
        )
    )
    async with speculating.client() as api:
        told = [
            await api.completions.create(
                model=speculating.model, prompt=prompt, max_tokens=TOKENS, temperature=0.0,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            )
            for prompt in PROMPTS
        ]  # fmt: skip
    right = await plain
    assert [token_ids(answer.choices[0]) for answer in told] == right
    if model != DEMO:
        # Random numbers that always say the same would prove little.
        assert all(len(set(each)) > TOKENS // 4 for each in right)


async def test_what_became_of_drafts_is_told(speculating: Serving) -> None:
    """Of the requests above and one more, whose steps all count."""
    async with speculating.client() as api:
        answer = await api.completions.create(
            model=speculating.model, prompt=PROMPTS[5], max_tokens=TOKENS, temperature=0.0,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
    assert answer.usage is not None
    assert answer.usage.completion_tokens == TOKENS
    (worker,) = [member.name for member in speculating.platform.members if member.role != ROUTER]
    samples = (
        'tandem_speculation_tokens_total{outcome="accepted"}',
        'tandem_speculation_tokens_total{outcome="wasted"}',
        "tandem_speculation_acceptance_ratio",
        "tandem_speculation_accepted_tokens_sum",
        "tandem_speculation_accepted_tokens_count",
    )

    def hold(accepted: float, wasted: float, ratio: float, total: float, drafts: float) -> bool:
        # A draft has one to three tokens.
        counted = min(accepted, wasted) > 0 and total == accepted and drafts <= accepted + wasted <= 3 * drafts
        return counted and ratio == pytest.approx(accepted / (accepted + wasted))

    # Of one page: a last report may come between two.
    await speculating.figures(worker, samples, hold)


async def test_a_seed_is_refused_on_the_first_model_runner_and_nothing_else_is(speculating: Serving) -> None:
    async with speculating.client() as api:
        drawn = await api.completions.create(
            model=speculating.model, prompt=PROMPTS[0], max_tokens=8, temperature=1.0
        )
        assert drawn.usage is not None
        with pytest.raises(BadRequestError) as error:
            await api.completions.create(
                model=speculating.model, prompt=PROMPTS[0], max_tokens=8, temperature=1.0, seed=3
            )
    assert error.value.message.count("seed has no effect") == 1
