"""What a request leaves out is what the model's generation_config.json says, and nothing that it says is touched."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.chat_templates.render import FileRenderer
from router.api.chat_templates.templates import InlineTemplates
from router.api.model_listing import model_object
from router.api.openai import parameters
from router.api.openai.defaults import NEUTRAL, Defaults, defaults_of
from router.api.openai.schema import ChatRequest, CompletionRequest
from router.generation import ServedModel
from router.process_settings import ProcessSettings
from tandem.core.errors import TandemError
from tandem.core.request import Sampling
from tandem.core.slo import Slo
from tandem.model.directory import open_model
from tandem.process.system import SystemClock

VOCABULARY = 1000
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.01, 1),
    "top_k": st.integers(1, 100),
    "min_p": st.floats(0, 1),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.1, 2),
}
DRAWING = st.fixed_dictionaries({}, optional=VALUES)
OTHERS = st.dictionaries(
    st.sampled_from(["do_sample", "eos_token_id", "max_length", "pad_token_id"]), st.integers(0, 9)
)


def chat(**said: object) -> ChatRequest:
    return msgspec.convert({"model": "m", "messages": [{"role": "user", "content": "x"}], **said}, ChatRequest)


def completion(**said: object) -> CompletionRequest:
    return msgspec.convert({"model": "m", "prompt": "x", **said}, CompletionRequest)


@given(DRAWING, DRAWING, OTHERS, st.booleans(), st.booleans())
def test_what_a_request_says_wins_and_the_rest_is_as_the_file_says(
    said: dict[str, Any], stated: dict[str, Any], others: dict[str, Any], seeded: bool, talks: bool
) -> None:
    defaults = defaults_of({**others, **stated})
    make = chat if talks else completion
    found = parameters.sampling(make(**said, **({"seed": 1} if seeded else {})), VOCABULARY, defaults)
    assert found == Sampling(**{**stated, **said}, seeded=seeded)


@given(DRAWING, st.integers(1, 5000), DRAWING)
def test_with_vllms_neutral_values_the_file_is_left_out(
    stated: dict[str, Any], most: int, said: dict[str, Any]
) -> None:
    defaults = defaults_of({**stated, "max_new_tokens": most}, "vllm")
    assert defaults is NEUTRAL
    assert parameters.sampling(chat(**said), VOCABULARY, defaults) == parameters.sampling(chat(**said), VOCABULARY)


@given(st.none() | st.integers(1, 300), st.none() | st.integers(1, 100), st.integers(1, 99))
def test_max_new_tokens_bounds_answers_that_are_not_bounded_otherwise(
    stated: int | None, asked: int | None, prompt_tokens: int
) -> None:
    context = 200
    defaults = defaults_of({"max_new_tokens": stated})
    found = parameters.stopping(chat(max_tokens=asked), prompt_tokens, context, 1000, defaults).max_tokens
    room = context - prompt_tokens
    assert found == (asked if asked is not None else min(room, stated or room))


def test_what_the_published_files_of_some_models_say() -> None:
    files = {
        "qwen": {"do_sample": True, "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
        "llama": {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [128001, 128008, 128009]},
        "gemma": {"cache_implementation": "hybrid", "top_k": 64, "top_p": 0.95, "eos_token_id": [1, 106]},
        "plain": {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2},
        "greedy": {"do_sample": False, "temperature": 0.0, "top_k": -1, "top_p": 0, "max_new_tokens": 2048},
    }
    assert {name: defaults_of(file).stated() for name, file in files.items()} == {
        "qwen": {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
        "llama": {"temperature": 0.6, "top_p": 0.9},
        "gemma": {"top_p": 0.95, "top_k": 64},
        "plain": {},
        "greedy": {"temperature": 0.0, "top_p": 1e-06, "max_tokens": 2048},
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "0.7"),
        ("temperature", True),
        ("temperature", float("inf")),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 5.5),
        ("min_p", -1),
        ("repetition_penalty", 0),
        ("presence_penalty", 3),
        ("max_new_tokens", 0),
        ("max_new_tokens", [1]),
    ],
)
def test_a_value_that_no_request_could_have_is_said_with_what_to_do(key: str, value: object) -> None:
    with pytest.raises(TandemError, match=f"generation_config.json: {key} = .*generationConfig: vllm") as raised:
        defaults_of({key: value})
    assert (raised.value.code, raised.value.param) == ("bad_model", key)
    assert defaults_of({key: value}, "vllm") is NEUTRAL


def test_keys_that_are_null_are_not_stated() -> None:
    assert defaults_of({"temperature": None, "top_k": None, "max_new_tokens": None}) is NEUTRAL


def test_a_renderer_has_the_defaults_of_its_models_own_file(tmp_path: Path) -> None:
    model = open_model("demo")
    for file in model.path.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "max_new_tokens": 9}))
    here = open_model(str(tmp_path))
    templates = InlineTemplates(SystemClock())
    auto, off = (
        FileRenderer(here, templates),
        FileRenderer(here, templates, generation_config="vllm"),
    )
    assert auto.defaults.stated() == {"temperature": 0.25, "max_tokens": 9}
    assert off.defaults == NEUTRAL


def test_v1_models_tells_defaults_that_are_not_neutral() -> None:
    model = ServedModel("m", 100, (1,))
    assert "generation_defaults" not in model_object("m", model, NEUTRAL)
    listed = model_object("m", model, defaults_of({"top_k": 3}))
    assert listed["generation_defaults"] == {"top_k": 3}


def test_v1_models_tells_what_the_service_is_to_hold() -> None:
    assert "slo" not in model_object("m", ServedModel("m", 100, (1,)), NEUTRAL)
    listed = model_object("m", ServedModel("m", 100, (1,), slo=Slo(0.8, itl_s=0.05)), NEUTRAL)
    assert listed["slo"] == {"ttft_ms": 800, "itl_ms": 50}


def test_a_router_refuses_a_setting_that_there_is_not() -> None:
    with pytest.raises(TandemError, match="generation_config = 'mine': expected one of auto, vllm"):
        ProcessSettings(workers=("unix:/x",), generation_config="mine")


def test_defaults_differ_only_in_the_seed() -> None:
    found = defaults_of({"temperature": 0.5})
    assert found == Defaults(Sampling(temperature=0.5, seeded=False), Sampling(temperature=0.5), None)
