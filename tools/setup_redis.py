"""Sees to a redis-server for the tests of the shared index: `python tools/setup_redis.py`. Never fails.

Where there is none, and this is root on a machine with apt, the package is installed, without starting its service.
Otherwise these tests are skipped, and this says what to install.
"""

import os
import shutil
import subprocess
import sys
from typing import Final

_PACKAGE: Final = "redis-server"
_BOUND_S: Final = 120
_COMMANDS: Final = (
    ("apt-get", "install", "-y", "-q", "--no-install-recommends", _PACKAGE),
    ("apt-get", "update", "-q"),
    ("apt-get", "install", "-y", "-q", "--no-install-recommends", _PACKAGE),
)


def main() -> int:
    """Look, install if that can be done, look again."""
    if shutil.which(_PACKAGE) is None and shutil.which("apt-get") is not None and os.geteuid() == 0:
        print(f"setup: installing {_PACKAGE}")
        install()
    if shutil.which(_PACKAGE) is None:
        print(f"setup: there is no {_PACKAGE}; tests of the shared index are skipped until version 7 is installed")
    return 0


def install() -> None:
    """Without a look at the package lists first: they may be fresh. Runlevel 1 keeps the service from starting."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in _COMMANDS:
        try:
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, timeout=_BOUND_S, check=False)
        except subprocess.TimeoutExpired:
            print(f"setup: {' '.join(command)} took longer than {_BOUND_S} s")
        if shutil.which(_PACKAGE) is not None:
            return


if __name__ == "__main__":
    sys.exit(main())
