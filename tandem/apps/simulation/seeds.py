"""The seeds that a sweep runs, and the file of those that failed once."""

from pathlib import Path
from typing import NamedTuple

from tandem.core.errors import TandemError

_PLAIN = "plain:"


class Seed(NamedTuple):
    """A number, and whether the world it draws is a plain one (`tandem.apps.simulation.scenario.varied`)."""

    number: int
    plain: bool = False

    def __str__(self) -> str:
        return f"{self.number} (plain)" if self.plain else f"{self.number}"


def read_kept(path: Path) -> tuple[Seed, ...]:
    """The seeds that stand first on the lines of a file, with `plain:` in front where a plain world is meant. Raises
    `bad_setting`."""
    try:
        lines = path.read_text("utf-8").splitlines()
        return tuple(_seed(line.split()[0]) for line in lines if line.strip() and not line.startswith("#"))
    except (OSError, ValueError) as error:
        raise TandemError("bad_setting", f"--kept {path} cannot be read: {error}", param="kept") from error


def _seed(word: str) -> Seed:
    return Seed(int(word.removeprefix(_PLAIN)), word.startswith(_PLAIN))
