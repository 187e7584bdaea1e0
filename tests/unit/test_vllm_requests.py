"""From works to vLLM requests, without vLLM."""

import pytest

from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens, unpack_tokens
from tandem.core.request import Branch, Grammar, Sampling, Stopping
from tandem.engine.protocol import Work
from tandem.engine.vllm.requests import (
    DRAW,
    Draw,
    as_prompted,
    cache_salt,
    make_request,
    owner_of,
    refuse_under_speculation,
    root_of,
    structured,
)

PLAIN = Sampling(temperature=0.7, top_p=0.9, top_k=5)
PENALISED = Sampling(temperature=0.7, presence_penalty=0.1)


def work(sampling: Sampling = PLAIN, forced: tuple[int, ...] = (), mode: str = "local", **fields: object) -> Work:
    values: dict[str, object] = {
        "work_id": 7,
        "mode": mode,
        "prompt": pack_tokens((5, 6, 7)),
        "branches": (Branch(2, 11, forced),),
        "sampling": sampling,
        "stopping": Stopping(10, 6),
        "root": bytes(range(16)),
        "deadline": 1.0,
    }
    return Work(**{**values, **fields})  # type: ignore[arg-type]


def made(each: Work) -> tuple[dict[str, object], tuple[int, ...]]:
    request = make_request(each, each.branches[0], (1, 9), speculates=False)
    return request.sampling, unpack_tokens(request.tokens)


def test_forced_tokens_become_prompt_where_nothing_but_the_tokens_matters() -> None:
    sampling, tokens = made(work(forced=(20, 21)))
    assert tokens == (5, 6, 7, 20, 21)
    assert (sampling["max_tokens"], sampling["min_tokens"]) == (8, 4)
    assert sampling["stop_token_ids"] == [1, 9]
    draw = Draw.unpacked(sampling["extra_args"][DRAW])  # type: ignore[index]
    assert draw == Draw(7, 2, 11, 2, 5, 0.9)


@pytest.mark.parametrize(
    "each",
    [
        work(PENALISED, (20, 21)),
        work(forced=(20, 21), grammar=Grammar("json")),
        work(branches=(Branch(2, 11, (20, 21)), Branch(3, 12, (22,)))),
    ],
)
def test_forced_tokens_are_drawn_again_where_more_matters(each: Work) -> None:
    sampling, tokens = made(each)
    assert tokens == (5, 6, 7)
    assert (sampling["max_tokens"], sampling["min_tokens"]) == (10, 6)
    draw = Draw.unpacked(sampling["extra_args"][DRAW])  # type: ignore[index]
    assert (draw.base, draw.forced, draw.awaits_first) == (0, (20, 21), False)
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
    assert Draw.unpacked(sampling["extra_args"][DRAW]).awaits_first  # type: ignore[index]


def test_vllm_is_told_neither_seed_nor_cuts() -> None:
    sampling, _ = made(work())
    assert not {"seed", "top_k", "top_p"} & set(sampling)
    assert made(work(Sampling(temperature=0.001)))[0]["temperature"] == 0.01
    assert made(work(Sampling(temperature=0.0, min_p=0.1)))[0]["min_p"] == 0.0


def test_speculation_is_vllms_own_sampling() -> None:
    each = work()
    request = make_request(each, each.branches[0], (), speculates=True)
    assert (request.sampling["top_k"], request.sampling["top_p"]) == (5, 0.9)
    assert "extra_args" not in request.sampling
    refuse_under_speculation(work(forced=(20,)))
    refuse_under_speculation(work(PENALISED))
    for refused in (work(PENALISED, (20,)), work(Sampling(min_p=0.1)), work(Sampling(logit_bias=((1, 2.0),)))):
        with pytest.raises(TandemError) as error:
            refuse_under_speculation(refused)
        assert error.value.code == "unsupported_parameter"


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
