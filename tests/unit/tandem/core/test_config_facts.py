"""What is read of any model's configuration, over a table of models as they are published."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.chat_templates.templates import InlineTemplates
from router.discovery.loading import load_text_side
from router.discovery.model_service import TextSource
from tandem.apps.cli.up_options import parse
from tandem.core.config_facts import CacheKinds, Windows, cache_kinds, cannot_exchange, facts_of
from tandem.core.errors import TandemError
from tandem.core.quantization import weight_type
from tandem.core.shape_reading import shape_of
from tandem.core.sizing import ITEM_BYTES
from tandem.model.directory import open_model
from tandem.process.system import SystemClock
from tandem.spec.model import Model
from tests.worlds.real_configs import CASES, Case


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


def test_context_vocabulary_and_end_tokens(case: Case) -> None:
    facts = facts_of(case.config)
    assert (facts.context_tokens, facts.vocab_size, facts.eos_token_ids) == (case.context, case.vocabulary, case.eos)


def test_kinds_of_cache(case: Case) -> None:
    assert cache_kinds(case.config, case.context) == CacheKinds(case.other, case.windows)


def test_a_window_that_is_not_smaller_than_the_context_is_none() -> None:
    mistral = next(case.config for case in CASES if case.name == "Mistral-7B-v0.1")
    assert cache_kinds(mistral, 4097).windows is Windows.ALL
    assert cache_kinds(mistral, 4096).windows is Windows.NONE


def test_windows_that_begin_after_the_last_layer_are_none() -> None:
    qwen = {"sliding_window": 4096, "use_sliding_window": True, "num_hidden_layers": 28}
    assert cache_kinds({**qwen, "max_window_layers": 28}).windows is Windows.NONE
    assert cache_kinds({**qwen, "max_window_layers": 27}).windows is Windows.ALL


@pytest.mark.parametrize(
    ("config", "other"),
    [
        (
            {"layer_types": ["indexed_attention"] * 2, "index_topk": 2048, "kv_lora_rank": 512},
            "an index of its latents",
        ),
        ({"layer_types": ["indexed_attention"] * 2, "kv_lora_rank": 512}, "an index of its latents"),
        ({"layer_types": ["qwen_sparse_attention", "full_attention"]}, "an index of its keys"),
        ({"layer_types": ["compressed_sparse_attention"], "index_topk": 512}, "compressed latents"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layers of recurrent state"),
        ({"layer_types": ["conv", "novel"]}, "layers of recurrent state"),
        ({"layer_types": ["full_attention", "novel"]}, "layers of the unknown layer type 'novel'"),
        ({"layers_block_type": ["attention", "mamba"]}, "layers of recurrent state"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ""),
    ],
)
def test_what_layers_keep_is_said_by_their_type(config: dict[str, Any], other: str) -> None:
    assert cache_kinds(config).other == other
    assert other in cannot_exchange(cache_kinds(config))


@given(st.text(min_size=1, max_size=12))
def test_a_layer_type_that_nobody_knows_is_named_and_is_no_recurrent_state(kind: str) -> None:
    found = cache_kinds({"layer_types": ["full_attention", f"{kind} of tomorrow"]}).other
    assert found == f"layers of the unknown layer type {f'{kind} of tomorrow'!r}"


def test_types_of_weights(case: Case) -> None:
    found = weight_type(case.config)
    assert found == case.weights
    assert found is None or found in ITEM_BYTES


def test_parameters_are_those_that_are_published(case: Case) -> None:
    if case.billions is None:
        with pytest.raises(TandemError) as refused:
            shape_of(case.config)
        assert refused.value.code == "bad_model"
    else:
        assert shape_of(case.config).parameters / 1e9 == pytest.approx(case.billions, rel=0.02)


def test_gemma_keeps_a_window_of_most_layers() -> None:
    gemma = shape_of(next(case.config for case in CASES if case.name == "Gemma-3-27B"))
    assert (gemma.window, gemma.windowed_layers) == (1024, 52)
    assert gemma.sequence_tokens(1024) == 1024
    assert gemma.sequence_tokens(131_072) == pytest.approx((10 * 131_072 + 52 * 1024) / 62)
    assert gemma.with_whole_cache().sequence_tokens(131_072) == 131_072


@given(st.dictionaries(st.text(max_size=12), st.none() | st.booleans() | st.integers() | st.text(max_size=5)))
def test_no_value_of_any_key_stops_reading(values: dict[str, Any]) -> None:
    keys = ("vocab_size", "max_position_embeddings", "eos_token_id", "sliding_window", "layer_types", "rope_scaling")
    odd = dict(zip(keys, values.values(), strict=False))
    for config in ({**values, **odd}, {"text_config": odd}, {"text_config": values, **odd}):
        facts_of(config, config)
        cache_kinds(config)
        weight_type(config)


def test_generation_config_goes_first_among_end_tokens() -> None:
    assert facts_of({"eos_token_id": 2, "vocab_size": 3}, {"eos_token_id": [9, 2]}).eos_token_ids == (9, 2)


# -- Directories --------------------------------------------------------------------------------------------------


def write(case: Case, place: Path) -> Path:
    """A directory with the model's configuration and the demo model's tokenizer."""
    place.mkdir()
    demo = open_model("demo").path
    (place / "config.json").write_text(json.dumps(case.config))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (place / name).write_bytes((demo / name).read_bytes())
    return place


def test_the_router_reads_the_text_side_of_any_model(case: Case, tmp_path: Path) -> None:
    place = write(case, tmp_path / "model")
    source = TextSource("a/b", Model(source=str(place)), simulated=False, settled=True)
    side = load_text_side("b", source, None, None, InlineTemplates(SystemClock()))
    assert side.context_tokens == case.context
    assert side.renderer.text("hello")


def test_the_embedded_engine_stays_strict(case: Case, tmp_path: Path) -> None:
    model = open_model(str(write(case, tmp_path / "model")))
    with pytest.raises(TandemError) as refused:
        _ = model.config
    assert refused.value.code == "bad_model"


def test_what_cannot_be_handed_over_is_refused_before_anything_starts(case: Case, tmp_path: Path) -> None:
    flags = ["--engine", "vllm", "--model", str(write(case, tmp_path / "model"))]
    assert parse([*flags, "--prefill", "0"]).service.spec.pools[0].role == "unified"
    if why := cannot_exchange(CacheKinds(case.other, case.windows)):
        with pytest.raises(TandemError, match=f"{why}; use unified workers"):
            parse(flags)
    else:
        assert len(parse(flags).service.spec.pools) == 2


@pytest.mark.parametrize("name", ["tokenizer.model", "tekken.json", "vocab.json"])
def test_a_tokenizer_in_another_format_is_named_with_the_cure(name: str, tmp_path: Path) -> None:
    place = write(CASES[0], tmp_path / "model")
    (place / "tokenizer.json").unlink()
    (place / name).write_text("{}")
    with pytest.raises(TandemError, match=rf"tokenizer\.json is missing; {name} is another format.*AutoTokenizer"):
        _ = open_model(str(place)).tokenizer_path


SCRIPT = """
import sys
import router.__main__, control_plane.__main__
from pathlib import Path
from control_plane.operator.model_facts import facts_of
from router.discovery.loading import load_text_side
from router.discovery.model_service import TextSource
from router.api.chat_templates.templates import InlineTemplates
from tandem.process.system import SystemClock
from tandem.spec.model import Model
for place in sys.argv[1:]:
    source = TextSource("a/b", Model(source=place), simulated=False, settled=True)
    assert load_text_side("b", source, None, None, InlineTemplates(SystemClock())).renderer.text("hello")
    import json
    facts_of(json.loads((Path(place) / "config.json").read_text()))
heavy = sorted(name for name in ("torch", "vllm", "transformers", "triton") if name in sys.modules)
print(f"heavy: {heavy}")
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="it is to be left out where it is there")
def test_router_and_control_plane_read_models_without_torch(tmp_path: Path) -> None:
    places = [str(write(case, tmp_path / str(number))) for number, case in enumerate(CASES)]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *places], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().splitlines()[-1] == "heavy: []"
