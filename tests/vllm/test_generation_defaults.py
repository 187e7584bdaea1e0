"""Tandem takes from a model's files what vLLM takes from them for requests that leave it out."""

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.config.model import ModelConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.sampling_params import SamplingParams

from router.api.openai import parameters
from router.api.openai.defaults import defaults_of
from router.api.openai.schema import ChatRequest
from tandem.core.request import Sampling
from tandem.engine.vllm.model import open_served
from tandem.engine.vllm.settings import VllmSettings
from tandem.model.directory import ModelDirectory, open_model

FILES = 200
CONTEXT, PROMPT = 4096, 100
NAMES = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


class Files:
    """What vLLM's `ModelConfig` asks of itself to read a generation config."""

    def __init__(self, model: Path, setting: str) -> None:
        self.given = SimpleNamespace(
            generation_config=setting,
            override_generation_config={},
            model=str(model),
            hf_config_path=None,
            _hf_config_revision=None,
            revision=None,
            code_revision=None,
            config_format="auto",
            hf_token=None,
            trust_remote_code=False,
            try_get_generation_config=lambda: ModelConfig.try_get_generation_config(self.given),  # type: ignore[arg-type]
        )

    def defaults(self) -> dict[str, Any]:
        return ModelConfig.get_diff_sampling_param(self.given)  # type: ignore[arg-type]

    def end_tokens(self) -> set[int]:
        """Those that vLLM adds to a request's own."""
        sampling = SamplingParams()
        sampling.update_from_generation_config(self.given.try_get_generation_config())
        return set(sampling.all_stop_token_ids)


def drawn(of: random.Random) -> dict[str, Any]:
    """A file as checkpoints have them: any of what counts, null for some, and what does not count."""
    values: dict[str, Any] = {
        "temperature": of.choice([0.0, 0.6, 1.0, 1.5, 0, 1]),
        "top_p": of.choice([0.1, 0.8, 0.95, 1.0, 1]),
        "top_k": of.choice([-1, 0, 1, 20, 50]),
        "min_p": of.choice([0.0, 0.05, 1.0]),
        "presence_penalty": of.choice([-2.0, 0.0, 1.5]),
        "frequency_penalty": of.choice([0.0, 0.5]),
        "repetition_penalty": of.choice([1.0, 1.05, 0.9]),
        "max_new_tokens": of.choice([1, 256, 2048, 100_000]),
        "eos_token_id": of.choice([7, [7], [7, 11, 13]]),
        "do_sample": of.choice([True, False]),
        "max_length": of.choice([20, 4096]),
        "bos_token_id": 5,
        "transformers_version": "4.45.0",
    }
    kept = {key: value for key, value in values.items() if of.random() < 0.6}
    return {key: None if of.random() < 0.1 else value for key, value in kept.items()}


def copied(place: Path, file: dict[str, Any] | None) -> ModelDirectory:
    """The demo model with this file instead of its own."""
    place.mkdir()
    for path in open_model("demo").path.iterdir():
        if path.name != "generation_config.json":
            (place / path.name).symlink_to(path)
    if file is not None:
        (place / "generation_config.json").write_text(json.dumps(file))
    return open_model(str(place))


def asked(of: random.Random) -> dict[str, Any]:
    said = {"temperature": 0.9, "top_p": 0.7, "top_k": 3, "min_p": 0.2, "repetition_penalty": 1.3, "max_tokens": 17}
    return {key: value for key, value in said.items() if of.random() < 0.3}


def test_many_files_give_requests_what_vllm_gives_them(tmp_path: Path) -> None:
    of = random.Random(12)
    for number in range(FILES):
        file, setting = drawn(of), of.choice(["auto", "auto", "vllm"])
        here = copied(tmp_path / str(number), file)
        theirs = Files(here.path, setting).defaults()
        ours = defaults_of(here.generation, setting)
        said = {"model": "m", "messages": [{"role": "user", "content": "x"}], **asked(of)}
        right = ChatCompletionRequest(**said).to_sampling_params(CONTEXT, theirs)
        request = ChatRequest(**said)
        found = parameters.sampling(request, 1000, ours)
        assert shown(found) == {**{name: getattr(right, name) for name in NAMES}, "top_k": max(right.top_k, 0)}, file
        most = said.get("max_tokens") or theirs.get("max_tokens") or CONTEXT
        assert parameters.stopping(request, PROMPT, CONTEXT, 1000, ours).max_tokens == min(most, CONTEXT - PROMPT), (
            file
        )


def shown(found: Sampling) -> dict[str, float]:
    """As vLLM's parameters are after it has settled them: greedy sampling leaves cuts out."""
    greedy = found.temperature == 0
    values = {name: getattr(found, name) for name in (*NAMES, "top_k")}
    return {**values, **({"top_p": 1.0, "top_k": 0, "min_p": 0.0} if greedy else {})}


def test_a_model_without_the_file_has_no_defaults_in_vllm_either(tmp_path: Path) -> None:
    here = copied(tmp_path / "none", None)
    assert Files(here.path, "auto").defaults() == defaults_of(here.generation).stated() == {}


def test_workers_stop_at_every_token_at_which_vllm_stops(tmp_path: Path) -> None:
    of = random.Random(7)
    for number in range(20):
        here = copied(tmp_path / str(number), drawn(of))
        served = open_served(VllmSettings(model=str(here.path)))
        theirs = Files(here.path, "auto").end_tokens() | {here.tokenizer_end()}
        assert theirs <= set(served.eos_token_ids)
