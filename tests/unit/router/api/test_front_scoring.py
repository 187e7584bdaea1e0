"""Prompts in answers: `echo`, and log-probabilities of a prompt's tokens in OpenAI's and in vLLM's form."""

from typing import Any

import pytest

from router.api.openai.scoring import SCORED_VALUES_MAX
from router.generation import Generation, ServedModel, Sink, Usage
from tandem.core.kv import unpack_tokens
from tandem.core.messages import Alternative, PromptLogprob, TokenLogprob
from tests.worlds.front_stage import CONTEXT, MODEL, Script, Stage, chat_body, on_stage
from tests.worlds.outputs import said


class Scorer(Script):
    """A generator whose engine scores prompts: token t at place p has the log-probability -p, rank p, and as many
    alternatives t + 1, t + 2, … as are asked for."""

    def models(self) -> tuple[ServedModel, ...]:
        return (ServedModel(MODEL, CONTEXT, (0,), features=("prompt_logprobs",)),)


def score(generation: Generation, sink: Sink) -> None:
    """Every sequence says `Hi`; the first one's token carries the prompt's log-probabilities."""
    asked, prompt = generation.sampling, unpack_tokens(generation.prompt)
    of_prompt: tuple[PromptLogprob, ...] = ()
    if asked.prompt_logprobs is not None:
        of_prompt = tuple(
            PromptLogprob(-float(place), place, tuple(Alternative(token + n, -n / 8) for n in range(1, 3)))
            for place, token in enumerate(prompt)
            if place
        )
    for sequence in range(generation.n):
        logprobs = () if asked.logprobs is None else (TokenLogprob(-0.5, (), () if sequence else of_prompt),)
        sink.output(said(sequence, 1, (72,), "Hi", logprobs, "length"))
    sink.done(Usage(generation.prompt_tokens, generation.n, 0))


def complete(prompt: Any, **parameters: Any) -> dict[str, Any]:
    """The body of an answered completion."""

    async def test(stage: Stage) -> dict[str, Any]:
        answer = await stage.complete(prompt, **parameters)
        assert answer.status == 200, answer.body
        body: dict[str, Any] = answer.json()
        return body

    return on_stage(test, Scorer(score))


def refused(body: dict[str, Any], path: str, script: Script | None = None) -> dict[str, Any]:
    async def test(stage: Stage) -> dict[str, Any]:
        answer = await stage.post(path, body)
        assert answer.status == 400, answer.body
        return answer.error

    return on_stage(test, script or Scorer(score))


def test_an_echo_begins_with_the_prompt_as_it_was_given() -> None:
    assert complete("abc", echo=True, max_tokens=1)["choices"][0]["text"] == "abcHi"
    assert complete([97, 98], echo=True, max_tokens=1)["choices"][0]["text"] == "abHi"
    assert complete("abc", echo=False, max_tokens=1)["choices"][0]["text"] == "Hi"


def test_an_echo_without_logprobs_asks_the_engine_for_nothing_more() -> None:
    async def test(stage: Stage) -> None:
        await stage.complete("abc", echo=True, max_tokens=1)
        assert stage.script.only.generation.sampling.prompt_logprobs is None
        assert stage.script.only.generation.sampling.logprobs is None

    on_stage(test, Script(score))


def test_logprobs_of_an_echo_have_the_prompts_tokens_first() -> None:
    [choice] = complete([97, 98, 99], echo=True, max_tokens=1, logprobs=1)["choices"]
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "c", "H"],
        "token_logprobs": [None, -1.0, -2.0, -0.5],
        "top_logprobs": [None, {"c": -0.125, "b": -1.0}, {"d": -0.125, "c": -2.0}, {"H": -0.5}],
        "text_offset": [0, 1, 2, 3],
    }


def test_an_answer_of_no_tokens_is_the_prompt_alone() -> None:
    body = complete([97, 98], echo=True, max_tokens=0, logprobs=0, return_token_ids=True)
    [choice] = body["choices"]
    assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == ("ab", [], "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0]
    assert (body["usage"]["completion_tokens"], body["usage"]["total_tokens"]) == (0, 2)


def test_prompt_logprobs_are_told_as_vllm_tells_them() -> None:
    [choice] = complete([97, 98], prompt_logprobs=1, max_tokens=1)["choices"]
    assert choice["logprobs"] is None
    assert choice["prompt_logprobs"] == [
        None,
        {
            "98": {"logprob": -1.0, "rank": 1, "decoded_token": "b"},
            "99": {"logprob": -0.125, "rank": 1, "decoded_token": "c"},
        },
    ]


def test_every_choice_has_the_logprobs_of_its_own_prompt() -> None:
    choices = complete(["ab", "xyz"], n=2, echo=True, max_tokens=1, logprobs=0)["choices"]
    assert [choice["text"] for choice in choices] == ["abHi", "abHi", "xyzHi", "xyzHi"]
    assert [choice["logprobs"]["token_logprobs"] for choice in choices] == [[None, -1.0, -0.5]] * 2 + [
        [None, -1.0, -2.0, -0.5]
    ] * 2


def test_a_chat_answer_has_its_prompts_logprobs_beside_its_choices() -> None:
    async def test(stage: Stage) -> None:
        body = (await stage.chat(prompt_logprobs=0, max_tokens=1)).json()
        assert [len(entry or ()) for entry in body["prompt_logprobs"]] == [0] + [1] * 18
        assert body["choices"][0]["logprobs"] is None
        both = (await stage.chat(prompt_logprobs=0, max_tokens=1, logprobs=True)).json()
        assert both["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5

    on_stage(test, Scorer(score))


@pytest.mark.parametrize("wanted", [{"echo": True, "logprobs": 1}, {"prompt_logprobs": 1}])
def test_an_engine_that_scores_no_prompts_is_not_asked_to(wanted: dict[str, Any]) -> None:
    error = refused({"model": MODEL, "prompt": "abc", **wanted}, "/v1/completions", Script(score))
    assert (error["code"], error["param"]) == ("unsupported_parameter", next(iter(wanted)))


@pytest.mark.parametrize("wanted", [{"echo": True}, {"prompt_logprobs": 1}])
def test_a_prompt_in_the_answer_is_not_streamed(wanted: dict[str, Any]) -> None:
    error = refused({"model": MODEL, "prompt": "abc", "stream": True, **wanted}, "/v1/completions")
    assert error["param"] == next(iter(wanted))


def test_no_tokens_are_asked_for_with_an_echo_alone() -> None:
    error = refused({"model": MODEL, "prompt": "abc", "max_tokens": 0}, "/v1/completions")
    assert (error["code"], error["param"]) == ("invalid_request", "max_tokens")


def test_a_conversation_is_not_echoed() -> None:
    assert refused(chat_body(echo=True), "/v1/chat/completions")["code"] == "unsupported_parameter"


def test_more_log_probabilities_than_an_answer_may_have_are_refused_before_anything_runs() -> None:
    tokens = CONTEXT - 1
    prompts = SCORED_VALUES_MAX // (tokens * 21) + 1

    async def test(stage: Stage) -> None:
        prompt = [[97] * tokens] * prompts
        answer = await stage.complete(prompt, prompt_logprobs=20, max_tokens=1)
        assert (answer.status, answer.error["param"]) == (400, "prompt_logprobs")
        assert not stage.script.started

    on_stage(test, Scorer(score))
