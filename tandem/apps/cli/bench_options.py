"""The options of `tandem bench`, parsed and checked."""

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.apps.bench.content import TokenRange
from tandem.apps.bench.lengths import read_lengths
from tandem.apps.bench.mooncake import BLOCK_TOKENS, read_trace
from tandem.apps.bench.replay import ClosedLoop
from tandem.apps.bench.slo import parse_slo
from tandem.apps.bench.synthetic import parse_mix, synthetic
from tandem.apps.bench.workload import UNSCALED, Scale, Workload
from tandem.core.errors import TandemError
from tandem.core.slo import Slo

DEFAULT_MIX = "256:64@8,2048:128@2"
DEFAULT_REQUESTS = 200
SEARCH_REQUESTS = 20_000


@dataclass(frozen=True)
class Options:
    """The options of a benchmark. None means: not given."""

    url: str
    model: str | None
    key: str
    trace: Path | None
    csv: Path | None
    mix: str
    shared_prefix: int
    block_tokens: int
    requests: int | None
    scale: Scale
    speed: float
    rate: float | None
    closed: ClosedLoop | None
    jitter: bool
    seed: int
    context: int | None
    chat: bool
    text: bool
    vocabulary: TokenRange
    slo: Slo
    timeout_s: float
    in_flight_max: int
    find_capacity: bool
    share: float
    trial_s: float
    json: Path | None
    plot: Path | None
    fail_on_error: bool


def parse(arguments: Sequence[str]) -> Options:
    """Options from the command line. Raises `bad_setting`; argparse itself exits with 2."""
    given = _parser().parse_args(arguments)
    slo = parse_slo(given.slo) if given.slo else Slo()
    if given.find_capacity and given.clients:
        raise TandemError(
            "bad_setting", "--find-capacity searches a rate, which --clients does not have; leave one out"
        )
    if given.think is not None and not given.clients:
        raise TandemError("bad_setting", "--think is the pause of a client between requests; give --clients as well")
    return Options(
        url=given.url,
        model=given.model,
        key=given.api_key or os.environ.get("OPENAI_API_KEY", ""),
        trace=given.trace,
        csv=given.csv,
        mix=given.synthetic or DEFAULT_MIX,
        shared_prefix=given.shared_prefix,
        block_tokens=given.block_tokens,
        requests=given.requests,
        scale=Scale(given.input_scale or given.scale or 1.0, given.output_scale or given.scale or 1.0),
        speed=given.speed,
        rate=given.rate,
        closed=ClosedLoop(given.clients, given.think or 0.0) if given.clients else None,
        jitter=not given.no_jitter,
        seed=given.seed,
        context=given.context,
        chat=given.endpoint == "chat",
        text=given.text,
        vocabulary=given.token_ids,
        slo=slo,
        timeout_s=given.timeout,
        in_flight_max=given.max_in_flight,
        find_capacity=given.find_capacity,
        share=given.share,
        trial_s=given.trial_seconds,
        json=given.json,
        plot=given.plot,
        fail_on_error=given.fail_on_error,
    )


def load(options: Options) -> Workload:
    """The workload the options name, before any cut or timing. Raises `bad_setting`."""
    if options.trace is not None:
        return read_trace(options.trace, options.scale, options.block_tokens)
    if options.csv is not None:
        return read_lengths(options.csv, options.scale)
    requests = options.requests or (SEARCH_REQUESTS if options.find_capacity else DEFAULT_REQUESTS)
    if options.scale != UNSCALED:
        scales = "--scale, --input-scale and --output-scale go"
        raise TandemError("bad_setting", f"{scales} with --trace or --csv; the synthetic mix names its lengths")
    return synthetic(parse_mix(options.mix), requests, options.shared_prefix, options.seed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem bench",
        description="Replay a workload against an OpenAI URL and report what its users would feel.",
        epilog="Latencies count from the moment a request was due. Exit status 1 when nothing succeeded. "
        "SIGINT and SIGTERM end a replay with the report of what was offered so far (status 130 and 143).",
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="server to ask (default %(default)s)")
    parser.add_argument("--model", help="model name (default: the first one the server lists)")
    parser.add_argument("--api-key", help="bearer key (default: OPENAI_API_KEY)")
    _add_workload(parser)
    _add_timing(parser)
    _add_asking(parser)
    _add_results(parser)
    return parser


