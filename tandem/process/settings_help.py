"""`--help` of a service process: every setting with its type and default, read off the settings class itself."""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any, get_type_hints

from tandem.process.settings import PREFIX

_MISSING = dataclasses.MISSING


def help_asked(program: str, kind: type[Any], argv: Sequence[str]) -> bool:
    """Print the help if it was asked for, and say whether it was."""
    if not {"-h", "--help"} & set(argv):
        return False
    sys.stdout.write(help_text(program, kind))
    return True


def help_text(program: str, kind: type[Any]) -> str:
    """One line per setting, nested ones with dotted keys."""
    lines = [f"usage: python -m {program} [--key value …] [--config FILE]", ""]
    lines += [f"  --{key:44} {what}" for key, what in _settings(kind, "")]
    lines += ["", f"Also as {PREFIX}KEY in the environment (dots as two underscores) or in a YAML or JSON file."]
    return "\n".join(lines) + "\n"


def _settings(kind: type[Any], prefix: str) -> Iterator[tuple[str, str]]:
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from _settings(hint, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, f"{_type_name(hint)}{_default(field)}"


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("pathlib.", "").replace("typing.", "")


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default is not _MISSING:
        return f", default {field.default}"
    return "" if field.default_factory is not _MISSING else ", required"
