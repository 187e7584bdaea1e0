"""What keeps the code enterable: sizes, names, circles, references to nothing. Reads files, imports none."""

import ast
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 400
LONGER = {
    "benchmarks/fleet/worker.py": 540,
    "benchmarks/stage_side.py": 415,
    "benchmarks/transfer.py": 410,
    "router/api/core.py": 440,
    "router/dispatch/dispatcher.py": 465,
    "router/fleet/fleet.py": 435,
    "router/split/plan.py": 425,
    "tandem/core/messages.py": 580,
    "tools/demo_model/grammar.py": 775,
    "tools/demo_model/words.py": 465,
}
"""Files that were longer when this rule came, and what they may have: no new ones, and none of these grows."""
PROGRAMS = ("benchmarks", "tools")
"""Folders of programs that know nothing of each other: each file has names of its own."""


def sources() -> dict[str, str]:
    """Every Python file of ours but tests and generated ones, by path."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = [name for name in listed.split() if not name.startswith("tests/") and "_pb2" not in name]
    return {name: (ROOT / name).read_text() for name in names if (ROOT / name).exists()}


SOURCES = sources()
TREES = {name: ast.parse(source) for name, source in SOURCES.items()}


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 800


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{path}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long


def test_no_file_is_longer_than_one_sitting() -> None:
    lines = {path: source.count("\n") for path, source in SOURCES.items()}
    assert not {path: count for path, count in lines.items() if count > LONGER.get(path, FILE_LINES_MAX)}
    assert not {path for path in LONGER if lines.get(path, 0) <= FILE_LINES_MAX}, "take these out of LONGER"


def packages() -> Iterator[tuple[str, str, str]]:
    """Package, public class and file of each class."""
    for path, tree in TREES.items():
        folder = path.rpartition("/")[0]
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield folder, node.name, path


def test_no_two_public_classes_of_a_package_share_a_name() -> None:
    counted = Counter((package, name) for package, name, _ in packages() if package not in PROGRAMS)
    assert not [each for each, count in counted.items() if count > 1]


def test_modules_do_not_import_each_other_in_circles() -> None:
    """Imports for type checking alone count, too."""
    modules = {module_of(path) for path in SOURCES}
    imports: dict[str, set[str]] = defaultdict(set)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for each in node.names:
                    inner = f"{node.module}.{each.name}"
                    imports[module_of(path)].add(inner if inner in modules else node.module)
            elif isinstance(node, ast.Import):
                imports[module_of(path)].update(each.name for each in node.names)
    left = {module: wanted & modules - {module} for module, wanted in imports.items()}
    while free := [module for module, wanted in left.items() if not wanted & left.keys()]:
        for module in free:
            del left[module]
    assert not left


@pytest.mark.parametrize("pattern", [r"\bDESIGN\b", r"§\s?\d", r"\b(TODO|FIXME|XXX)\b"])
def test_nothing_refers_to_what_is_not_here(pattern: str) -> None:
    assert not [path for path, source in SOURCES.items() if re.search(pattern, source)]


def headings(page: str) -> set[str]:
    """The anchors of a page, as web hosts of repositories make them."""
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_links_between_documents_lead_somewhere() -> None:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    dead = []
    for name in listed.split():
        page = (ROOT / name).read_text()
        for target in re.findall(r"\]\(([^)\s]+)\)", page):
            path, _, anchor = target.partition("#")
            if re.match(r"\w+:", target):
                continue
            at = (ROOT / name).parent / path if path else ROOT / name
            if not at.exists() or (anchor and at.suffix == ".md" and anchor not in headings(at.read_text())):
                dead.append(f"{name}: {target}")
    assert not dead


def test_documents_name_files_that_are_there() -> None:
    """Paths in backticks that begin with one of our folders."""
    folders = {path.partition("/")[0] for path in SOURCES} | {"docs", "deploy", "examples", "protos", "tests"}
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    missing = []
    for name in listed.split():
        if name == "CHANGELOG.md":
            continue
        for path in re.findall(r"`([a-z_]+/[\w./-]*(?:\.\w+|/))`", (ROOT / name).read_text()):
            if path.partition("/")[0] in folders and not (ROOT / path).exists() and "NAME" not in path:
                missing.append(f"{name}: {path}")
    assert not missing


def test_documents_name_python_files_that_are_there() -> None:
    """Bare names, as in a list of what a folder has."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    there = {name.rpartition("/")[2] for name in listed} | {"NAME.py"}
    missing = [
        f"{name}: {file}"
        for name in listed
        if name.endswith(".md") and name != "CHANGELOG.md"
        for file in re.findall(r"`(?:[\w./]*/)?(\w+\.py)\b", (ROOT / name).read_text())
        if file not in there
    ]
    assert not missing
