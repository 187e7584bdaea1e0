"""Where Prometheus scrapes routers and workers on Ray: a file for its `file_sd_configs`, beside Ray's own."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from tandem.apps.cli.registry import MemberEntry

FILE: Final = "tandem_metrics_service_discovery.json"
"""In the session folder of Ray on the head, where Ray has `prom_metrics_service_discovery.json`."""
_JOB: Final = "tandem"


def targets(members: Iterable[MemberEntry]) -> bytes:
    """The content of the file: a group for each process that serves metrics, with its name and role as labels."""
    groups = [
        {"labels": {"job": _JOB, "role": each.role, "name": each.name}, "targets": [each.metrics]}
        for each in sorted(members, key=lambda each: each.name)
        if each.metrics
    ]
    return msgspec.json.encode(groups)


class DiscoveryFile:
    """The file in one folder; a reader sees the old content or the new one."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._written: bytes | None = None

    def write(self, members: Iterable[MemberEntry]) -> None:
        """Replace the file where it would differ. Raises `OSError`."""
        content = targets(members)
        if content == self._written:
            return
        fresh = self.path.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(content)
        fresh.replace(self.path)
        self._written = content

    def remove(self) -> None:
        """Nothing is scraped any more. Raises `OSError`."""
        self.path.unlink(missing_ok=True)
