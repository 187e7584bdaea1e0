"""What would be in an image: here this machine with the environment of the tests."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tandem.kube.kinds import Json

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Image:
    """`user` is who a container runs as where nobody says it, as USER of an image does."""

    user: int = 65532
    work: Path = field(default_factory=Path.cwd)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that every container starts with."""
        return {
            "PATH": f"{Path(sys.prefix) / 'bin'}:{_PATH}",
            "HOME": "/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
            # Cores are shared by all pods of the test.
            "OMP_NUM_THREADS": "1",
        }

    def launch(
        self,
        container: Json,
        pod: Json,
        directory: Path,
        argv: list[str],
        environment: dict[str, str],
        mounts: list[Json],
    ) -> Json:
        """What `launch.py` is told."""
        common = pod["spec"].get("securityContext") or {}
        own = container.get("securityContext") or {}
        user = own.get("runAsUser", common.get("runAsUser", self.user))
        group = own.get("runAsGroup", common.get("runAsGroup", user))
        extra = [common["fsGroup"]] if "fsGroup" in common else []
        return {
            "directory": str(directory),
            "argv": argv,
            "env": environment,
            "cwd": container.get("workingDir") or str(self.work),
            "uid": user,
            "gid": group,
            "groups": [*extra, *(common.get("supplementalGroups") or ())],
            "mounts": mounts,
            "read_only_root": bool(own.get("readOnlyRootFilesystem")),
            "open": sorted({str(self.work), sys.prefix, sys.base_prefix, os.path.realpath(sys.executable)}),
        }
