"""Settings as vLLM's arguments, without vLLM; and what is said of a vLLM that died."""

from pathlib import Path
from typing import Any

import pytest

from tandem.core.errors import TandemError
from tandem.core.messages import Adapter
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.adapters import open_adapters
from tandem.engine.vllm.arguments import (
    PROCESSORS,
    PROCESSORS_V2,
    REPORT_VARIABLE,
    AdapterDirectory,
    EngineArguments,
    Sockets,
    engine_arguments,
    numbers_identity,
)
from tandem.engine.vllm.failure import death_sentence, start_error
from tandem.engine.vllm.process_reports import progress_of, shard_progress
from tandem.engine.vllm.settings import METHODS, Parallelism, Speculative, VllmSettings


def arguments(settings: VllmSettings) -> EngineArguments:
    return engine_arguments(settings, SchedulerSettings(), Path("/m"), (), Sockets(Path("/s")), None)


def test_a_cpu_engine_is_eager_and_of_one_process() -> None:
    made = arguments(VllmSettings(context_tokens=512, extra={"max_logprobs": "7"}))
    assert made.keywords["enforce_eager"] is True
    assert "block_size" not in made.keywords
    assert made.keywords["max_model_len"] == 512
    assert made.keywords["logits_processors"] == list(PROCESSORS)
    assert made.keywords["max_logprobs"] == 7
    assert "kv_transfer_config" not in made.keywords
    assert made.environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert made.environment["TORCH_COMPILE_DISABLE"] == "1"
    assert made.environment[REPORT_VARIABLE] == "/s/tell"


def test_ranks_and_a_gpu() -> None:
    made = arguments(VllmSettings(device="cuda", parallelism=Parallelism(2, 2), kv_memory_bytes=5))
    assert (made.keywords["tensor_parallel_size"], made.keywords["pipeline_parallel_size"]) == (2, 2)
    assert made.keywords["distributed_executor_backend"] == "mp"
    assert made.keywords["kv_cache_memory_bytes"] == 5
    assert not {"VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_CPU_KVCACHE_SPACE"} & set(made.environment)
    assert made.keywords["logits_processors"] == list(PROCESSORS_V2)
    assert "async_scheduling" not in made.keywords


def test_speculation_takes_the_place_of_the_processors() -> None:
    made = arguments(VllmSettings(speculative=Speculative("ngram", tokens=3)))
    assert "logits_processors" not in made.keywords
    assert made.keywords["speculative_config"] == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 4,
    }


@pytest.mark.parametrize("method", METHODS)
def test_on_a_card_speculation_goes_with_the_processors(method: str) -> None:
    needs = method in ("draft_model", "eagle", "eagle3")
    given = Speculative(method, "/drafts" if needs else None, 3)
    made = arguments(VllmSettings(device="cuda", speculative=given)).keywords
    assert made["logits_processors"] == list(PROCESSORS_V2)
    told = made["speculative_config"]
    assert isinstance(told, dict)
    # Its other lookup would switch asynchronous scheduling off.
    assert told["method"] == ("ngram_gpu" if method == "ngram" else method)
    assert (told["num_speculative_tokens"], told.get("model")) == (3, given.model)
    assert given.keeps_kv == (method != "ngram")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"method": "guess"}, "method"),
        ({"tokens": -1}, "tokens"),
        ({"lookup": 0}, "lookup"),
        ({"method": "eagle", "tokens": 2}, "model"),
        ({"model": "/drafts", "tokens": 2}, "model"),
    ],
)
def test_bad_speculation_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(TandemError) as error:
        Speculative(**fields)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("extra", "count", "slots"), [({}, 1, 1), ({}, 3, 3), ({}, 9, 4), ({"max_loras": "1"}, 3, 1)]
)
def test_adapters_share_a_few_slots(extra: dict[str, str], count: int, slots: int) -> None:
    adapters = tuple(
        AdapterDirectory(Adapter(f"a{number}", "content"), Path("/a"), number) for number in range(1, count + 1)
    )
    settings, sockets = VllmSettings(extra=extra), Sockets(Path("/s"))
    made = engine_arguments(settings, SchedulerSettings(), Path("/m"), adapters, sockets, None)
    assert (made.keywords["enable_lora"], made.keywords["max_loras"]) == (True, slots)


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        (VllmSettings(parallelism=Parallelism(tensor=2, expert=True)), "parallelism.expert"),
        (VllmSettings(parallelism=Parallelism(pipeline=2)), "parallelism.pipeline"),
        (VllmSettings(device="cuda", parallelism=Parallelism(expert=True)), "parallelism.expert"),
        (VllmSettings(extra={"tensor_parallel_size": "2"}), "extra.tensor_parallel_size"),
        (VllmSettings(extra={"max_wonders": "2"}), "extra.max_wonders"),
        (VllmSettings(extra={"max_logprobs": "many"}), "extra.max_logprobs"),
        (VllmSettings(extra={"hf_overrides": "[1]"}), "extra.hf_overrides"),
    ],
)
def test_what_cannot_work_is_refused_by_name(settings: VllmSettings, param: str) -> None:
    with pytest.raises(TandemError) as error:
        arguments(settings)
    assert (error.value.code, error.value.param) == ("bad_setting", param)


