"""The findings of `tandem verify`, as text and as JSON."""

from collections.abc import Sequence
from typing import Final

import msgspec

from tandem.apps.cli.verify.compare import Compared, Verdict
from tandem.apps.cli.verify.prompts import Prompt

_ROWS_MAX: Final = 20


class Report(msgspec.Struct, frozen=True):
    """Everything. It passed without failures and without findings about the tokenizers."""

    a: str
    b: str
    passed: bool
    verdict: Verdict
    tokenizer: tuple[str, ...]
    prompts: tuple[Compared, ...]


def report_of(
    sides: tuple[str, str], compared: Sequence[Compared], verdict: Verdict, findings: tuple[str, ...]
) -> Report:
    return Report(*sides, not verdict.failures and not findings, verdict, findings, tuple(compared))


def as_json(report: Report) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def as_table(report: Report, prompts: Sequence[Prompt]) -> str:
    """The prompts whose answers part, the earliest first; then the figures and the verdict."""
    verdict = report.verdict
    lines = [f"A  {report.a}", f"B  {report.b}", ""]
    parted = sorted(
        (each for each in report.prompts if each.diverged_at is not None), key=lambda each: each.diverged_at or 0
    )
    if parted:
        lines.append(f"{'prompt':>6} {'tokens':>6} {'parts at':>8} {'KL mean':>10} {'KL max':>10}  A | B | prompt")
        lines += [_row(each, prompts[each.number]) for each in parted[:_ROWS_MAX]]
        if len(parted) > _ROWS_MAX:
            lines.append(f"       … and {len(parted) - _ROWS_MAX} more")
        lines.append("")
    lines += [
        f"prompts     {verdict.prompts}, {verdict.identical:.1%} with identical answers",
        f"agreement   {verdict.agreement:.2%} of tokens before the first difference",
        f"divergence  {_divergence(verdict)}",
        f"KL(A‖B)     mean {verdict.kl:.3g}, at most {verdict.kl_max:.3g} nats over {verdict.positions} positions",
        *report.tokenizer,
        "passed" if report.passed else f"FAILED: {'; '.join((*report.tokenizer[:1], *verdict.failures))}",
    ]
    return "\n".join(lines)


def _divergence(verdict: Verdict) -> str:
    if verdict.first_divergence is None:
        return "none"
    return f"first at position {verdict.first_divergence}, median {verdict.median_divergence:g}"


def _row(each: Compared, prompt: Prompt) -> str:
    numbers = f"{each.number:6} {each.tokens:6} {each.diverged_at:8} {each.kl_mean:10.3g} {each.kl_max:10.3g}"
    return f"{numbers}  {each.first!r} | {each.second!r} | {prompt.shown}"
