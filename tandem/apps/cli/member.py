"""One supervised process as people see it, and what its event lines mean."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.process.processes import Command


@dataclass(frozen=True)
class DrainReport:
    """Attempts that finished while their worker drained, that their router took back (moved elsewhere or cancelled
    by their clients), and that were cut off at the bound."""

    finished: int
    taken: int
    cut: int


@dataclass
class Member:
    """`state` is `starting`, `loading`, `alive`, `ready`, `fenced`, `draining`, `restarting`,
    `stopping` or `stopped`."""

    command: Command
    role: str
    state: str = "starting"
    loaded: float | None = None
    """Share of the loading that is done."""
    address: str = ""
    metrics: str = ""
    """The address at which the member's metrics can be scraped without a key."""
    pid: int | None = None
    restarts: int = 0
    ever_ready: bool = False
    problem: str = ""
    """The reason that the process itself gave for its end."""
    note: str = ""
    exit_status: int | None = None
    """The exit status of the member's last process that ended."""
    drain_within_s: float | None = None
    """Within how many seconds this life is to end, once that was asked for."""
    removed: bool = False
    """Nothing takes its place when it ends."""
    farewell: DrainReport | None = None
    """The process's own report of what became of its work when it drained."""

    @property
    def name(self) -> str:
        return self.command.name

    def begin(self, pid: int) -> None:
        """A new process runs."""
        self.pid, self.state, self.loaded, self.address, self.problem, self.note = pid, "starting", None, "", "", ""
        self.drain_within_s = None

    def take(self, line: str) -> bool:
        """Learn from a line of standard output; whether it was an event."""
        event = _event(line)
        match event.get("event"):
            case "listening":
                self.address = str(event.get("address", ""))
            case "metrics":
                self.metrics = str(event.get("address", ""))
            case "loading":
                self.state, self.loaded = "loading", _share(event.get("fraction"))
            case "ready":
                self.state, self.loaded, self.ever_ready = "ready", None, True
            case "draining":
                held = {kind: count for kind, count in event.items() if isinstance(count, int)}
                self.state, self.note = "draining", f"holds {_in_words(held)}" if held else ""
            case "alive" | "fenced" as state:
                self.state, self.loaded = state, None
            case "drained":
                self.farewell = DrainReport(*(_count(event.get(key)) for key in ("finished", "taken", "cut")))
            case "stopping":
                self.state, self.note = "stopping", ""
            case "failed":
                self.problem = str(event.get("message", ""))
            case _:
                return False
        return True


def _event(line: str) -> Mapping[str, Any]:
    if not line.startswith("{"):
        return {}
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return event if isinstance(event, dict) else {}


def _share(value: object) -> float | None:
    return min(1.0, max(0.0, float(value))) if isinstance(value, (int, float)) else None


def _in_words(held: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in held.items())


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
