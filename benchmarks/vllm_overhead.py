"""What serving vLLM through Tandem costs: one unified worker behind the router against vLLM's own OpenAI server.

Both serve the same model with the same engine settings, eager, on as many threads, with the engine's rank inside its
process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`). They run at the same time and are asked in turns: `--streams` clients
send a round's requests one after the other, prompts of token ids that no earlier round had, and answers of a given
length. Times to the first token count from sending. Run it in the environment of `make setup-vllm`.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import tandem.models
from benchmarks.rounds import Check, alternate, median_ratio, percentile, table, verdict
from tandem.apps.bench.completion import Style
from tandem.apps.bench.content import TokenRange
from tandem.apps.bench.replay import Settings, replay
from tandem.apps.bench.synthetic import RequestClass, synthetic
from tandem.apps.chaos.live import LivePlatform, run_platform
from tandem.apps.cli.launches import threads_per_worker
from tandem.apps.cli.platform import cores
from tandem.apps.cli.ports import free_port
from tandem.apps.client.http import Client, Target
from tandem.apps.client.wire import BadResponse
from tandem.engine.settings import SchedulerSettings

TANDEM, VLLM = "Tandem", "vLLM's server"
TOKENS_MIN, TTFT_MAX = 0.95, 1.25
_DEMO: Final = Path(tandem.models.__file__).parent / "demo"
_BLOCK_TOKENS: Final = 32
_NAME: Final = "model"
_START_S: Final = 600.0
"""On a machine with other things to do importing vLLM alone takes minutes."""
_REQUEST_S: Final = 120.0
_LOOK_S: Final = 0.25
_STOP_S: Final = 30.0
_LOG_TAIL: Final = 2000
_SERVER: Final = "vllm.entrypoints.openai.api_server"


@dataclass(frozen=True)
class RoundLoad:
    """One round: requests of about `input_tokens` and `output_tokens` (±50 %), `streams` of them at a time."""

    requests: int
    streams: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class OverheadMetrics:
    """One round of one server."""

    tokens_per_s: float
    ttft_p50_s: float
    tpot_p50_s: float


class Contender:
    """A server that is asked round after round; both are asked the same, as rounds are numbered."""

    def __init__(self, name: str, target: Target, load: RoundLoad) -> None:
        self._name = name
        self._target = target
        self._load = load
        self._round = 0

    async def round(self) -> OverheadMetrics:
        """Ask one round. Raises `RuntimeError` when a request was not answered in full."""
        self._round += 1
        load = self._load
        mix = (RequestClass(load.input_tokens, load.output_tokens),)
        workload = synthetic(mix, load.requests, shared_prefix=0, seed=self._round)
        settings = Settings(
            Style(_NAME), TokenRange(), seed=self._round, timeout_s=_REQUEST_S, in_flight_max=load.streams
        )
        outcomes = await replay(self._target, workload, settings, lambda _outcome: None)
        for item, outcome in zip(workload.items, outcomes, strict=True):
            if not outcome.ok or outcome.output_tokens != item.output_tokens:
                got = outcome.error or f"{outcome.output_tokens} of {item.output_tokens} tokens"
                raise RuntimeError(f"{self._name} answered a request of round {self._round} with {got}")
        lasted_s = max(outcome.end_s for outcome in outcomes) - min(outcome.sent_s for outcome in outcomes)
        waits = [outcome.first_s - outcome.sent_s for outcome in outcomes if outcome.first_s is not None]
        gaps = [outcome.tpot_s for outcome in outcomes if outcome.tpot_s is not None]
        tokens = sum(outcome.output_tokens for outcome in outcomes)
        return OverheadMetrics(tokens / lasted_s, percentile(waits, 0.5), percentile(gaps, 0.5))


# ---- the two servers ----


def environment() -> dict[str, str]:
    """The same for both: nothing outside this machine, one core per compute thread, no rank process."""
    threads = str(max(1, threads_per_worker(cores(), 1) - 1))
    return {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }


_NEUTRAL = ("--generation-config", "vllm")
"""Both draw alike where a client leaves it open."""


def tandem_flags(model: Path, dtype: str) -> list[str]:
    """Of `tandem up`: one worker that does both."""
    served = ["--engine", "vllm", "--model", str(model), "--name", _NAME, "--prefill", "0", "--decode", "1"]
    return [
        *served,
        "--dtype",
        dtype,
        "--kv-memory",
        "1Gi",
        "--block-tokens",
        str(_BLOCK_TOKENS),
        "--eager",
        *_NEUTRAL,
    ]


def server_flags(model: Path, dtype: str, port: int) -> list[str]:
    """Of vLLM's server: what Tandem's worker is started with, and no line per request."""
    scheduler = SchedulerSettings()
    settings: dict[str, object] = {
        "model": model,
        "served-model-name": _NAME,
        "host": "127.0.0.1",
        "port": port,
        "dtype": dtype,
        "block-size": _BLOCK_TOKENS,
        "max-num-seqs": scheduler.max_sequences,
        "max-num-batched-tokens": scheduler.max_batched_tokens,
        "generation-config": "vllm",
        "uvicorn-log-level": "warning",
    }
    return ["--enforce-eager", *(part for key, value in settings.items() for part in (f"--{key}", str(value)))]


@contextmanager
def vllm_server(model: Path, dtype: str) -> Iterator[Target]:
    """vLLM's OpenAI server as a process, which does not outlive the block. Raises `RuntimeError`."""
    target = Target("127.0.0.1", free_port("127.0.0.1"), False, "")
    argv = [sys.executable, "-m", _SERVER, *server_flags(model, dtype, target.port)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            argv, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment()}, start_new_session=True
        )
        try:
            if not asyncio.run(healthy(target, process)):
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL))
                raise RuntimeError(f"vLLM's server did not start: {log.read()}")
            yield target
        finally:
            stop(process)


