"""`python -m control_plane`: the operator as a process. Settings are flags (`--namespace a`), environment or file."""

import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Final

from control_plane.objects.installation import Installation
from control_plane.operator.service import open_service
from control_plane.operator.settings import OperatorSettings
from tandem.core.errors import TandemError
from tandem.process.logs import EventLines, set_up_logs
from tandem.process.run import fail, serve_process
from tandem.process.settings import load_settings
from tandem.process.settings_help import help_asked

_DRAIN_S: Final = 5.0
_REPEATED: Final = ("namespace", "router_url")


def main() -> int:
    """Run an operator to its end; the exit status."""
    if help_asked("control_plane", OperatorSettings, sys.argv[1:]):
        return 0
    events = EventLines(sys.stdout if "--events" in sys.argv else None)
    try:
        settings = load_settings(OperatorSettings, flags(sys.argv[1:]), os.environ)
        set_up_logs(json_lines=settings.log.format == "json", level=settings.log.level)
        events = EventLines(sys.stdout if settings.events else None)
    except TandemError as error:
        return fail(events, error)
    return serve_process(lambda lines: open_service(settings, lines), events, _DRAIN_S)


def flags(argv: Sequence[str]) -> list[str]:
    """The arguments under the names of their settings: underscores for dashes, `--installation.worker_image` for
    `--worker-image`, and a flag that may be given several times joined into one."""
    shared = {each.name for each in fields(Installation)}
    found: list[str] = []
    repeated: dict[str, list[str]] = {}
    rest = list(argv)
    while rest:
        part = rest.pop(0)
        if not part.startswith("--"):
            found.append(part)
            continue
        name, equals, value = part[2:].partition("=")
        name = name.replace("-", "_")
        if name in _REPEATED:
            repeated.setdefault(name, []).append(value if equals or not rest else rest.pop(0))
            continue
        found.append(f"--{f'installation.{name}' if name in shared else name}{equals}{value}")
    return [*found, *(f"--{name}={','.join(values)}" for name, values in repeated.items())]


if __name__ == "__main__":
    sys.exit(main())
