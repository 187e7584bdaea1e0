"""Simulated code stays away from real time, real entropy, threads, sockets and everything that brings them in."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("tandem", "router", "prefill_worker", "decode_worker", "kv_store", "kv_transfer")
HEAVY = (
    "grpc",
    "uvicorn",
    "uvloop",
    "torch",
    "tokenizers",
    "transformers",
    "httptools",
    "redis",
    "prometheus_client",
)
IMPURE = ("time", "random", "uuid", "secrets", "socket", "threading", "concurrent.futures", "multiprocessing", "os")

EXCUSED = {"tandem.apps.simulation.loop": {"concurrent.futures"}, "tandem": {"os"}}
"""The virtual loop names the type of the executors that it refuses; the package tells gRPC how children begin."""

IMPORTED = """
import sys
import tandem.apps.simulation.world
print("\\n".join(sys.modules))
"""

AUDITED = """
import sys
seen = []
WATCHED = ("socket.", "_thread.start_new_thread", "subprocess.", "os.fork", "os.exec", "os.posix_spawn", "open")

def hook(event, arguments):
    if event.startswith(WATCHED) and watching:
        seen.append((event, str(arguments)[:200]))

watching = []
sys.addaudithook(hook)
from tandem.apps.simulation.world import WorldSettings, simulate
simulate(WorldSettings(), 0)
watching.append(True)
simulate(WorldSettings(), 1)
watching.clear()
print(seen)
"""


def output_of(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def modules() -> list[str]:
    """Everything that is loaded with the world."""
    return output_of(IMPORTED).split()


def test_the_world_loads_no_heavy_library(modules: list[str]) -> None:
    assert [name for name in modules if name.partition(".")[0] in HEAVY] == []


def test_no_module_of_the_world_imports_real_time_entropy_threads_or_sockets(modules: list[str]) -> None:
    impure = {
        name: found
        for name in modules
        if name.partition(".")[0] in OURS
        if (path := source(name)) is not None and (found := imports(path) & set(IMPURE) - EXCUSED.get(name, set()))
    }
    assert impure == {}


def test_a_seed_starts_no_thread_opens_no_socket_and_no_file() -> None:
    assert output_of(AUDITED).strip() == "[]"


def test_the_check_of_imports_sees_what_it_looks_for(tmp_path: Path) -> None:
    path = tmp_path / "impure.py"
    path.write_text(
        "import time\nfrom random import choice\nimport concurrent.futures\nif True:\n    import os.path\n"
    )
    assert imports(path) >= {"time", "random", "concurrent.futures", "os"}


def source(name: str) -> Path | None:
    base = ROOT.joinpath(*name.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere, with their parents."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module]
        for name in names:
            parts = name.split(".")
            found |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return found
