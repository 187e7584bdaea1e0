"""One supervised process as people see it, and what its event lines mean."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.service.processes import Command


@dataclass
class Member:
    """`state` is `starting`, `loading`, `ready`, `restarting`, `stopping` or `stopped`."""

    command: Command
    role: str
    state: str = "starting"
    loaded: float | None = None
    """Share of the loading that is done."""
    address: str = ""
    metrics: str = ""
    """Where its metrics can be scraped; the router's are on its own port."""
    pid: int | None = None
    restarts: int = 0
    ever_ready: bool = False
    problem: str = ""
    """What the process itself said of why it ends."""
    note: str = ""
    exit_status: int | None = None
    """Of the last life that ended."""

    @property
    def name(self) -> str:
        return self.command.name

    def begin(self, pid: int) -> None:
        """A new process runs."""
        self.pid, self.state, self.loaded, self.address, self.problem, self.note = pid, "starting", None, "", "", ""

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
            case "draining" | "stopping":
                self.state = "stopping"
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
