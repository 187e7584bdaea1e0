"""The options of `tandem drill`."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.apps.chaos.drill.cells import KINDS, STAGES, Cell
from tandem.apps.chaos.drill.session import Bounds
from tandem.core.errors import TandemError

ALL: Final = "all"


@dataclass(frozen=True)
class DrillOptions:
    """What to drill, how often, and where to write the results."""

    cells: tuple[Cell, ...]
    url: str
    key: str
    rounds: int
    bounds: Bounds
    json: Path | None


def parse(arguments: Sequence[str]) -> DrillOptions:
    """Raises `bad_setting`; argparse itself exits with 2."""
    given = _parser().parse_args(arguments)
    if min(given.streams, given.abusers) < 0:
        raise TandemError("bad_setting", "--streams and --abusers count clients: at least 0")
    if given.rounds < 1:
        raise TandemError("bad_setting", f"--rounds is {given.rounds}, not at least 1")
    kinds = KINDS if given.kind == ALL else (given.kind,)
    stages = STAGES if ALL in given.during else tuple(dict.fromkeys(given.during))
    cells = tuple(Cell(kind, stage) for kind in kinds for stage in stages)
    bounds = Bounds(
        streams=given.streams,
        abusers=given.abusers,
        freeze_s=given.freeze,
        end_s=given.end_within,
        recover_s=given.recover_within,
    )
    return DrillOptions(cells, given.url, given.api_key, given.rounds, bounds, given.json)


def _parser() -> argparse.ArgumentParser:
    defaults = Bounds()
    parser = argparse.ArgumentParser(
        prog="tandem drill",
        description="Strike a running platform of this machine under load, and judge every answer.",
        epilog="Exit status 0 when every round passed, 1 otherwise.",
    )
    parser.add_argument("kind", choices=(*KINDS, ALL), help="what to do")
    parser.add_argument(
        "--during", nargs="+", choices=(*STAGES, ALL), default=["decode"], help="stages of the request it strikes"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the platform (default %(default)s)")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", ""), help="bearer key")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each cell (default %(default)s)")
    parser.add_argument("--streams", type=int, default=defaults.streams, help="background streams")
    parser.add_argument(
        "--abusers",
        type=int,
        default=defaults.abusers,
        help="clients that hang up, do not read, send what is no request or far too much (default %(default)s)",
    )
    parser.add_argument(
        "--freeze", type=float, default=defaults.freeze_s, help="seconds a process stays frozen (default %(default)s)"
    )
    parser.add_argument(
        "--end-within", type=float, default=defaults.end_s, help="seconds a request has to end (default %(default)s)"
    )
    parser.add_argument(
        "--recover-within",
        type=float,
        default=defaults.recover_s,
        help="seconds the platform has to be whole again; a killed worker loads its model (default %(default)s)",
    )
    parser.add_argument("--json", type=Path, help="write all rounds to this file")
    return parser
