"""Moves modules and rewrites everything that names them: `python -m tools.move_modules tools/rooms.txt`.

A table has one line for each module: its old dotted name, then its new one. A module that is no longer where the
table says is left alone, so the same table brings a branch that began before the move up to date: merge the branch's
own commits, run it again. Imports are rewritten by their syntax, other dotted names and paths by their text.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_TEXTS: Final = (".py", ".pyi", ".md", ".toml", ".yaml", ".yml", ".json", ".txt", ".cfg", ".tpl", ".svg", "")
"""Endings of files in which modules are named; other files are left alone."""
_DONE: Final = "\0"
"""Stands before a name that is a new one already, though there is an old one that reads alike."""


def main() -> int:
    """Carry out the table; exits with 1 when a module and its new place both exist."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("table", type=Path, help="a line for each module: the old dotted name, the new one")
    options = parser.parse_args()
    table = read_table(options.table.read_text())
    both = [new for old, new in table.items() if _file(old) is not None and _file(new) is not None]
    if clashes := [new for new in both if new not in table]:
        print(f"already there: {', '.join(clashes)}", file=sys.stderr)
        return 1
    moved = move(table)
    rewritten = [path for path in texts() if path != options.table and rewrite(path, table)]
    print(f"{moved} modules moved, {len(rewritten)} files rewritten")
    return 0


def read_table(text: str) -> dict[str, str]:
    """New dotted names by old ones."""
    return dict(line.split() for line in text.splitlines() if line.strip() and not line.startswith("#"))


def move(table: Mapping[str, str]) -> int:
    """Carry out the moves with `git mv`, and make the packages that they need; how many modules moved."""
    moved = 0
    for old, new in sorted(table.items(), reverse=True):
        if (source := _file(old)) is None:
            continue
        package = source.name == "__init__.py"
        target = Path(*new.split("."), "__init__.py") if package else Path(*new.split(".")).with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", str(source), str(target)], check=True)
        moved += 1
    return moved


def rewritten(source: str, table: Mapping[str, str], python: bool) -> str:
    """The text with every name of a moved module in it replaced: in `python`, `from package import module` too."""
    if python:
        source = _split_imports(source, table)
    names = {new: new for new in table.values()} | dict(table)
    source = _dotted(names).sub(lambda found: names[found.group()], source).replace(_DONE, "")
    paths = {old.replace(".", "/"): new.replace(".", "/") for old, new in names.items()}
    return _paths(paths).sub(lambda found: paths[found.group()], source)


def _split_imports(source: str, table: Mapping[str, str]) -> str:
    """`from package import module` of moved modules, each on a line of its own under its new package."""
    lines = source.splitlines(keepends=True)
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) and node.module]
    for node in sorted(found, key=lambda node: -node.lineno):
        moved = [name for name in node.names if f"{node.module}.{name.name}" in table]
        if not moved:
            continue
        indent = " " * node.col_offset
        kept = [name for name in node.names if name not in moved]
        new = [f"{indent}from {node.module} import {', '.join(map(_spelled, kept))}\n"] if kept else []
        for name in moved:
            package, _, last = table[f"{node.module}.{name.name}"].rpartition(".")
            called = name.asname or name.name
            new.append(f"{indent}from {_DONE}{package} import {last}{'' if last == called else f' as {called}'}\n")
        lines[node.lineno - 1 : node.end_lineno] = new
    return "".join(lines)


def _spelled(name: ast.alias) -> str:
    return name.name if name.asname is None else f"{name.name} as {name.asname}"


def _dotted(table: Mapping[str, str]) -> re.Pattern[str]:
    """Old dotted names, the longest first, as whole words that no attribute or path leads to."""
    names = sorted(table, key=len, reverse=True)
    return re.compile(rf"(?<![\w./{_DONE}-])(?:" + "|".join(map(re.escape, names)) + r")(?![\w/-])")


def _paths(paths: Mapping[str, str]) -> re.Pattern[str]:
    names = sorted(paths, key=len, reverse=True)
    return re.compile(
        r"(?<![\w-])(?:" + "|".join(map(re.escape, names)) + r")(?=\.py\b|/|[^\w.-]|\.?$|\.\s)", re.MULTILINE
    )


def rewrite(path: Path, table: Mapping[str, str]) -> bool:
    try:
        source = path.read_text()
    except UnicodeDecodeError:
        return False
    new = rewritten(source, table, path.suffix in (".py", ".pyi"))
    if new != source:
        path.write_text(new)
    return new != source


def texts() -> Iterator[Path]:
    """Tracked files that may name modules."""
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    for name in listed.split("\0"):
        path = Path(name)
        if name and path.suffix in _TEXTS and path.is_file() and not path.is_symlink():
            yield path


def _file(module: str) -> Path | None:
    path = Path(*module.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


if __name__ == "__main__":
    raise SystemExit(main())
