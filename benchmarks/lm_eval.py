"""The lm-evaluation-harness, unmodified, asks one unified vLLM worker behind the router and vLLM's own server.

Three tiny tasks of made-up sentences use what the harness needs of a server: log-likelihoods of given answers (`echo`
with `logprobs`), rolling log-likelihoods of texts, and generation. The two servers have to agree on every sample:
log-likelihoods within `--tolerance`, the greedy flag of every answer, and every generated text. `make lm-eval` makes
the harness's environment.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tandem.models
from benchmarks.rounds import table
from benchmarks.vllm_overhead import environment, tandem_flags, vllm_server
from tandem.apps.chaos.live import LivePlatform, run_platform
from tandem.apps.client.http import Target

TASKS: Final = ("tiny_choice", "tiny_rolling", "tiny_generate")
_DEMO: Final = Path(tandem.models.__file__).parent / "demo"
_START_S: Final = 600.0
_EVALUATE_S: Final = 540.0
_CONTEXT: Final = 1024
_WORDS: Final = (
    *("the", "a", "old", "young", "river", "stone", "bridge", "garden", "lantern", "sailor", "baker", "opens"),
    *("carries", "follows", "paints", "near", "under", "behind", "small", "quiet", "golden", "window", "letter"),
    *("morning", "winter", "and", "but", "then", "slowly", "often"),
)

_COMMON: Final = """task: {task}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
"""
_TASK: Final[Mapping[str, str]] = {
    "tiny_choice": """output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metric_list:
  - metric: acc
  - metric: acc_norm
""",
    "tiny_rolling": """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
  - metric: bits_per_byte
""",
    "tiny_generate": """output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs:
  until: ["."]
  max_gen_toks: 24
  do_sample: false
  temperature: 0.0
metric_list:
  - metric: exact_match
""",
}


def write_tasks(place: Path, documents: int, seed: int) -> None:
    """The tasks' files, as the harness's `--include_path` finds them."""
    drawn = random.Random(seed)
    data = place / "documents.jsonl"
    with data.open("w", encoding="utf-8") as file:
        for _ in range(documents):
            text = " ".join(drawn.choices(_WORDS, k=drawn.randint(4, 60)))
            choices = [" " + " ".join(drawn.choices(_WORDS, k=drawn.randint(1, 6))) for _ in range(3)]
            file.write(json.dumps({"text": text, "choices": choices, "gold": drawn.randrange(3)}) + "\n")
    for task, rest in _TASK.items():
        (place / f"{task}.yaml").write_text(_COMMON.format(task=task, data=data) + rest, encoding="utf-8")


def evaluate(harness: Path, target: Target, model: Path, tasks: Path, results: Path) -> None:
    """Run the harness against a server. Raises `RuntimeError` with its last words when it fails."""
    told = {
        "model": "model",
        "base_url": f"http://{target.host}:{target.port}/v1/completions",
        "tokenizer": model,
        "tokenizer_backend": "huggingface",
        "num_concurrent": 4,
        "max_retries": 1,
        "max_length": _CONTEXT,
    }
    argv = [str(harness), "run", "--model", "local-completions", "--tasks", ",".join(TASKS)]
    argv += ["--model_args", ",".join(f"{key}={value}" for key, value in told.items()), "--log_samples"]
    argv += ["--include_path", str(tasks), "--output_path", str(results), "--batch_size", "4"]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=_EVALUATE_S, check=False, env={**environment(), **_harness()}
    )
    if done.returncode:
        raise RuntimeError(f"lm-eval against {target.host}:{target.port} failed: {done.stderr[-3000:]}")


def _harness() -> dict[str, str]:
    return {**os.environ, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def samples(results: Path) -> dict[str, list[Any]]:
    """What a run noted: by task, of every document in order, the server's answers."""
    found: dict[str, list[Any]] = {}
    for task in TASKS:
        (file,) = results.rglob(f"samples_{task}_*.jsonl")
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        found[task] = [line["resps"] for line in sorted(lines, key=lambda line: int(line["doc_id"]))]
    return found


def differences(ours: Any, theirs: Any, tolerance: float) -> list[str]:
    """Where two samples differ, in words; numbers may by the tolerance. The harness writes some values as text."""
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [line for pair in zip(ours, theirs, strict=True) for line in differences(*pair, tolerance)]
    if ours == theirs:
        return []
    try:
        apart = abs(float(ours) - float(theirs))
    except (TypeError, ValueError):
        return [f"{ours!r} and {theirs!r}"]
    return [] if apart <= tolerance else [f"{ours} and {theirs}"]


def judge(ours: Mapping[str, Sequence[Any]], theirs: Mapping[str, Sequence[Any]], tolerance: float) -> list[str]:
    """Every difference of two runs, with its task and document."""
    told = []
    for task in TASKS:
        assert len(ours[task]) == len(theirs[task]) > 0, f"{task}: {len(ours[task])} and {len(theirs[task])} samples"
        for number, pair in enumerate(zip(ours[task], theirs[task], strict=True)):
            told += [f"{task}, document {number}: {line}" for line in differences(*pair, tolerance)]
    return told


def scores(results: Path) -> dict[str, dict[str, float]]:
    """The harness's own figures, by task and metric."""
    (file,) = results.rglob("results_*.json")
    found: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["results"]
    return {
        task: {key.partition(",")[0]: value for key, value in found[task].items() if isinstance(value, float)}
        for task in TASKS
    }


def main() -> int:
    """Evaluate both servers and compare them sample by sample."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lm_eval", description=__doc__)
    parser.add_argument("--harness", type=Path, required=True, help="the program lm_eval")
    parser.add_argument("--model", type=Path, default=_DEMO, help="directory (default: the demo model)")
    parser.add_argument("--documents", type=int, default=60, help="of each task (default %(default)s)")
    parser.add_argument("--tolerance", type=float, default=0.02, help="of log-likelihoods (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the documents (default %(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tandem-lm-eval-") as made:
        place = Path(made)
        tasks = place / "tasks"
        tasks.mkdir()
        write_tasks(tasks, given.documents, given.seed)

        async def ask(live: LivePlatform) -> None:
            print("evaluating Tandem", flush=True)
            target = Target(live.host, live.port, False, "")
            await asyncio.to_thread(evaluate, given.harness, target, given.model, tasks, place / "ours")

        run_platform(tandem_flags(given.model, "float32"), ask, environment(), _START_S)
        with vllm_server(given.model, "float32") as server:
            print("evaluating vLLM's server", flush=True)
            evaluate(given.harness, server, given.model, tasks, place / "theirs")
        found = {name: scores(place / name) for name in ("ours", "theirs")}
        told = judge(samples(place / "ours"), samples(place / "theirs"), given.tolerance)
    rows = [
        (task, metric, f"{found['ours'][task][metric]:.4f}", f"{found['theirs'][task][metric]:.4f}")
        for task in TASKS
        for metric in found["ours"][task]
        if not metric.endswith("stderr")
    ]
    print(table(("task", "metric", "Tandem", "vLLM's server"), rows))
    print("\n".join(told[:20]) or f"{3 * given.documents} documents: all samples agree")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
