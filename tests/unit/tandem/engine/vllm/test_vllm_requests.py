"""From works to vLLM requests, without vLLM."""

from typing import Any

import pytest

from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens, unpack_tokens
from tandem.core.request import ChildRequest, Grammar, Sampling, Stopping
from tandem.engine.protocol import EngineRequest
from tandem.engine.vllm.requests import (
    DRAW,
    ProcessorParams,
    as_prompted,
    cache_salt,
    make_request,
    owner_of,
    refuse_under_speculation,
    root_of,
    structured,
)
from tandem.engine.vllm.settings import RunnerKind

PLAIN = Sampling(temperature=0.7, top_p=0.9, top_k=5)
PENALISED = Sampling(temperature=0.7, presence_penalty=0.1)
V1, V2 = RunnerKind(), RunnerKind(v2=True)
V1_DRAFTS, V2_DRAFTS = RunnerKind(speculates=True), RunnerKind(v2=True, speculates=True)


def work(
    sampling: Sampling = PLAIN, forced: tuple[int, ...] = (), mode: str = "local", **fields: object
) -> EngineRequest:
    values: dict[str, object] = {
        "work_id": 7,
        "mode": mode,
        "prompt": pack_tokens((5, 6, 7)),
        "branches": (ChildRequest(2, 11, forced),),
        "sampling": sampling,
        "stopping": Stopping(10, 6),
        "root": bytes(range(16)),
        "deadline": 1.0,
    }
    return EngineRequest(**{**values, **fields})  # type: ignore[arg-type]


def made(each: EngineRequest, runner: RunnerKind = V1) -> tuple[dict[str, Any], tuple[int, ...]]:
    request = make_request(each, each.branches[0], (1, 9), runner)
    return request.sampling, unpack_tokens(request.tokens)


def draw(sampling: dict[str, Any]) -> ProcessorParams:
    return ProcessorParams.unpacked(sampling["extra_args"][DRAW])


def test_forced_tokens_become_prompt_where_nothing_but_the_tokens_matters() -> None:
    sampling, tokens = made(work(forced=(20, 21)))
    assert tokens == (5, 6, 7, 20, 21)
    assert (sampling["max_tokens"], sampling["min_tokens"]) == (8, 4)
    assert sampling["stop_token_ids"] == [1, 9]
    assert draw(sampling) == ProcessorParams(7, 2, 2, 11, 5, 0.9)


@pytest.mark.parametrize(
    "each",
    [
        work(PENALISED, (20, 21)),
        work(forced=(20, 21), grammar=Grammar("json")),
        work(branches=(ChildRequest(2, 11, (20, 21)), ChildRequest(3, 12, (22,)))),
    ],
)
def test_forced_tokens_are_drawn_again_where_more_matters(each: EngineRequest) -> None:
    sampling, tokens = made(each)
    assert tokens == (5, 6, 7)
    assert (sampling["max_tokens"], sampling["min_tokens"]) == (10, 6)
    told = draw(sampling)
    assert (told.base, told.forced, told.awaits_first) == (0, (20, 21), False)
    assert unpack_tokens(as_prompted(each).prompt) == (5, 6, 7)
    assert not any(branch.forced for branch in as_prompted(each).branches)


def test_a_repetition_penalty_counts_prompt_and_output_alike() -> None:
    assert made(work(Sampling(repetition_penalty=1.2), (20,)))[1] == (5, 6, 7, 20)


def test_prefill_draws_one_position_and_decode_awaits_it() -> None:
    sampling, _ = made(work(PENALISED, (20, 21), mode="prefill"))
    assert (sampling["max_tokens"], sampling["min_tokens"]) == (3, 3)
    sampling, _ = made(work(forced=(20, 21), mode="prefill"))
    assert (sampling["max_tokens"], sampling["min_tokens"]) == (1, 1)
    sampling, _ = made(work(mode="decode"))
    assert draw(sampling).awaits_first


def test_with_a_seed_the_first_runner_is_told_neither_seed_nor_cuts() -> None:
    sampling, _ = made(work())
    assert "seed" not in sampling
    assert (sampling["top_k"], sampling["top_p"]) == (0, 1.0)
    assert made(work(Sampling(temperature=0.001)))[0]["temperature"] == 0.01
    assert made(work(Sampling(temperature=0.0, min_p=0.1)))[0]["min_p"] == 0.0


