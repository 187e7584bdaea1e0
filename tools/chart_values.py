"""The table of the chart's values in docs/kubernetes.md, from its schema and defaults.

`python -m tools.chart_values` writes it, `--check` says whether it is up to date. What several parts have in common
is one row, written as a shell would expand it: `{operator,router}.nodeSelector`.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "deploy" / "helm" / "tandem"
PAGE: Final = ROOT / "docs" / "kubernetes.md"
BEGIN: Final = "<!-- values: made by `python -m tools.chart_values` -->"
END: Final = "<!-- end of values -->"

Json = dict[str, Any]


def rows(schema: Json, defaults: Json) -> Iterator[tuple[str, str, str]]:
    """(value, default, meaning), in the order of the schema. Shared definitions are one row each."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for path, meaning in _values(schema["properties"], ""):
        if path != "global":
            part, _, name = path.rpartition(".")
            key = (name, meaning, _shown(_at(defaults, path)))
            found.setdefault(key, []).append(part)
    for (name, meaning, default), owners in found.items():
        prefix = "" if owners == [""] else f"{owners[0]}." if len(owners) == 1 else f"{{{','.join(owners)}}}."
        yield f"{prefix}{name}", default, meaning


def table(schema: Json, defaults: Json) -> str:
    """The rows as Markdown."""
    lines = ["| value | default | meaning |", "|---|---|---|"]
    lines += [f"| `{value}` | {default} | {meaning} |" for value, default, meaning in rows(schema, defaults)]
    return "\n".join(lines)


def renewed(page: str) -> str:
    """The page with the table of now."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{PAGE.name} has no line {BEGIN}"
    assert end, f"{PAGE.name} has no line {END}"
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    return f"{before}{begin}\n{table(schema, defaults)}\n{end}{after}"


def _values(properties: Mapping[str, Json], path: str) -> Iterator[tuple[str, str]]:
    for name, schema in properties.items():
        here = f"{path}.{name}" if path else name
        if "properties" in schema:
            yield from _values(schema["properties"], here)
        else:
            yield here, schema["description"]


def _at(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values.get(name)
    return values


def _shown(value: Any) -> str:
    """On one line, as YAML; values that say nothing are shown as nothing."""
    if value in ("", [], {}, None):
        return ""
    said = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=sys.maxsize)
    return f"`{said.removesuffix('...' + chr(10)).strip()}`"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the table of the chart's values.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the table is not up to date")
    page = PAGE.read_text("utf-8")
    wanted = renewed(page)
    if parser.parse_args().check:
        if wanted != page:
            print(f"{PAGE.relative_to(ROOT)} is not up to date: run `python -m tools.chart_values`")
        return int(wanted != page)
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
