"""`tandem verify A B --prompts FILE`: the same prompts to two sides, and a verdict as exit status."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from tandem.apps.cli.verify.client import QuerySettings, VerifyClient
from tandem.apps.cli.verify.compare import compare, judge
from tandem.apps.cli.verify.options import VerifyOptions, parse
from tandem.apps.cli.verify.progress import Bar
from tandem.apps.cli.verify.replies import Reply
from tandem.apps.cli.verify.report import Report, as_json, as_table, report_of
from tandem.apps.cli.verify.sides import Side
from tandem.apps.cli.verify.tokenizers import in_answers, in_files
from tandem.apps.client.http import Target
from tandem.core.errors import TandemError
from tandem.spec.rollout import TOO_DIFFERENT


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 when every threshold is met, 3 when not; 1 when a side cannot be asked, 2 for wrong use."""
    options = parse(arguments)
    report = asyncio.run(verify(options))
    if options.json == "-":
        print(as_json(report))
        return _status(report)
    if options.json is not None:
        _write(options.json, report)
    print(as_table(report, options.prompts))
    return _status(report)


def _status(report: Report) -> int:
    return 0 if report.passed else TOO_DIFFERENT


async def verify(options: VerifyOptions) -> Report:
    """Ask both sides, one after the other, and compare. Raises what starting and asking them raises."""
    first, second = options.sides
    findings = _files(first, second)
    replies = await _ask(first, options), await _ask(second, options)
    compared = [compare(number, *pair) for number, pair in enumerate(zip(*replies, strict=True))]
    findings = tuple(dict.fromkeys((*findings, *in_answers(options.prompts, *replies))))
    verdict = judge(compared, options.thresholds)
    return report_of((first.shown, second.shown), compared, verdict, findings)


def _files(first: Side, second: Side) -> tuple[str, ...]:
    """The findings from the model directories, where both sides have one."""
    directories = first.directory(), second.directory()
    if directories[0] is None or directories[1] is None:
        return ()
    finding = in_files(directories[0], directories[1])
    return () if finding is None else (finding,)


async def _ask(side: Side, options: VerifyOptions) -> tuple[Reply, ...]:
    asking = QuerySettings(options.tokens, options.top, options.at_once, options.timeout_s)

    async def work(target: Target, model: str) -> tuple[Reply, ...]:
        with Bar(f"{side.name} {side.shown}", len(options.prompts)) as bar:
            return await VerifyClient(side.name, target, model, asking).all(options.prompts, bar.add)

    try:
        return await side.use(work, options.start_s, _say)
    except ExceptionGroup as group:
        # Of prompts asked side by side the first that failed tells why.
        raise _first(group) from None


def _first(group: ExceptionGroup) -> TandemError:
    found = next((each for each in group.exceptions if isinstance(each, TandemError)), None)
    if found is None:
        raise group
    return found


def _write(path: str, report: Report) -> None:
    try:
        Path(path).write_text(as_json(report) + "\n", encoding="utf-8")
    except OSError as error:
        raise TandemError("bad_setting", f"--json: {path} cannot be written: {error.strerror}") from error


def _say(line: str) -> None:
    print(f"verify: {line}", file=sys.stderr, flush=True)