def test_the_second_runner_draws_from_the_seed_of_a_branch_wherever_it_is_taken_up() -> None:
    sampling, _ = made(work(), V2)
    assert (sampling["top_k"], sampling["top_p"]) == (5, 0.9)
    assert "extra_args" not in sampling
    assert 0 <= sampling["seed"] < 1 << 63
    assert made(work(forced=(20, 21)), V2)[0]["seed"] == sampling["seed"]
    assert made(work(mode="decode"), V2)[0]["seed"] == sampling["seed"]
    others = [made(work(branches=(branch,)), V2)[0]["seed"] for branch in (ChildRequest(3, 11), ChildRequest(2, 12))]
    assert len({sampling["seed"], *others}) == 3


@pytest.mark.parametrize("runner", [V1, V2, V1_DRAFTS, V2_DRAFTS])
@pytest.mark.parametrize("each", [Sampling(0.7, 0.9, 5, seeded=False), Sampling(0.0)])
def test_without_a_seed_and_greedily_vllm_does_everything(runner: RunnerKind, each: Sampling) -> None:
    sampling, _ = made(work(each), runner)
    assert not {"seed", "extra_args"} & set(sampling)
    assert (sampling["top_k"], sampling["top_p"]) == (each.top_k, each.top_p)


@pytest.mark.parametrize("runner", [V1, V2, V2_DRAFTS])
def test_a_first_token_that_is_to_come_is_all_that_is_forced_of_an_unseeded_request(runner: RunnerKind) -> None:
    sampling, _ = made(work(Sampling(0.7, 0.9, 5, seeded=False), mode="decode"), runner)
    assert draw(sampling) == ProcessorParams(7, 2, 0, awaits_first=True)
    assert (sampling["top_k"], sampling["top_p"]) == (5, 0.9)


@pytest.mark.parametrize("runner", [V1_DRAFTS, V2_DRAFTS])
def test_what_excludes_speculation_is_said(runner: RunnerKind) -> None:
    unseeded = Sampling(0.7, 0.9, 5, seeded=False)
    refuse_under_speculation(work(unseeded, forced=(20,)), runner)
    refuse_under_speculation(work(Sampling(0.0), mode="decode"), runner)
    refuse_under_speculation(work(Sampling(0.0, presence_penalty=0.1)), runner)
    refused = {
        "speculation": work(PENALISED, (20,)),
        "min_p": work(Sampling(min_p=0.1)),
        "logit_bias": work(Sampling(logit_bias=((1, 2.0),))),
    }
    first_runner_only = {"seed": work(PLAIN), "speculation": work(unseeded, mode="decode")}
    for param, each in refused.items():
        with pytest.raises(TandemError) as error:
            refuse_under_speculation(each, runner)
        assert (error.value.code, error.value.param) == ("unsupported_parameter", param)
    for param, each in first_runner_only.items():
        if runner.v2:
            refuse_under_speculation(each, runner)
            continue
        with pytest.raises(TandemError) as error:
            refuse_under_speculation(each, runner)
        assert (error.value.code, error.value.param) == ("unsupported_parameter", param)


def test_salts_stand_for_roots_but_those_of_private_works() -> None:
    assert root_of(cache_salt(work())) == bytes(range(16))
    assert root_of(cache_salt(work(private=True))) is None
    assert owner_of("7.2") == (7, 2)


@pytest.mark.parametrize(
    ("grammar", "wanted"),
    [
        (Grammar("json"), {"json_object": True}),
        (Grammar("json", "{}"), {"json": "{}"}),
        (Grammar("regex", "a+"), {"regex": "a+"}),
        (Grammar("choice", '["a", "b"]'), {"choice": ["a", "b"]}),
        (Grammar("ebnf", "root ::= x"), {"grammar": "root ::= x"}),
    ],
)
def test_grammars_in_vllms_words(grammar: Grammar, wanted: dict[str, object]) -> None:
    assert structured(grammar) == wanted


@pytest.mark.parametrize(
    "grammar", [Grammar("x"), Grammar("choice", "[1]"), Grammar("choice", "a"), Grammar("choice", "[]")]
)
def test_bad_grammars_are_refused(grammar: Grammar) -> None:
    with pytest.raises(TandemError) as error:
        structured(grammar)
    assert (error.value.code, error.value.param) == ("invalid_request", "grammar")
