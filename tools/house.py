"""How large the house is, and how far a request walks in it: `python -m tools.house [TREE ...]`.

Prints a table, a column for each tree (default: this one): files, lines, public classes whose name another has too,
arrows between modules that run in a circle; files and functions that one simulated request enters from the
dispatcher on (prefill and decode, 8 tokens), and calls of Python functions for it and for each further token. Counted
with `sys.setprofile`, deterministic; the simulation's own code does not count.
"""

import ast
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_PRODUCT: Final = (
    "control_plane",
    "decode_worker",
    "kv_store",
    "kv_transfer",
    "prefill_worker",
    "router",
    "tandem",
)
_BESIDE: Final = ("benchmarks", "tools")
_WALK: Final = """
import json, sys
from dataclasses import replace
from importlib import import_module
home = "tandem.apps.simulation" if sys.argv[1] == "apps" else "tandem.sim"
world, traffic = import_module(home + ".world"), import_module(home + ".traffic")
even = dict(requests=1, prompt_tokens=(64, 64), long_prompt_share=0.0, shared_share=0.0, branches_share=0.0,
            cancel_share=0.0, stop_share=0.0, urgent_share=0.0)
entered, calls, asked = set(), 0, world.ask
outside = "/sim/", "/simulation/", "site-packages"

def note(frame, event, argument):
    global calls
    code = frame.f_code
    ours = code.co_filename.startswith(sys.argv[2]) and not any(each in code.co_filename for each in outside)
    if event == "call" and ours and code.co_name != "<module>":
        entered.add((code.co_filename, code.co_firstlineno, code.co_name))
        calls += 1

async def ask(request, *rest):
    if request.request_id.startswith("req"):
        sys.setprofile(note)
    try:
        return await asked(request, *rest)
    finally:
        sys.setprofile(None)

world.ask = ask
found = []
for tokens in (8, 8, 40):
    entered.clear()
    calls = 0
    settings = world.WorldSettings(traffic=traffic.TrafficProfile(**even, output_tokens=(tokens, tokens)))
    requests = traffic.draw_traffic(settings.traffic, 1)
    report = world.simulate(settings, 1, world.Script(requests, ()))
    assert report.handed_off and all(each.end == "done" for each in report.outcomes), report
    found.append((len({file for file, _, _ in entered}), len(entered), calls))
(_, _, first), (files, functions, again), (_, _, longer) = found
print(json.dumps({"files of a request": files, "functions of a request": functions, "calls for a request": again,
                  "calls for a token more": (longer - again) / 32}))
"""
"""The second run counts: the first one fills caches."""


def main() -> int:
    """Print the table."""
    trees = [Path(each) for each in sys.argv[1:]] or [Path()]
    columns = [{**size(tree), **walk(tree)} for tree in trees]
    for row in columns[0]:
        print(f"{row:45}" + "".join(f"{column.get(row, 0):>12,.6g}" for column in columns))
    return 0


def size(tree: Path) -> dict[str, float]:
    """What can be counted without running anything."""
    sources = _sources(tree)
    product = {path: source for path, source in sources.items() if path.partition("/")[0] in _PRODUCT}
    classes = [
        (path.rpartition("/")[0], node.name)
        for path, source in product.items()
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    anywhere, in_packages = Counter(name for _, name in classes), Counter(classes)
    return {
        "files, product": len(product),
        "lines, product": sum(source.count("\n") for source in product.values()),
        "files, benchmarks and tools": len(sources) - len(product),
        "public classes": len(classes),
        "names that several classes have": sum(count > 1 for count in anywhere.values()),
        "the same within a folder": sum(count > 1 for count in in_packages.values()),
        "modules in circles, or between two": len(_in_circles(sources)),
    }


def walk(tree: Path) -> dict[str, float]:
    """What one request enters."""
    home = "apps" if (tree / "tandem" / "apps").is_dir() else "sim"
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve()), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-P", "-c", _WALK, home, str(tree.resolve())]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _sources(tree: Path) -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=tree, check=True, capture_output=True, text=True).stdout
    return {
        name: (tree / name).read_text()
        for name in listed.split()
        if name.partition("/")[0] in (*_PRODUCT, *_BESIDE) and (tree / name).exists()
    }


def _in_circles(sources: Mapping[str, str]) -> set[str]:
    """Modules that import each other, those that only wait for such ones left out; type checking counts."""
    names = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in sources}
    imports: dict[str, set[str]] = defaultdict(set)
    for module, path in names.items():
        for node in ast.walk(ast.parse(sources[path])):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = (f"{node.module}.{each.name}" for each in node.names)
                imports[module].update(each if each in names else str(node.module) for each in inner)
            elif isinstance(node, ast.Import):
                imports[module].update(each.name for each in node.names)
    left = {module: imports[module] & names.keys() - {module} for module in names}
    while True:
        wanted = {each for needs in left.values() for each in needs}
        ends = [module for module, needs in left.items() if not needs & left.keys() or module not in wanted]
        if not ends:
            return set(left)
        for module in ends:
            del left[module]
        left = {module: needs & left.keys() for module, needs in left.items()}


if __name__ == "__main__":
    sys.exit(main())
