"""The router's HTTP/1.1 server against nginx, granian and h11: `python -m tools.http_judges --cases 2000`.

Every server gets the same bytes: some cases whole, some byte by byte. It is a finding where the application behind
the router saw requests that no other one saw, or waited where all others had answered.
Refusing what all others take is told and no finding: bare line feeds, unknown methods, HTTP/1.2, space after the size
of a chunk. A connection that ends in silence is told (`silent`). Exits non-zero when there is a finding.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tools.http_judges.generator import Case, cases
from tools.http_judges.judges import behind_port, h11_says
from tools.http_judges.servers import running
from tools.http_judges.verdict import Verdict

_QUIET_S: Final = 0.15
_SURE_S: Final = 1.5
"""What differs is asked again with this much patience: on a busy machine an answer may be late."""
_AT_ONCE: Final = 16


@dataclass
class Found:
    """What a run has found."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[Case, str, dict[str, Verdict]]] = field(default_factory=list)


def finding(verdicts: dict[str, Verdict]) -> str | None:
    """What is wrong with ours beside the others; None when nothing is."""
    own, others = verdicts["ours"], [verdict for name, verdict in verdicts.items() if name != "ours"]
    if own.seen in [other.seen for other in others]:
        if not own.refused and own.closed and all(other.refused for other in others):
            return "silent"
        return None
    if any(own.seen == other.seen[: len(own.seen)] for other in others):
        return "stricter than all" if own.closed else "waits"
    return "saw what nobody saw"


async def judge(case: Case, ports: dict[str, int], quiet_s: float, split: bool) -> dict[str, Verdict]:
    """The verdicts of all servers on one connection."""
    pieces = [case.data[at : at + 1] for at in range(len(case.data))] if split else [case.data]
    said = await asyncio.gather(*(behind_port(port, pieces, quiet_s) for port in ports.values()))
    return {**dict(zip(ports, said, strict=True)), "h11": h11_says(case.data)}


async def run(seed: int, count: int) -> Found:
    """Judge so many connections."""
    found, gate = Found(), asyncio.Semaphore(_AT_ONCE)

    async def one(number: int, case: Case) -> None:
        split = number % 5 == 0 and len(case.data) < 1_000
        async with gate:
            verdicts = await judge(case, ports, _QUIET_S, split)
            if finding(verdicts) is not None:
                verdicts = await judge(case, ports, _SURE_S, split)
        what = finding(verdicts)
        found.counts[what or "agrees with one"] += 1
        if what is not None:
            found.findings.append((case, what, verdicts))

    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder)) as ports:
            print(f"judges: h11, {', '.join(name for name in ports if name != 'ours')}", flush=True)
            await asyncio.gather(*(one(number, case) for number, case in enumerate(cases(seed, count))))
    return found


def main() -> int:
    """Judge and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--show", type=int, default=3, help="examples of each kind of finding (default 3)")
    arguments = parser.parse_args()
    found = asyncio.run(run(arguments.seed, arguments.cases))
    shown: Counter[tuple[str, ...]] = Counter()
    for case, what, verdicts in sorted(found.findings, key=lambda each: len(each[0].faults)):
        kind = (what, *case.faults)
        shown[kind] += 1
        if len(case.faults) < 2 and shown[kind] <= arguments.show:
            print(f"{what}, {case.name}, {', '.join(case.faults)}: {case.data[:300]!r}")
            for name, verdict in verdicts.items():
                print(f"  {name}: {verdict}")
    print(", ".join(f"{count} {what}" for what, count in found.counts.most_common()))
    return 1 if found.counts["saw what nobody saw"] + found.counts["waits"] else 0


if __name__ == "__main__":
    sys.exit(main())
