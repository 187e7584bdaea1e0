"""Presets take as long as the machines they stand for, within the error that is stated for them."""

import csv
from pathlib import Path

import pytest

from tandem.core.errors import TandemError
from tandem.engine.scheduler.step_budget import StepLoad
from tandem.engine.simulated.presets import PRESETS, SimulatedSettings, preset

# (preset, prompt tokens, answer tokens, batch, measured ms per output token), rows of aiconfigurator's
# silicon_sample.csv: batches in which new prompts are computed beside running sequences.
MIXED = [
    ("h100-llama-3.1-8b", 1024, 128, 8, 7.94),
    ("h100-llama-3.1-8b", 4096, 128, 8, 12.40),
    ("h100-llama-3.1-8b", 2048, 512, 16, 9.70),
    ("h100-llama-3.1-70b-tp4", 1024, 1024, 16, 13.19),
    ("h100-llama-3.1-70b-tp4", 8192, 1024, 64, 53.49),
    ("h100-llama-3.1-70b-tp4", 1024, 8192, 32, 18.39),
    ("h200-llama-3.1-70b-tp4", 1024, 8192, 32, 15.84),
    ("h200-llama-3.1-70b-tp4", 8192, 1024, 4, 11.27),
    ("h200-llama-3.1-70b-tp4", 1024, 1024, 64, 16.07),
    ("h100-qwen3-32b-tp2", 1024, 128, 128, 80.26),
    ("h100-qwen3-32b-tp2", 1024, 1024, 8, 15.90),
]

# (preset, prompt tokens, answer tokens, batch, prompt ms, token ms), medians of rows of Splitwise's perf_model.csv.
APART = [
    ("h100-llama-2-70b-tp8", 512, 128, 1, 53.4, 29.8),
    ("h100-llama-2-70b-tp8", 512, 128, 64, 2936.3, 50.2),
    ("h100-llama-2-70b-tp8", 2048, 128, 1, 136.8, 31.0),
    ("h100-llama-2-70b-tp8", 8192, 128, 1, 844.9, 31.4),
    ("a100-llama-2-70b-tp8", 1024, 128, 1, 154.5, 45.0),
    ("a100-llama-2-70b-tp8", 512, 128, 64, 7554.0, 71.6),
    ("a100-llama-2-70b-tp8", 8192, 128, 1, 1549.8, 46.5),
]

# (preset, tokens of a chunk, ms of its GEMMs and all-reduces, ms of a step of 8 sequences without attention): sums of
# aiconfigurator's tables over the layers.
TABLES = [
    ("h100-llama-3.1-70b-tp4", 4096, 180.6, 9.2),
    ("h100-llama-3.1-70b-bf16-tp4", 4096, 233.7, 14.3),
    ("a800-llama-3-70b-tp8", 8192, 801.8, 17.3),
]

ATTENTION = Path(__file__).parents[4] / "corpus" / "context_attention.csv"


def attention_ms() -> dict[str, dict[int, float]]:
    """Milliseconds of attention by preset and prompt tokens, as measured."""
    lines = [line for line in ATTENTION.read_text().splitlines() if not line.startswith("#")]
    found: dict[str, dict[int, float]] = {}
    for row in csv.DictReader(lines):
        found.setdefault(row["preset"], {})[int(row["prompt_tokens"])] = float(row["attention_ms"])
    return found


def prompts(count: int, tokens: float) -> StepLoad:
    """A step that computes `count` prompts and nothing else; attention of causal prompts is half of a square."""
    return StepLoad(0, int(count * tokens), count * tokens * tokens / 2)


def decoding(batch: int, prompt: int, answer: int) -> StepLoad:
    """An average step that only decodes."""
    return StepLoad(batch, 0, 0.0, decode_context=batch * (prompt + answer / 2))


@pytest.mark.parametrize(("name", "prompt", "answer", "batch", "measured_ms"), MIXED)
def test_mixed_steps_are_within_twelve_percent(
    name: str, prompt: int, answer: int, batch: int, measured_ms: float
) -> None:
    # Every sequence brings its whole prompt once per answer: so many prompt tokens come with each step.
    tokens = batch * prompt / answer
    load = StepLoad(batch, round(tokens), tokens * prompt / 2, decode_context=batch * (prompt + answer / 2))
    assert preset(name).model.step_s(load) * 1e3 == pytest.approx(measured_ms, rel=0.12)


