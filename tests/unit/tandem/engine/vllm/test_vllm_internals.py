"""What is imported from vLLM stands in one file, which says what a version has moved."""

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tandem.core.errors import TandemError
from tandem.engine.vllm import internals

ROOT = Path(__file__).parents[5]
PACKAGES = ("tandem", "kv_transfer", "kv_store", "router", "prefill_worker", "decode_worker", "control_plane")


def _imported(path: Path) -> set[str]:
    """The modules that a file imports anywhere, for type checking too."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_of_ours_imports_vllm_elsewhere(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): module
        for path in (ROOT / package).rglob("*.py")
        for module in _imported(path)
        if module.partition(".")[0] == "vllm"
    }
    assert not found, "list it in tandem/engine/vllm/internals.py and import it from there"


def _pretend(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    for path in modules:
        module = ModuleType(path)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, path, module)


@pytest.mark.parametrize("name", sorted({*internals.NAMES, *internals.PATCHED}))
def test_a_module_that_moved_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = {**internals.NAMES, **internals.PATCHED}[name]
    _pretend(monkeypatch, "vllm")
    for known in [each for each in sys.modules if each.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, known)
    with pytest.raises(TandemError, match=f"has moved {name}: it is not in {path}; .* install one of these"):
        getattr(internals, name)


@pytest.mark.parametrize("name", sorted(internals.NAMES))
def test_a_name_that_moved_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = internals.NAMES[name]
    parts = path.split(".")
    _pretend(monkeypatch, *(".".join(parts[: end + 1]) for end in range(len(parts))))
    with pytest.raises(TandemError, match=f"has moved {name}: it is not in {path}"):
        getattr(internals, name)


def test_a_module_that_vllm_lacks_is_no_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM itself needs and does not find is not said to have moved."""

    def broken(_path: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'cv2'", name="cv2")

    monkeypatch.setattr(internals, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="cv2"):
        getattr(internals, "AsyncLLM")  # noqa: B009


def test_a_name_that_is_not_listed_is_an_ordinary_mistake() -> None:
    with pytest.raises(AttributeError, match="lists no 'Llama'"):
        getattr(internals, "Llama")  # noqa: B009
