"""`make models`: tries the models that have no good result of this code yet, and writes `docs/models.md`.

Results are kept as they come, so what is interrupted goes on where it was. Exits with 1 when a model that was asked
for has no good result in the end.
"""

import argparse
import asyncio
import datetime
import sys
import tempfile
import time
from pathlib import Path

from tools.models import record
from tools.models.catalogue import ENTRIES, Entry, named
from tools.models.checkpoints import write
from tools.models.code_hash import ROOT, code_hash
from tools.models.page import page
from tools.models.reference import Reference, reference
from tools.models.trial import trial
from tools.models.unrun import check

PAGE = ROOT / "docs" / "models.md"


async def main() -> int:
    given = _arguments()
    code, rows = code_hash(), record.load()
    wanted = named(given.models)
    left = list(wanted) if given.again else record.missing(rows, wanted, code)
    print(f"models: {len(left)} of {len(wanted)} to try; code {code}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tandem-models-") as folder:
        async with reference(Path(folder) / "reference.log") as right:
            for number, entry in enumerate(left):
                began = time.monotonic()
                rows[entry.name] = row = await _one(entry, Path(folder), right, code, given.limit_s)
                record.save(rows)
                PAGE.write_text(page(rows, ENTRIES, code))
                verdict = "ok" if row.holds else f"FAILED: {_why(row)}"
                taken = time.monotonic() - began
                print(f"models: {number + 1}/{len(left)} {entry.name}: {verdict} ({taken:.0f} s)", flush=True)
    PAGE.write_text(page(rows, ENTRIES, code))
    bad = record.missing(rows, wanted, code)
    print(f"models: {len(wanted) - len(bad)} of {len(wanted)} hold; {PAGE.relative_to(ROOT)} is written")
    return 1 if bad else 0


async def _one(entry: Entry, folder: Path, right: Reference, code: str, limit_s: float) -> record.Row:
    def tell(said: str) -> None:
        print(f"models:   {entry.name}: {said}", flush=True)

    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    model = await asyncio.to_thread(write, entry, folder / entry.name)
    if not entry.runs:
        return record.Row(entry.name, code, today, checked=await asyncio.to_thread(check, entry, model))
    return record.Row(entry.name, code, today, outcome=await trial(entry, model, right, limit_s, tell))


def _why(row: record.Row) -> str:
    if row.checked is not None:
        return row.checked.problem
    assert row.outcome is not None
    found = row.outcome
    wrong = [*found.unified.wrong, *(found.pair.wrong if found.pair is not None else ())]
    return found.problem or (
        wrong[0] if wrong else f"twins that are no others: {found.unified_twins}, {found.pair_twins}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make models")
    parser.add_argument("--models", default="", help="names with commas; all by default")
    parser.add_argument("--again", action="store_true", help="those with a good result of this code, too")
    parser.add_argument("--limit-s", type=float, default=300.0, help="seconds that one model may take")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