def test_several_engines_are_made_but_do_not_hand_over_kv() -> None:
    settings = VllmSettings(device="cuda", parallelism=Parallelism(tensor=2, data=4, expert=True))
    made = arguments(settings).keywords
    assert (made["data_parallel_size"], made["enable_expert_parallel"]) == (4, True)
    with pytest.raises(TandemError, match="4 times the replicas") as error:
        engine_arguments(settings, SchedulerSettings(), Path("/m"), (), Sockets(Path("/s")), {"kv_role": "kv_both"})
    assert error.value.param == "parallelism.data"


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"dtype": "int3"}, "dtype"), ({"block_tokens": 48}, "block_tokens"), ({"device": "tpu"}, "device")],
)
def test_bad_settings_are_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(TandemError) as error:
        VllmSettings(**fields)  # type: ignore[arg-type]
    assert error.value.param == param


def test_what_changes_the_numbers_is_a_part_of_the_identity() -> None:
    assert numbers_identity(VllmSettings(extra={"max_logprobs": "3"})) == ""
    one = numbers_identity(VllmSettings(quantization="fp8"))
    other = numbers_identity(VllmSettings(extra={"hf_overrides": "{}"}))
    assert len({one, other, ""}) == 3


def test_adapters_are_read_from_directories_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match="no directory"):
        open_adapters((str(tmp_path / "none"),), 16)
    (tmp_path / "adapter_config.json").write_text('{"r": 64}')
    with pytest.raises(TandemError, match="rank 64"):
        open_adapters((str(tmp_path),), 16)
    with pytest.raises(TandemError, match=r"adapter_model\.safetensors is missing"):
        open_adapters((f"polite={tmp_path}",), 64)


def test_deaths_in_one_sentence() -> None:
    assert "SIGKILL" in death_sentence((), (-9,))
    assert "status 3" in death_sentence((), (3,))
    words = ("EngineCore encountered a fatal error.", "RuntimeError: no\nluck", "EngineDeadError: gone")
    assert death_sentence(words, (1,)) == "vLLM failed: RuntimeError: no luck"
    memory = death_sentence(("torch.OutOfMemoryError: CUDA out of memory. Tried",), (1,))
    assert "less KV memory" in memory
    assert start_error(ValueError("bad x"), (), ()).code == "bad_setting"
    assert start_error(RuntimeError("x"), ("OSError: no such file",), ()).message.endswith("no such file")


def test_progress_comes_from_log_lines_and_files() -> None:
    found = progress_of("Loading weights took 3.2 seconds")
    assert found is not None
    assert 0.5 < found.fraction < 1
    assert progress_of("something else") is None
    assert shard_progress(1, 2).fraction < shard_progress(2, 2).fraction <= found.fraction
