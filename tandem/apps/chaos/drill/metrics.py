"""What a drill reads from the platform's metrics pages: links, blocks in use, blocks refused."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.apps.cli.registry import MemberEntry
from tandem.apps.cli.router_client import metrics_page
from tandem.apps.cli.supervisor import ROUTER

_PAGE_S = 2.0


class ScrapeTarget(Protocol):
    """A process of the platform. `metrics` is the `host:port` at which any client may scrape it; empty if unknown."""

    @property
    def role(self) -> str: ...
    @property
    def metrics(self) -> str: ...


@dataclass(frozen=True)
class WorkerMetrics:
    """Blocks that are neither free nor cached, blocks under export leases, and pulled blocks that were not used."""

    blocks_used: float
    blocks_exported: float
    blocks_refused: float


def parse_worker_metrics(page: str) -> WorkerMetrics | None:
    """A worker's figures from its Prometheus page; None when they are not there, as before its engine has begun."""
    used = _sum(page, "tandem_kv_blocks", 'state="used"')
    if used is None:
        return None
    exported = _sum(page, "tandem_kv_blocks", 'state="exported"')
    return WorkerMetrics(used, exported or 0.0, _sum(page, "tandem_kv_blocks_refused_total", "") or 0.0)


def linked(page: str) -> int:
    """The number of workers that a router has links to and may use."""
    return round(_sum(page, "tandem_workers", 'state="ready"') or 0.0)


async def scrape_worker(member: ScrapeTarget) -> WorkerMetrics | None:
    """The metrics of a worker; None while it does not report them."""
    text = await metrics_page(member.metrics, _PAGE_S)
    return parse_worker_metrics(text) if text is not None else None


async def router_linked(members: Sequence[ScrapeTarget]) -> int:
    """The number of workers that the router among `members` has links to and may use; 0 while it does not answer."""
    for member in members:
        if member.role == ROUTER and (text := await metrics_page(member.metrics, _PAGE_S)) is not None:
            return linked(text)
    return 0


def workers_of(members: Sequence[MemberEntry]) -> tuple[MemberEntry, ...]:
    return tuple(member for member in members if member.role != ROUTER)


def _sum(page: str, name: str, label: str) -> float | None:
    """The samples of a metric whose labels contain `label`, added up; None when there are none."""
    samples = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE)
    values = [float(value) for labels, value in samples if label in labels]
    return sum(values) if values else None
