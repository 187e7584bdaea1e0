"""What is known of every model, kept beside the page: one JSON file that `make models` adds to, model by model."""

import os
from pathlib import Path
from typing import Final

import msgspec

from tools.models.catalogue import ENTRIES, Entry
from tools.models.code_hash import ROOT
from tools.models.trial_types import Checked, Outcome

RECORD: Final = ROOT / "docs" / "models.json"


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result for one model, of code with this hash, on this day. One of `outcome` and `checked` is there."""

    name: str
    code: str
    date: str
    outcome: Outcome | None = None
    checked: Checked | None = None

    @property
    def holds(self) -> bool:
        """The model does what the page says of it."""
        return (self.outcome is not None and self.outcome.holds) or (self.checked is not None and self.checked.holds)


Rows = dict[str, Row]


def load(path: Path = RECORD) -> Rows:
    """By model; empty where nothing has been recorded."""
    return msgspec.json.decode(path.read_bytes(), type=Rows) if path.exists() else {}


def save(rows: Rows, path: Path = RECORD) -> None:
    """In the order of the catalogue, without models that are not in it any more."""
    ordered = {entry.name: rows[entry.name] for entry in ENTRIES if entry.name in rows}
    written = path.with_suffix(".tmp")
    written.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
    os.replace(written, path)


def missing(rows: Rows, entries: tuple[Entry, ...], code: str) -> list[Entry]:
    """Those without a good result of this code: what is left to do, and what an incomplete page lacks."""
    return [entry for entry in entries if (row := rows.get(entry.name)) is None or row.code != code or not row.holds]
