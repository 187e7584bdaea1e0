"""The options of `tandem verify`."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.apps.cli.single_node import read_local_service
from tandem.apps.cli.up_options import parse as parse_up
from tandem.apps.cli.verify.compare import AT_LEAST, AT_MOST, DEFAULTS
from tandem.apps.cli.verify.prompts import Prompt, read_prompts
from tandem.apps.cli.verify.sides import ExistingEndpoint, LaunchedService, Side
from tandem.apps.client.http import parse_target
from tandem.core.errors import TandemError

_FLAGS: Final = ("engine", "dtype", "device", "block-tokens", "kv-memory")
"""Flags of `tandem up` that may follow a model directory."""
_TOP_MAX: Final = 20


@dataclass(frozen=True)
class VerifyOptions:
    """`json` is where the report goes as JSON; `-` is standard output, None nowhere."""

    sides: tuple[Side, Side]
    prompts: tuple[Prompt, ...]
    tokens: int
    top: int
    thresholds: Mapping[str, float]
    at_once: int
    timeout_s: float
    start_s: float
    json: str | None


def parse(arguments: Sequence[str]) -> VerifyOptions:
    """Raises `bad_setting`; argparse itself exits with 2."""
    given = _parser().parse_args(arguments)
    if not 1 <= given.top <= _TOP_MAX:
        raise TandemError("bad_setting", f"--top is {given.top}, not between 1 and {_TOP_MAX}")
    for name in ("tokens", "at_once"):
        if getattr(given, name) < 1:
            raise TandemError("bad_setting", f"--{name.replace('_', '-')} is {getattr(given, name)}: at least 1")
    sides = (side_of("A", given.a, given.model_a, given.key_a), side_of("B", given.b, given.model_b, given.key_b))
    thresholds = read_thresholds(given.threshold) if given.threshold else DEFAULTS
    prompts = read_prompts(given.prompts)
    return VerifyOptions(
        sides,
        prompts,
        given.tokens,
        given.top,
        thresholds,
        given.at_once,
        given.timeout,
        given.start_timeout,
        given.json,
    )


def read_thresholds(texts: Sequence[str]) -> dict[str, float]:
    """Bounds from `agreement=0.99,kl=0.01`, several times. Raises `bad_setting` naming what is wrong."""
    found: dict[str, float] = {}
    for part in ",".join(texts).split(","):
        name, _, bound = part.partition("=")
        if name not in (*AT_LEAST, *AT_MOST):
            known = ", ".join((*AT_LEAST, *AT_MOST))
            raise TandemError("bad_setting", f"--threshold: {name!r} is not one of {known}")
        try:
            found[name] = float(bound)
        except ValueError:
            raise TandemError("bad_setting", f"--threshold: {part!r} has no number") from None
    return found


def side_of(name: str, text: str, model: str | None, key: str | None) -> Side:
    """An endpoint, a `ModelService` file, or a model directory or hub id with flags of `tandem up` behind commas.
    Raises `bad_setting`."""
    if text.startswith(("http://", "https://")):
        return ExistingEndpoint(name, parse_target(text, key or os.environ.get("OPENAI_API_KEY", "")), model)
    if text.endswith((".yaml", ".yml")):
        return LaunchedService(name, text, read_local_service(Path(text)))
    source, *flags = text.split(",")
    up = ["--model", source, "--prefill", "0", "--decode", "1"]
    for flag in flags:
        key_, equals, value = flag.partition("=")
        if key_ not in _FLAGS or not equals:
            known = ", ".join(f"{each}=…" for each in _FLAGS)
            raise TandemError("bad_setting", f"{name}: {flag!r} after {source} is not one of {known}")
        up += [f"--{key_}", value]
    return LaunchedService(name, text, parse_up(up).service)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem verify",
        description="Ask two sides the same and compare: greedy tokens, and the distributions they were drawn from.",
        epilog="A side is the URL of an OpenAI endpoint, a ModelService file, or a model directory or hub id, also "
        "with flags of `tandem up`: DIR,dtype=bfloat16. Files and directories are served here, one after the other. "
        "Exit status 3 when a threshold is not met or the tokenizers differ, 1 when a side cannot be asked.",
    )
    parser.add_argument("a", metavar="A", help="the reference")
    parser.add_argument("b", metavar="B", help="what is compared to it")
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE", help="a prompt per line: text or JSON")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens per answer (default %(default)s)")
    parser.add_argument(
        "--top", type=int, default=10, metavar="K", help="alternatives per token (default %(default)s)"
    )
    defaults = ",".join(f"{name}={bound:g}" for name, bound in DEFAULTS.items())
    parser.add_argument(
        "--threshold",
        action="append",
        metavar="NAME=BOUND,…",
        help=f"{', '.join(AT_LEAST)} at least, {', '.join(AT_MOST)} at most so much (default {defaults})",
    )
    parser.add_argument("--model-a", metavar="NAME", help="model of endpoint A (default: the first it lists)")
    parser.add_argument("--model-b", metavar="NAME", help="model of endpoint B")
    parser.add_argument("--key-a", metavar="KEY", help="bearer key of endpoint A (default: OPENAI_API_KEY)")
    parser.add_argument("--key-b", metavar="KEY", help="bearer key of endpoint B")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="open requests (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds an answer may take")
    parser.add_argument("--start-timeout", type=float, default=600.0, help="seconds until a side must be ready")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="the report as JSON, instead of a table or into a file"
    )
    return parser
