"""Helm, as a person runs it."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

CHARTS = Path("deploy/helm")
_BOUND_S = 180.0


@dataclass(frozen=True)
class Helm:
    """One program with the credentials of one cluster."""

    program: Path
    kubeconfig: Path
    home: Path

    def __call__(self, *arguments: str) -> str:
        """What it says; AssertionError with that when it fails."""
        own = {
            name: str(self.home / name.lower()) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
        }
        done = subprocess.run(
            [str(self.program), *arguments],
            capture_output=True,
            text=True,
            timeout=_BOUND_S,
            env={**os.environ, **own, "KUBECONFIG": str(self.kubeconfig)},
        )
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}"
        return done.stdout
