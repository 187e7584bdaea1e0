"""The private directory of one run: logs, the ticket key, sockets, and the file that lists the workers for the
router."""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tandem.apps.cli.registry import RUN_PREFIX
from tandem.core.entropy import Entropy
from tandem.process.workers_file import ServiceEntry

_KEY_BYTES: Final = 32
_BASE_MAX: Final = 50
_TAIL_BYTES: Final = 16 * 1024


class RunDirectory:
    """Readable by this user only. The path is kept short, as a Unix socket's has at most 107 characters."""

    def __init__(self) -> None:
        usual = tempfile.gettempdir()
        self.path = Path(tempfile.mkdtemp(prefix=RUN_PREFIX, dir=usual if len(usual) <= _BASE_MAX else "/tmp"))
        self.logs = self.path / "logs"
        self.sockets = self.path / "s"
        self._workers: list[dict[str, object]] = []
        self._services: tuple[ServiceEntry, ...] = ()
        self.logs.mkdir(mode=0o700)
        self.sockets.mkdir(mode=0o700)

    @property
    def key_file(self) -> Path:
        return self.path / "ticket.key"

    @property
    def fleet_file(self) -> Path:
        return self.path / "fleet.json"

    @property
    def control_socket(self) -> Path:
        return self.path / "control"

    def draw_key(self, entropy: Entropy) -> None:
        """Write a fresh ticket key as hex. It lives as long as the run and never shows in a command line."""
        self._write(self.key_file, entropy.token(_KEY_BYTES).hex() + "\n")

    def publish(self, addresses: Sequence[str], drains: Mapping[str, float]) -> None:
        """Replace the fleet file atomically: a reader sees the old list or the new one. `drains` gives, by address,
        the seconds within which some of the workers are to leave."""
        workers: list[dict[str, object]] = [{"address": address} for address in addresses]
        for worker in workers:
            if (within_s := drains.get(str(worker["address"]))) is not None:
                worker["drain_within_s"] = within_s
        self._workers = workers
        self._write_fleet()

    def tell(self, service: ServiceEntry) -> None:
        """Publish what the router has to know of the service besides its workers."""
        if self._services != (service,):
            self._services = (service,)
            self._write_fleet()

    def _write_fleet(self) -> None:
        services = {"services": msgspec.to_builtins(self._services)} if self._services else {}
        self._write(self.fleet_file, json.dumps({"workers": self._workers, **services}))

    def _write(self, path: Path, text: str) -> None:
        fresh = path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        fresh.replace(path)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log, empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
