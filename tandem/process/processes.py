"""The process-control seam: starting, watching and signalling service processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Command:
    """A command to run. `name` is what people see in the table and the logs."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]


class Process(Protocol):
    """A running process. `signal` takes the number, as in `os.kill`."""

    @property
    def pid(self) -> int: ...

    def signal(self, number: int) -> None: ...

    async def lines(self) -> Sequence[str] | None:
        """The next lines of its standard output, or None at the end."""
        ...

    async def wait(self) -> int:
        """The exit status, negative for a signal."""
        ...


class ProcessControl(Protocol):
    """Starts processes; the simulator and `tandem up` have one each."""

    async def start(self, command: Command) -> Process: ...