def _add_workload(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload")
    source = group.add_mutually_exclusive_group()
    source.add_argument("--trace", type=Path, help="Mooncake-format trace, .jsonl or .jsonl.zst")
    source.add_argument("--csv", type=Path, help="CSV of prompt and answer lengths, with times if it has them")
    source.add_argument("--synthetic", metavar="MIX", help=f"IN:OUT@WEIGHT,… (default {DEFAULT_MIX})")
    group.add_argument(
        "--shared-prefix", type=_count, default=0, metavar="TOKENS", help="equal start of a mix's prompts"
    )
    group.add_argument(
        "--block-tokens", type=_positive_count, default=BLOCK_TOKENS, help="tokens per hash id of a trace"
    )
    group.add_argument(
        "--requests",
        type=_positive_count,
        help=f"how many (default: all, {DEFAULT_REQUESTS} of a mix, more to search)",
    )
    group.add_argument("--scale", type=_positive, help="factor for all lengths, such as 1/64")
    group.add_argument("--input-scale", type=_positive, help="factor for prompts (default: --scale)")
    group.add_argument("--output-scale", type=_positive, help="factor for answers (default: --scale)")
    group.add_argument("--context", type=_positive_count, help="leave out what does not fit into this many tokens")
    group.add_argument("--seed", type=int, default=0, help="of contents, jitter and draws (default %(default)s)")


def _add_timing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("timing")
    pace = group.add_mutually_exclusive_group()
    pace.add_argument("--speed", type=_positive, default=1.0, help="replay this many times as fast")
    pace.add_argument("--rate", type=_positive, help="mean requests per second instead of the source's own")
    pace.add_argument(
        "--clients",
        type=_positive_count,
        help="closed loop: this many clients ask, wait for the answer, think and ask again",
    )
    group.add_argument("--think", type=_seconds, metavar="SECONDS", help="pause of a client (default 0)")
    group.add_argument("--no-jitter", action="store_true", help="keep the grid that a trace's times were rounded to")
    group.add_argument(
        "--max-in-flight", type=_positive_count, default=1024, help="bound on open requests of an open loop"
    )
    group.add_argument("--timeout", type=_positive, default=600.0, help="seconds a request may take")


def _add_asking(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    group.add_argument("--endpoint", choices=("completions", "chat"), default="completions")
    group.add_argument("--text", action="store_true", help="text prompts even when the server takes token ids")
    group.add_argument("--token-ids", type=_token_range, default=TokenRange(), metavar="LOW-HIGH", help="ids to draw")


def _add_results(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    group.add_argument(
        "--slo", help="goodput bounds in seconds: ttft=2,tpot=0.05,itl=…,e2e=…; otherwise those that the server lists"
    )
    group.add_argument("--find-capacity", action="store_true", help="search the highest rate that meets --slo")
    group.add_argument("--share", type=_positive, default=0.9, help="share of requests that must meet --slo")
    group.add_argument("--trial-seconds", type=_positive, default=20.0, help="length of one trial of the search")
    group.add_argument("--json", type=Path, metavar="FILE", help="write the report")
    group.add_argument("--plot", type=Path, metavar="FILE.png", help="write a picture (needs matplotlib)")
    group.add_argument("--fail-on-error", action="store_true", help="exit status 1 when any request failed")


def _positive(text: str) -> float:
    numerator, _, denominator = text.partition("/")
    value = float(numerator) / (float(denominator or 1) or math.nan)
    if not 0 < value < math.inf:
        raise ValueError(text)
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _positive_count(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise ValueError(text)
    return value


def _token_range(text: str) -> TokenRange:
    low, _, high = text.partition("-")
    if int(low) < 0 or int(high) - int(low) < 2:
        raise ValueError(text)
    return TokenRange(int(low), int(high))


# argparse puts these names into its messages: "invalid positive number value: '0'".
_positive.__name__ = "positive number"
_seconds.__name__ = "seconds"
_positive_count.__name__ = "positive count"
_count.__name__ = "count"
_token_range.__name__ = "token range"
