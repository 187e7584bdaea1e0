"""A bench report as text."""

from tandem.apps.bench.distribution import Distribution
from tandem.apps.bench.report import Report

_COLUMNS = ("mean", "p50", "p90", "p99", "max")


def table(report: Report) -> str:
    """The report for people: latencies in milliseconds, rates per second, the verdict in the last line."""
    lines = ["interrupted: what follows is of the requests that were due until then"] if report.interrupted else []
    lines += [f"{report.workload} on {report.model}: {report.requests} requests in {report.duration_s:.1f} s"]
    lines += ["", f"{'ms':12}" + "".join(f"{name:>10}" for name in _COLUMNS)]
    rows = (
        ("TTFT", report.ttft_s),
        ("TPOT", report.tpot_s),
        ("ITL", report.itl_s),
        ("E2E", report.e2e_s),
        ("client late", report.late_s),
    )
    lines += [_row(name, row) for name, row in rows if row is not None]
    lines += ["", f"requests     {report.requests_per_s:.2f}/s"]
    lines += [
        f"tokens in    {report.prompt_tokens} ({report.cached_tokens} cached), {report.prompt_tokens_per_s:.0f}/s"
    ]
    lines += [f"tokens out   {report.output_tokens}, {report.output_tokens_per_s:.0f}/s"]
    if report.clients is not None:
        lines += [f"closed loop  {report.clients} clients, {report.think_s:g} s think time"]
    if report.slo:
        lines += [
            f"goodput      {report.goodput_per_s:.2f}/s, {report.goodput_share:.1%} of {report.offered} offered"
        ]
        within = (f"{key} ≤ {bound:g} s {report.attainment[key]:.1%}" for key, bound in report.slo.items())
        lines += [f"attainment   {', '.join(within)}"]
    return "\n".join([*lines, verdict(report)])


def verdict(report: Report) -> str:
    """One line: how many succeeded, and the errors by kind."""
    failed = report.requests - report.succeeded
    kinds = ", ".join(f"{count} {kind}" for kind, count in report.errors.items())
    return f"errors       {failed} of {report.requests}" + (f": {kinds}" if kinds else "")


def _row(name: str, row: Distribution) -> str:
    return f"{name:12}" + "".join(f"{getattr(row, column) * 1000:10.1f}" for column in _COLUMNS)
