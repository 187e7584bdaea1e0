"""What steps measure, and the report of a run as JSON and Markdown. Values only."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Measurement:
    """One number with its unit."""

    name: str
    value: float
    unit: str
    note: str = ""


@dataclass
class Section:
    """What one step found. `problems` are checks that failed; `skipped` says why the step did not run."""

    name: str
    title: str
    figures: list[Measurement] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    skipped: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Machine:
    """Where and when it ran."""

    device: str
    name: str
    driver: str
    memory_bytes: int
    torch: str
    python: str
    cores: int
    date: str
    tiny: bool
    """Sizes that show that it runs, and measure nothing."""


def as_json(machine: Machine, sections: Sequence[Section]) -> str:
    """The whole run."""
    return json.dumps({"machine": asdict(machine), "sections": [asdict(each) for each in sections]}, indent=1) + "\n"


def as_markdown(machine: Machine, sections: Sequence[Section]) -> str:
    """The same for people."""
    lines = [
        f"# {machine.name}",
        "",
        f"{machine.date}, driver {machine.driver}, {machine.memory_bytes / 1e9:.1f} GB, torch {machine.torch}, "
        f"Python {machine.python}, {machine.cores} cores.",
    ]
    if machine.tiny:
        lines += ["", "Tiny sizes: this shows that the kit runs. The figures mean nothing."]
    for section in sections:
        lines += ["", f"## {section.title}", ""]
        if section.skipped:
            lines.append(f"Not run: {section.skipped}.")
        if section.figures:
            lines += ["| | | |", "|---|---|---|"]
        lines += [f"| {each.name} | {each.value:,.4g} {each.unit} | {each.note} |" for each in section.figures]
        lines += [f"- FAILED: {problem}" for problem in section.problems]
        lines += ["", f"{section.seconds:.1f} s"]
    return "\n".join(lines) + "\n"
