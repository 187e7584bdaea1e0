"""The faults that can be drilled: a kind of fault at a stage of a request, and which process it strikes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.generation import RequestStatus
from tandem.apps.cli.registry import MemberEntry
from tandem.apps.cli.supervisor import ROUTER
from tandem.core.errors import TandemError

KINDS: Final = ("kill-prefill", "kill-decode", "freeze-decode", "restart-router", "corrupt-kv", "cut-link")
STAGES: Final = ("queue", "prefill", "transfer", "first-token", "decode")
NEED_PERMISSION: Final = ("corrupt-kv", "cut-link")
"""Kinds that the struck worker itself has to help with; `tandem up --drills` lets it."""


@dataclass(frozen=True)
class Cell:
    """One fault at one stage."""

    kind: str
    stage: str

    def __str__(self) -> str:
        return f"{self.kind} during {self.stage}"


def check_allowed(cells: Sequence[Cell], members: Sequence[MemberEntry], drills: bool) -> None:
    """Raise `bad_setting` for cells that this platform cannot be drilled with."""
    for cell in cells:
        if cell.kind in NEED_PERMISSION and not drills:
            problem = f"{cell.kind} needs workers that let themselves be damaged"
            raise TandemError("bad_setting", f"{problem}: start the platform with `tandem up --drills`")
        if cell.kind == "kill-prefill" and not _of(members, "prefill"):
            raise TandemError("bad_setting", "kill-prefill needs a prefill worker, and the platform has none")
        if cell.stage in ("transfer", "first-token") and not _of(members, "prefill"):
            raise TandemError("bad_setting", f"without prefill workers no request has a stage {cell.stage!r}")


def victim(cell: Cell, number: int, standing: RequestStatus, members: Sequence[MemberEntry]) -> MemberEntry:
    """The process to strike in round `number` (from 0): one that carries the request, else each in its turn.

    `cut-link` alternates between the decode and the prefill worker of the request. `corrupt-kv` strikes where
    blocks arrive.
    """
    if cell.kind == "restart-router":
        return _of(members, ROUTER)[0]
    decoders = (*_of(members, "decode"), *_of(members, "unified"), *_of(members, "auto"))
    prefills = _of(members, "prefill")
    wants_prefill = cell.kind == "kill-prefill" or (cell.kind == "cut-link" and number % 2 == 1 and bool(prefills))
    candidates, carrier = (prefills, standing.prefill) if wants_prefill else (decoders, standing.decode)
    return next((member for member in candidates if member.name == carrier), candidates[number % len(candidates)])


def _of(members: Sequence[MemberEntry], role: str) -> tuple[MemberEntry, ...]:
    return tuple(member for member in members if member.role == role)
