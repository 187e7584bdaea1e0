"""`tandem drill KIND --during STAGE`: does a platform keep its promises when it is struck right there, right then?"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from tandem.apps.chaos.drill.cells import check_allowed
from tandem.apps.chaos.drill.options import DrillOptions, parse
from tandem.apps.chaos.drill.result import Report, Round, summarize
from tandem.apps.chaos.drill.round import Drill
from tandem.apps.chaos.drill.session import open_session
from tandem.apps.chaos.drill.table import markdown, round_line, verdict
from tandem.apps.cli.registry import find

Say = Callable[[str], None]


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 when every round passed."""
    options = parse(arguments)
    report = asyncio.run(run_drills(options, _print, engine=""))
    print(markdown(report.cells) if len(report.cells) > 1 else verdict(report.cells[0]))
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    return 0 if report.passed else 1


async def run_drills(options: DrillOptions, say: Say, engine: str) -> Report:
    """All rounds of all cells, one after the other. Raises what opening a session or a round raises."""
    platform = find(options.url)
    check_allowed(options.cells, platform.members, platform.drills)
    async with open_session(options.url, options.key, engine, options.bounds) as session:
        say(f"{len(session.rights)} right answers of {session.model} taken, {options.bounds.streams} streams of load")
        rounds: list[Round] = []
        summaries = []
        for cell in options.cells:
            of_cell = []
            for number in range(options.rounds):
                result = await Drill(session, cell, number).run()
                say(round_line(number + 1, options.rounds, result))
                of_cell.append(result)
            rounds += of_cell
            summaries.append(summarize(of_cell, session.engine))
    return Report(options.url, tuple(summaries), tuple(rounds))


def _print(line: str) -> None:
    print(line, flush=True)
