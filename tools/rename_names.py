"""Renames modules, names and words in the whole repository: `python -m tools.rename_names tools/words.txt`.

A line of the table is one of

    module  old.dotted.module           new.dotted.module
    name    old.dotted.module.OldName   NewName
    word    old_identifier              new_identifier

A `name` is a class, function or constant at the top of its module. It is followed through imports and their aliases,
through attributes of an imported module, annotations that are strings, and what prose quotes in backticks; a local
variable that reads alike is left alone. A `word` is an identifier that means one thing wherever it stands: every
occurrence in Python code is replaced, none in strings. Names are renamed first, then modules
move, then words are replaced.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tools import move_modules

_QUOTED: Final = "`[^`\n]+`"
_TYPE: Final = r"(?=.*\b[A-Z][a-z])[\w.]+(\[[\w\[\], .|]+\])?( \| [\w\[\], .]+)*"
_COMPUTED: Final = r"(?<!\{)\{[^{}]+\}"


@dataclass
class Table:
    """What is renamed. `names` has new names by module and old name."""

    modules: dict[str, str] = field(default_factory=dict)
    names: dict[str, dict[str, str]] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)


def read_table(text: str) -> Table:
    """Raises `ValueError` for a line that is none."""
    table = Table()
    for line in text.splitlines():
        if not (parts := line.partition("#")[0].split()):
            continue
        match parts:
            case ["module", old, new]:
                table.modules[old] = new
            case ["name", old, new]:
                module, _, name = old.rpartition(".")
                table.names.setdefault(module, {})[name] = new
            case ["word", old, new]:
                table.words[old] = new
            case _:
                raise ValueError(f"no line of a table: {line!r}")
    return table


def main() -> int:
    """Carry out the table; exits with 1, and changes nothing, when a new name is taken."""
    parser = argparse.ArgumentParser(prog="python -m tools.rename_names", description=__doc__)
    parser.add_argument("table", type=Path)
    options = parser.parse_args()
    table = read_table(options.table.read_text())
    sources = {path: path.read_text() for path in _python()}
    hand_on(sources, table)
    if problems := [*_taken(sources, table)]:
        print("\n".join(problems), file=sys.stderr)
        return 1
    changed = _rename(sources, replace(table, words={}))
    moved = move_modules.move(table.modules)
    texts = [path for path in move_modules.texts() if path != options.table]
    rewritten = sum(move_modules.rewrite(path, table.modules) for path in texts)
    if table.words:
        changed += _rename({path: path.read_text() for path in _python()}, Table(words=table.words))
    prose = sum(_rewrite_prose(path, table) for path in _prose() if path != options.table)
    print(f"{changed} files renamed in, {moved} modules moved, {rewritten} files rewritten, {prose} texts")
    return 0


def _rename(sources: Mapping[Path, str], table: Table) -> int:
    """Write what changes; how many files do."""
    new = {path: renamed(source, _module_of(path), table) for path, source in sources.items()}
    changed = [path for path, source in sources.items() if new[path] != source]
    for path in changed:
        path.write_text(new[path])
    return len(changed)


def hand_on(sources: Mapping[Path, str], table: Table) -> None:
    """Add what modules import and others find there, as in packages that hand names on."""
    trees = {_module_of(path): ast.parse(source) for path, source in sources.items()}
    found = True
    while found:
        found = False
        for module, tree in trees.items():
            for node in tree.body:
                if not isinstance(node, ast.ImportFrom) or not node.module:
                    continue
                for each in node.names:
                    new = table.names.get(node.module, {}).get(each.name)
                    known = table.names.get(module, {})
                    if new is not None and each.asname is None and each.name not in known:
                        table.names.setdefault(module, {})[each.name] = new
                        found = True


def renamed(source: str, module: str, table: Table) -> str:
    """The text of a Python module with its names and words replaced."""
    tree = ast.parse(source)
    names, members, spots = _bindings(tree, module, table)
    finder = _Finder(names, members)
    finder.visit(tree)
    spots.update(finder.spots)
    spots.update(_definitions(tree, names, module, table))
    words = table.words
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string in words and token.start not in spots:
            spots[token.start] = token.string, words[token.string]
    source = _replaced(source, spots)
    quoted = {**names, **{f"{alias}.{old}": f"{alias}.{new}" for (alias, old), new in members.items()}}
    quoted |= {f"{at}.{old}": f"{at}.{new}" for at, pairs in table.names.items() for old, new in pairs.items()}
    return _in_comments_and_strings(source, quoted, names, words)


Spots = dict[tuple[int, int], tuple[str, str]]
"""By row from 1 and column: the identifier there, and its new name."""


def _bindings(
    tree: ast.Module, module: str, table: Table
) -> tuple[dict[str, str], dict[tuple[str, str], str], Spots]:
    """New names by what they are called here, by alias of a module and name, and the spots of import statements."""
    names = dict(table.names.get(module, {}))
    members: dict[tuple[str, str], str] = {}
    spots: Spots = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                new = table.names.get(node.module, {}).get(each.name)
                if new is not None:
                    spots[each.lineno, each.col_offset] = each.name, new
                    if each.asname is None:
                        names[each.name] = new
                for old, fresh in table.names.get(f"{node.module}.{each.name}", {}).items():
                    members[each.asname or each.name, old] = fresh
        elif isinstance(node, ast.Import):
            for each in node.names:
                for old, fresh in table.names.get(each.name, {}).items():
                    members[each.asname or each.name, old] = fresh
    return names, members, spots


class _Finder(ast.NodeVisitor):
    """Where names are used, but for those that a function has of its own."""

    def __init__(self, names: Mapping[str, str], members: Mapping[tuple[str, str], str]) -> None:
        self.spots: Spots = {}
        self._names = names
        self._members = members
        self._own: list[set[str]] = []

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        arguments = node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        parameters += [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
        for each in parameters:
            if each.annotation is not None:
                self.visit(each.annotation)
        for default in (*arguments.defaults, *(each for each in arguments.kw_defaults if each is not None)):
            self.visit(default)
        if not isinstance(node, ast.Lambda):
            for decorator in node.decorator_list:
                self.visit(decorator)
            if node.returns is not None:
                self.visit(node.returns)
        self._own.append({each.arg for each in parameters} | _assigned(node))
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        for statement in body:
            self.visit(statement)
        self._own.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit_FunctionDef(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Before Python 3.12 a tree does not say where within a string they are."""

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self._names and not any(node.id in own for own in self._own):
            self.spots[node.lineno, node.col_offset] = node.id, self._names[node.id]

    def visit_Attribute(self, node: ast.Attribute) -> None:
        new = self._members.get((ast.unparse(node.value), node.attr)) if self._members else None
        if new is not None and node.end_lineno is not None and node.end_col_offset is not None:
            self.spots[node.end_lineno, node.end_col_offset - len(node.attr)] = node.attr, new
        self.generic_visit(node)


