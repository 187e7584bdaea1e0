"""What the router and the workers of a platform report of their work on their metrics pages."""

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from tandem.apps.cli.member import Member
from tandem.apps.cli.router_client import metrics_page
from tandem.apps.cli.supervisor import ROUTER

_LINKED_EVERY_S: Final = 0.05
_FIGURES_EVERY_S: Final = 2.0
_PAGE_S: Final = 5.0
_FIGURES: Final = {
    "running": "tandem_requests_running",
    "tokens out": "tandem_output_tokens_total",
    "KV bytes moved": "tandem_kv_transfer_bytes_total",
}


class MetricsWatch:
    """Asks the processes. `members` is the supervisor's list, which changes while everything runs."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.line = ""
        """A few figures from the metrics, as last reported."""
        self._members = members

    async def run(self) -> None:
        """Keep `line` fresh until cancelled."""
        while True:
            if self._router is not None and self._router.state == "ready":
                router = await _page(self._router)
                others = [member for member in self._members if member.role != ROUTER and member.state == "ready"]
                workers = [await _page(member) for member in others]
                self.line = metrics_line("\n".join([router, *workers])) if router else "the router does not answer"
            await asyncio.sleep(_FIGURES_EVERY_S)

    async def all_linked(self) -> None:
        """Wait until the router has a link to every worker and may use it, and prompts can be handed off if they
        ever can: one pair of workers has been proved, or all have been tried."""
        while True:
            page = await _page(self._router)
            if linked_workers(page) >= len(self._members) - 1 and pairs_settled(page):
                return
            await asyncio.sleep(_LINKED_EVERY_S)

    async def moved(self) -> int | None:
        """Streams that the router has moved off draining workers since it began; None when it does not answer."""
        page = await _page(self._router)
        return moved_streams(page) if page else None

    @property
    def _router(self) -> Member | None:
        return next((member for member in self._members if member.role == ROUTER), None)


async def _page(member: Member | None) -> str:
    """A member's metrics page, empty when the member does not answer."""
    return ("" if member is None else await metrics_page(member.metrics, _PAGE_S)) or ""


def metrics_line(metrics: str) -> str:
    """A few figures of a Prometheus page, summed over labels."""
    sums = {label: _values(metrics, name) for label, name in _FIGURES.items()}
    return "   ".join(f"{label} {sum(values):,.0f}" for label, values in sums.items() if values)


def linked_workers(metrics: str) -> int:
    """The number of workers that the router of a Prometheus page has links to and may use."""
    return _count(metrics, "tandem_workers", "ready")


def pairs_settled(metrics: str) -> bool:
    """Whether a pair carries blocks, or no pair is left that has not been tried."""
    return bool(_count(metrics, "tandem_pairs", "closed")) or not _count(metrics, "tandem_pairs", "unproven")


def moved_streams(metrics: str) -> int:
    """The number of attempts that the router of a Prometheus page has ended to continue them elsewhere."""
    return round(sum(_values(metrics, "tandem_attempts_total", 'outcome="moved"')))


def _count(metrics: str, name: str, state: str) -> int:
    return round(sum(_values(metrics, name, f'state="{state}"')))


def _values(metrics: str, name: str, label: str = "") -> list[float]:
    """All values of a metric, of those samples whose labels contain `label`."""
    samples = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", metrics, re.MULTILINE)
    return [float(value) for labels, value in samples if label in labels]
