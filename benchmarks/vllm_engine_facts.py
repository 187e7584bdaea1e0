"""What vLLM makes of the arguments of both sides of a contest, so that it can be seen that they are the same.

`resolved` asks a process of its own, as vLLM's configuration takes seconds to import and reads the environment;
`python -m benchmarks.vllm_engine_facts` is it: command lines by name on standard input, facts by name out.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_MARK: Final = "tandem-engine-facts "
_ASK_S: Final = 300.0
TANDEM_WORKER, VLLM_SERVER = "worker", "server"

Facts = Mapping[str, str]


def resolved(worker: Sequence[str], server: Sequence[str], environment: Mapping[str, str]) -> tuple[Facts, Facts]:
    """Of a Tandem worker with these flags, and of vLLM's server with those. Raises `RuntimeError`."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.vllm_engine_facts"],
        input=json.dumps({TANDEM_WORKER: list(worker), VLLM_SERVER: list(server)}).encode(),
        env={**os.environ, **environment}, capture_output=True, timeout=_ASK_S, check=False,
    )  # fmt: skip
    line = next((each for each in ended.stdout.decode().splitlines() if each.startswith(_MARK)), None)
    if line is None:
        raise RuntimeError(f"vLLM does not say what it makes of the arguments: {ended.stderr.decode()[-2000:]}")
    told = json.loads(line.removeprefix(_MARK))
    return told[TANDEM_WORKER], told[VLLM_SERVER]


def facts_of(config: Any) -> Facts:
    """Of a `VllmConfig` and the environment: what decides how fast an engine is."""
    cache, scheduler, model, parallel = (
        config.cache_config, config.scheduler_config, config.model_config, config.parallel_config
    )  # fmt: skip
    found = {
        "dtype": model.dtype,
        "max_model_len": model.max_model_len,
        "enforce_eager": model.enforce_eager,
        "block_size": cache.block_size,
        "cache_dtype": cache.cache_dtype,
        "kv_cache_gib": os.environ["VLLM_CPU_KVCACHE_SPACE"],
        "enable_prefix_caching": cache.enable_prefix_caching,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "chunked_prefill": scheduler.enable_chunked_prefill,
        "async_scheduling": scheduler.async_scheduling,
        "executor": parallel.distributed_executor_backend,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "v2_model_runner": config.use_v2_model_runner,
        "threads": os.environ["OMP_NUM_THREADS"],
        "policy": scheduler.policy,
        "kv_events": config.kv_events_config is not None,
        "logits_processors": len(model.logits_processors or ()),
    }
    return {name: str(value) for name, value in found.items()}


def _worker(flags: Sequence[str]) -> Facts:
    from tandem.engine.vllm.arguments import Sockets, engine_arguments, with_threads
    from tandem.engine.vllm.client import engine_args
    from tandem.process.settings import load_settings
    from tandem.worker.engines import scheduler_settings, vllm_settings
    from tandem.worker.process_settings import WorkerSettings

    settings = load_settings(WorkerSettings, flags)
    own = with_threads(vllm_settings(settings))
    arguments = engine_arguments(
        own, scheduler_settings(settings), Path(str(own.model)), (), Sockets(Path("unused")), None
    )
    os.environ |= arguments.environment
    return facts_of(engine_args(arguments.keywords).create_engine_config())


def _server(flags: Sequence[str]) -> Facts:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(list(flags))
    config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config(UsageContext.OPENAI_API_SERVER)
    return facts_of(config)


def _main() -> None:
    asked = json.load(sys.stdin)
    # The worker's environment is a superset of the server's, so the server comes first.
    told = {VLLM_SERVER: _server(asked[VLLM_SERVER]), TANDEM_WORKER: _worker(asked[TANDEM_WORKER])}
    sys.stdout.write(f"\n{_MARK}{json.dumps(told)}\n")


if __name__ == "__main__":
    _main()