def _assigned(function: ast.AST) -> set[str]:
    """Names that a function assigns, imports or defines itself."""
    found: set[str] = set()
    given: set[str] = set()
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            given.update(node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        elif isinstance(node, ast.Lambda):
            continue
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
        waiting.extend(ast.iter_child_nodes(node))
    return found - given


def _definitions(tree: ast.Module, names: Mapping[str, str], module: str, table: Table) -> Spots:
    """Where the module's own classes and functions are defined."""
    spots: Spots = {}
    own = table.names.get(module, {})
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name in own:
            skip = len("class " if isinstance(node, ast.ClassDef) else "def ")
            skip += len("async ") if isinstance(node, ast.AsyncFunctionDef) else 0
            spots[node.lineno, node.col_offset + skip] = node.name, own[node.name]
    return spots


def _replaced(source: str, spots: Spots) -> str:
    lines = source.splitlines(keepends=True)
    for (row, column), (old, new) in sorted(spots.items(), reverse=True):
        line = lines[row - 1]
        # Trees count columns in bytes, tokens in characters.
        at = column if line[column : column + len(old)] == old else _characters(line, column)
        assert line[at : at + len(old)] == old, (row, column, old, line)
        lines[row - 1] = line[:at] + new + line[at + len(old) :]
    return "".join(lines)


def _characters(line: str, column: int) -> int:
    return len(line.encode()[:column].decode(errors="ignore"))


def _in_comments_and_strings(
    source: str, quoted: Mapping[str, str], names: Mapping[str, str], words: Mapping[str, str]
) -> str:
    """What is quoted in backticks there, dotted names, annotations that are strings, and what strings compute."""
    inside, anywhere = _Replace({**quoted, **words}), _Replace(dict(words), attributes=True)
    called = _Replace({**quoted, **names})
    dotted = _Replace({old: new for old, new in quoted.items() if "." in old})
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    annotations = _string_annotations(ast.parse(source), lines)
    pieces: list[tuple[int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (tokenize.COMMENT, tokenize.STRING):
            continue
        text = token.string
        if token.type == tokenize.STRING and "f" in token.string.partition(token.string[-1])[0].lower():
            text = re.sub(_COMPUTED, lambda found: anywhere(called(found.group())), text)
        if token.start in annotations and names:
            text = called(text)
        text = re.sub(_QUOTED, lambda found: inside(found.group()), text)
        text = dotted(text)
        if text != token.string:
            begin = starts[token.start[0] - 1] + token.start[1]
            pieces.append((begin, starts[token.end[0] - 1] + token.end[1], text))
    for begin, end, text in reversed(pieces):
        source = source[:begin] + text + source[end:]
    return source


class _Replace:
    """Replaces whole words, the longest first."""

    def __init__(self, pairs: dict[str, str], *, attributes: bool = False) -> None:
        """With `attributes` behind a dot, too."""
        self._pairs = pairs
        ordered = "|".join(map(re.escape, sorted(pairs, key=len, reverse=True)))
        before = r"(?<!\w)" if attributes else r"(?<![\w.])"
        self._pattern = re.compile(rf"{before}(?:{ordered})(?!\w)") if pairs else None

    def __call__(self, text: str) -> str:
        return self._pattern.sub(lambda found: self._pairs[found.group()], text) if self._pattern else text


def _string_annotations(tree: ast.Module, lines: list[str]) -> set[tuple[int, int]]:
    """Rows and columns of strings that look like a type, as annotations do, and of what a module exports."""
    found: set[tuple[int, int]] = set()
    exported = {
        id(each)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for each in ast.walk(node.value)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) in exported or re.fullmatch(_TYPE, node.value):
            found.add((node.lineno, _characters(lines[node.lineno - 1], node.col_offset)))
    return found


def _taken(sources: Mapping[Path, str], table: Table) -> Iterator[str]:
    """New names that something in their module, or in one that imports it, already has."""
    modules = {_module_of(path): path for path in sources}
    for module, pairs in table.names.items():
        if module not in modules:
            yield f"there is no module {module}"
            continue
        source = sources[modules[module]]
        defined = _top_names(ast.parse(source))
        for old, new in pairs.items():
            if old not in defined:
                yield f"{module} has no {old}"
            elif new in defined and new not in pairs:
                yield f"{module} has {new} already"
    for path, source in sources.items():
        tree = ast.parse(source)
        names, _, _ = _bindings(tree, _module_of(path), table)
        bound = _top_names(tree)
        for old, new in names.items():
            if new in bound and new not in names and bound[new] != bound.get(old):
                yield f"{path} has {new} already, which {old} would become"
    for old, new in table.words.items():
        pattern = re.compile(rf"\b{new}\b")
        if any(pattern.search(source) for source in sources.values()):
            print(f"note: the word {new} (for {old}) is in use", file=sys.stderr)


def _top_names(tree: ast.Module) -> dict[str, int]:
    """What a module binds at its top, and in which line."""
    found: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node.lineno
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {each.asname or each.name.partition(".")[0]: node.lineno for each in node.names}
        else:
            for each in ast.walk(node):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    found[each.id] = each.lineno
    return found


def _python() -> Iterator[Path]:
    return (path for path in move_modules.texts() if path.suffix == ".py" and "_pb2" not in path.name)


def _prose() -> Iterator[Path]:
    return (path for path in move_modules.texts() if path.suffix in (".md", ".toml") and path.name != "CHANGELOG.md")


def _rewrite_prose(path: Path, table: Table) -> bool:
    """Names quoted in documents: where two modules have had the same one, only with their module before it."""
    counts: dict[str, set[str]] = {}
    for pairs in table.names.values():
        for old, new in pairs.items():
            counts.setdefault(old, set()).add(new)
    plain = {old: next(iter(new)) for old, new in counts.items() if len(new) == 1 and not old.islower()}
    dotted = {f"{at}.{old}": f"{at}.{new}" for at, pairs in table.names.items() for old, new in pairs.items()}
    source = path.read_text()
    if path.suffix == ".toml":
        # Lines of code, planted faults among them.
        replace = _Replace(plain | table.words)
        lines = source.splitlines(keepends=True) if "mutants" in path.parts else [source]
        text = "".join(line if line.startswith("#") or len(lines) == 1 else replace(line) for line in lines)
    else:
        replace = _Replace(plain | dotted | table.words)
        text = re.sub(_QUOTED, lambda found: replace(found.group()), source)
    if text != source:
        path.write_text(text)
    return text != source


def _module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


if __name__ == "__main__":
    raise SystemExit(main())
