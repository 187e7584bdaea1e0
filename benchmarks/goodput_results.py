"""Results of the goodput bench on disk, a line each: an interrupted bench goes on from them."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.goodput_cells import Run, fields_of, run_of
from benchmarks.goodput_code import Codes
from benchmarks.goodput_runs import RunResult
from tandem.core.errors import TandemError

_HEAD: Final = '{"codes": '
"""How the first line begins."""


class ResultsFile:
    """`results` holds what was read and what was added. Lines of other code than `codes` are of no use: a file that
    has any is put aside under the same name with `.old` and the first free number behind it, and the rest kept."""

    def __init__(self, path: Path, codes: Codes) -> None:
        """Raises `bad_setting` when the file cannot be read or is something else."""
        self.path = path
        self.results: dict[Run, RunResult] = {}
        self._codes = codes
        self._head = json.dumps({"codes": codes._asdict()})
        lines = self._lines()
        stale = bool(lines) and lines[0] != self._head
        if stale and not lines[0].startswith(_HEAD):
            self._guarded(self._put_aside)
            lines = []
        for number, line in enumerate(lines[1:], start=2):
            try:
                result = _result_of(json.loads(line))
            except (ValueError, KeyError, TypeError, AssertionError, TandemError) as error:
                if stale:
                    continue
                if number == len(lines):
                    # The last line of a bench that was ended while it wrote.
                    break
                raise TandemError("bad_setting", f"{path}, line {number}, is no result: {error!r}") from error
            if result.code == codes.of(result.run.contender):
                self.results[result.run] = result
        if stale and lines:
            self._guarded(self._put_aside)
        self._guarded(self._rewrite)

    def add(self, result: RunResult) -> None:
        """Raises `bad_setting` when it cannot be written, and when other code than this file's came to it: a process
        reads the code when it begins, however long ago the others have."""
        code = self._codes.of(result.run.contender)
        if result.code != code:
            raise TandemError(
                "bad_setting",
                f"the code has changed since the bench began: a run of {result.run.contender} came from code "
                f"{result.code}, {self.path} is of {code}; start the bench again",
            )
        self.results[result.run] = result
        self._guarded(lambda: self._append(_line_of(result)))

    def _lines(self) -> list[str]:
        try:
            return self.path.read_text().splitlines() if self.path.exists() else []
        except (OSError, ValueError) as error:
            raise TandemError("bad_setting", f"{self.path} cannot be read: {error}") from error

    def _rewrite(self) -> None:
        """Whole lines alone, so that the next one is not appended to half of one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [self._head, *(_line_of(result) for result in self.results.values())]
        whole = self.path.with_name(self.path.name + ".new")
        whole.write_text("\n".join(lines) + "\n")
        os.replace(whole, self.path)

    def _put_aside(self) -> None:
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.old{number}")).exists():
            number += 1
        os.replace(self.path, aside)

    def _append(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            raise TandemError("bad_setting", f"{self.path} cannot be written: {error}") from error


def _line_of(result: RunResult) -> str:
    return json.dumps({**asdict(result), "run": fields_of(result.run)})


def _result_of(fields: dict[str, object]) -> RunResult:
    """Keys of JSON are texts: bounds on TPOT are numbers again."""
    run, judged, buckets = fields["run"], fields["judged"], fields["buckets"]
    assert isinstance(run, dict)
    assert isinstance(judged, dict)
    assert isinstance(buckets, dict)
    return RunResult(
        run=run_of(run),
        requests=int(str(fields["requests"])),
        cpu_s=float(str(fields["cpu_s"])),
        judged={int(tpot): {str(key): float(value) for key, value in each.items()} for tpot, each in judged.items()},
        buckets={int(tpot): [(int(a), int(b)) for a, b in each] for tpot, each in buckets.items()},
        begin_s=float(str(fields["begin_s"])),
        changes_s=tuple(float(each) for each in fields["changes_s"]),  # type: ignore[attr-defined]
        code=str(fields["code"]),
        held=tuple(
            (float(at_s), int(prefills), None if itl_ms is None else float(itl_ms), int(moves))
            for at_s, prefills, itl_ms, moves in fields["held"]  # type: ignore[attr-defined]
        ),
    )
