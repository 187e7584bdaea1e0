"""Plain vLLM, as a reference: `python -m tests.vllm.plain_llm` reads requests and prints their tokens, as JSON.

A request is {"prompt", "sampling", "grammar"?, "adapter"?, "images"?}: token ids, keyword arguments of vLLM's own
classes, a directory, and files in base64. The argument is a JSON object of more keyword arguments of `LLM`.
"""

import base64
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "tandem" / "models" / "demo"
LIMIT_S = 400.0


def answers(
    requests: Sequence[Mapping[str, Any]], more: Mapping[str, Any] | None = None, *, python: str = sys.executable
) -> list[list[int]]:
    """What vLLM alone answers, in a process of its own of this interpreter; takes as long as that needs to start."""
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    }
    parallel = dict(more or {})
    if parallel.get("enforce_eager", True):
        environment["TORCH_COMPILE_DISABLE"] = "1"
    if parallel.get("tensor_parallel_size", 1) * parallel.get("pipeline_parallel_size", 1) == 1:
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    done = subprocess.run(
        [python, "-m", "tests.vllm.plain_llm", json.dumps(parallel)],
        input=json.dumps(list(requests)), capture_output=True, text=True, cwd=ROOT, env=environment, check=False,
        timeout=LIMIT_S,
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert found, done.stderr[-2000:]
    tokens: list[list[int]] = json.loads(found[0].removeprefix("ANSWERS "))
    return tokens


def main() -> None:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import StructuredOutputsParams

    from tandem.engine.vllm.arguments import PROCESSORS

    requests = json.load(sys.stdin)
    arguments: dict[str, Any] = {
        "model": str(DEMO),
        "dtype": "float32",
        "block_size": 32,
        "enforce_eager": True,
        "max_model_len": 1024,
        "num_gpu_blocks_override": 64,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 16,
        "generation_config": "vllm",
        "logits_processors": list(PROCESSORS),
        "disable_log_stats": True,
    }
    places = sorted({request["adapter"] for request in requests if request.get("adapter")})
    if places:
        # One slot more than adapters: requests without one are computed with what is in the last.
        arguments |= {"enable_lora": True, "max_loras": len(places) + 1}
    llm = LLM(**{**arguments, **json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}")})
    found = []
    for request in requests:
        sampling = dict(request["sampling"])
        if sampling.get("logit_bias") is not None:
            sampling["logit_bias"] = {int(token): bias for token, bias in sampling["logit_bias"].items()}
        if request.get("grammar"):
            sampling["structured_outputs"] = StructuredOutputsParams(**request["grammar"])
        place = request.get("adapter")
        adapter = LoRARequest(place, 1 + places.index(place), place) if place else None
        prompt: dict[str, Any] = {"prompt_token_ids": request["prompt"]}
        if request.get("images"):
            prompt["multi_modal_data"] = {"image": [_picture(image) for image in request["images"]]}
        (output,) = llm.generate([prompt], SamplingParams(**sampling), use_tqdm=False, lora_request=adapter)
        found.append(list(output.outputs[0].token_ids))
    # Ranks that outlive this process would keep its output open, and whoever reads it waiting.
    llm.llm_engine.engine_core.shutdown()
    sys.stdout.write(f"ANSWERS {json.dumps(found)}\n")


def _picture(image: str) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")


if __name__ == "__main__":
    main()
