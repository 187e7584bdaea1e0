"""Constraints for installing into an image on a base with vLLM: `python3 pins.py FILE` prints them for pip.

Every package of the base stays as Python finds it there: of two with one name the first counts, and versions that pip
cannot read are left out. Packages that the base does not have are pinned by FILE, a constraints file of Tandem.
"""

import importlib.metadata
import re
import sys
from collections.abc import Mapping

from packaging.version import VERSION_PATTERN


def constraints(base: Mapping[str, str], pins: str) -> list[str]:
    """One line per package. `base` has its version by name."""
    version = re.compile(VERSION_PATTERN, re.VERBOSE | re.IGNORECASE)
    found = [f"{name}=={each}" for name, each in base.items() if version.fullmatch(each or "")]
    here = {_plain(name) for name in base}
    lines = (line.strip() for line in pins.splitlines())
    found += [line for line in lines if "==" in line and _plain(line.partition("==")[0]) not in here]
    return sorted(found)


def of_base() -> dict[str, str]:
    """Version by name of what Python finds here."""
    names = {each.name for each in importlib.metadata.distributions() if each.name}
    return {name: importlib.metadata.version(name) for name in names}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.writelines(f"{line}\n" for line in constraints(of_base(), file.read()))