@pytest.mark.parametrize(("name", "prompt", "answer", "batch", "prompt_ms", "token_ms"), APART)
def test_prompts_are_within_forty_percent_and_tokens_within_seven(
    name: str, prompt: int, answer: int, batch: int, prompt_ms: float, token_ms: float
) -> None:
    model = preset(name).model
    assert model.step_s(decoding(batch, prompt, answer)) * 1e3 == pytest.approx(token_ms, rel=0.07)
    assert model.step_s(prompts(batch, prompt)) * 1e3 == pytest.approx(prompt_ms, rel=0.4)


@pytest.mark.parametrize(("name", "tokens", "chunk_ms", "step_ms"), TABLES)
def test_presets_without_rows_are_as_far_from_the_kernels_tables_as_those_with_rows(
    name: str, tokens: int, chunk_ms: float, step_ms: float
) -> None:
    found = preset(name)
    kernels_s = found.model.token_s - found.attention_token_s
    assert tokens * kernels_s * 1e3 == pytest.approx(chunk_ms, rel=0.08)
    assert found.model.base_s * 1e3 == pytest.approx(step_ms, rel=0.2)


@pytest.mark.parametrize("tokens", [2048, 4096, 8192, 12288, 16384])
@pytest.mark.parametrize("name", attention_ms())
def test_attention_is_the_tables(name: str, tokens: int) -> None:
    found = preset(name)
    assert found.attention_s(tokens) * 1e3 == pytest.approx(attention_ms()[name][tokens], rel=0.1)
    assert 0 < found.attention_token_s < 0.05 * found.model.token_s


@pytest.mark.parametrize("name", attention_ms())
def test_chunks_of_512_behind_a_long_cached_prompt_take_what_the_tables_grow_by(name: str) -> None:
    # The tables have no cached prompts: what 4,096 tokens add behind 12,288 is the sum of their eight chunks.
    found, measured = preset(name), attention_ms()[name]
    chunks = sum(found.attention_s(512, cached) for cached in range(12288, 16384, 512))
    assert chunks * 1e3 == pytest.approx(measured[16384] - measured[12288], rel=0.1)
    # Behind 16,384 a chunk attends to as much more as the positions before it are more than the eight chunks' mean.
    wanted_ms = (measured[16384] - measured[12288]) / 8 * (16384 + 256) / (12288 + 2048)
    assert found.attention_s(512, 16384) * 1e3 == pytest.approx(wanted_ms, rel=0.2)


def test_attention_is_part_of_the_step() -> None:
    for name, each in PRESETS.items():
        chunk = StepLoad(0, 512, 512 * 16384 + 512 * 512 / 2)
        alone = StepLoad(0, 512, 0.0)
        beyond = each.model.step_s(chunk) - each.model.step_s(alone)
        assert each.attention_s(512, 16384) == pytest.approx(beyond + 512 * each.attention_token_s), name


@pytest.mark.parametrize("tokens", [64, 512, 2000])
def test_opt_is_distserves_formula(tokens: int) -> None:
    model = preset("a100-opt-13b").model
    wanted_ms = 22.052 + 0.14051 * tokens + 8.0766e-6 * tokens**2
    assert model.step_s(prompts(1, tokens)) * 1e3 == pytest.approx(wanted_ms, rel=0.07)
    wanted_ms = 23.475 + 0.00059293 * 16 * tokens + 0.060727 * 16
    assert model.step_s(decoding(16, tokens, 0)) * 1e3 == pytest.approx(wanted_ms, rel=0.01)


def test_long_prompts_cost_more_than_their_length() -> None:
    for name, each in PRESETS.items():
        short, long = each.model.step_s(prompts(1, 1000)), each.model.step_s(prompts(1, 8000))
        assert long - each.model.base_s > 8 * (short - each.model.base_s), name


def test_a_worker_takes_a_preset_and_keeps_what_is_its_own() -> None:
    model = SimulatedSettings(preset="h100-llama-3.1-8b", name="mine", eos_rate=0.5).resolved
    assert (model.name, model.eos_rate) == ("mine", 0.5)
    assert model.base_s == preset("h100-llama-3.1-8b").model.base_s
    assert SimulatedSettings().resolved.base_s == 0.004


def test_an_unknown_preset_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(TandemError, match=r"h100-llama-3\.1-8b"):
        SimulatedSettings(preset="b200")


def test_links_carry_as_many_tokens_as_in_reality() -> None:
    one = preset("h100-llama-3.1-8b")
    tokens_per_s = 40e9 / one.kv_token_bytes
    block = one.model.layout
    assert one.simulated_rate(40e9) == pytest.approx(tokens_per_s * block.block_bytes / block.block_tokens)