async def healthy(target: Target, process: "subprocess.Popen[bytes]") -> bool:
    """Wait until a server answers `/health`; False when its process ends or the time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _START_S
    async with aclosing(Client(target)) as client:
        while process.poll() is None and loop.time() < deadline:
            try:
                async with await client.exchange("GET", "/health") as answer:
                    if answer.status == 200:
                        return True
            except (OSError, BadResponse):
                # It does not listen yet.
                pass
            await asyncio.sleep(_LOOK_S)
    return False


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a server and the engine process that is its child."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        # Nothing of its group is left, as it should be.
        return


# ---- measuring and telling ----


def measure(model: Path, dtype: str, load: RoundLoad, rounds: int) -> dict[str, list[OverheadMetrics]]:
    """Both servers' rounds, in the order in which they were measured."""

    async def contest(live: LivePlatform, server: Target) -> dict[str, list[OverheadMetrics]]:
        ours = Contender(TANDEM, Target(live.host, live.port, False, ""), load)
        theirs = Contender(VLLM, server, load)
        return await alternate({TANDEM: ours.round, VLLM: theirs.round}, rounds)

    with vllm_server(model, dtype) as server:
        return run_platform(tandem_flags(model, dtype), lambda live: contest(live, server), environment(), _START_S)


def checks_of(results: Mapping[str, Sequence[OverheadMetrics]]) -> list[Check]:
    """Medians over rounds of the ratio within each round."""
    ours, theirs = results[TANDEM], results[VLLM]
    tokens = median_ratio([each.tokens_per_s for each in ours], [each.tokens_per_s for each in theirs])
    first = median_ratio([each.ttft_p50_s for each in ours], [each.ttft_p50_s for each in theirs])
    return [
        Check("tokens/s, Tandem / vLLM's server", tokens, TOKENS_MIN, True),
        Check("TTFT p50, Tandem / vLLM's server", first, TTFT_MAX, False),
    ]


def show(results: Mapping[str, Sequence[OverheadMetrics]]) -> str:
    """A line per server: medians over rounds."""
    rows = [
        (
            name,
            f"{statistics.median(each.tokens_per_s for each in rounds):.0f}",
            f"{statistics.median(each.ttft_p50_s for each in rounds) * 1e3:.1f}",
            f"{statistics.median(each.tpot_p50_s for each in rounds) * 1e3:.2f}",
        )
        for name, rounds in results.items()
    ]
    return table(("server", "tokens/s", "TTFT p50 ms", "TPOT p50 ms"), rows)


def main() -> int:
    """Measure and give the verdict."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_overhead", description=__doc__)
    parser.add_argument("--model", type=Path, default=_DEMO, help="directory (default: the demo model)")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--rounds", type=int, default=5, help="that count (default %(default)s)")
    parser.add_argument("--requests", type=int, default=300, help="per round (default %(default)s)")
    parser.add_argument("--streams", type=int, default=8, help="requests at a time (default %(default)s)")
    parser.add_argument("--input-tokens", type=int, default=200, help="about (default %(default)s)")
    parser.add_argument("--output-tokens", type=int, default=64, help="about (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write every round and the checks to this file")
    given = parser.parse_args()
    load = RoundLoad(given.requests, given.streams, given.input_tokens, given.output_tokens)
    results = measure(given.model, given.dtype, load, given.rounds)
    checks = checks_of(results)
    print(
        f"{given.rounds} rounds of {load.requests} requests, {load.streams} at a time, about {load.input_tokens} "
        f"tokens in and {load.output_tokens} out, {cores()} cores"
    )
    print(show(results))
    if given.json is not None:
        rounds = {name: [asdict(each) for each in figures] for name, figures in results.items()}
        told = {"load": asdict(load), "rounds": rounds, "checks": [asdict(check) for check in checks]}
        given.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return verdict(checks, "vLLM through Tandem serves as fast as vLLM's own server")


if __name__ == "__main__":
    sys.exit(main())
