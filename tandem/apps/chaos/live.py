"""A running `tandem up` for measurements that need the real thing, and the figures its processes publish.

The platform is started in this process the way `tandem up` does it: router and workers are processes of their own.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from tandem.apps.cli.display import LineDisplay
from tandem.apps.cli.member import Member
from tandem.apps.cli.platform import Platform
from tandem.apps.cli.supervisor import ROUTER, Supervisor
from tandem.apps.cli.up_options import parse
from tandem.core.errors import TandemError
from tandem.link.address import split_host

T = TypeVar("T")
MetricSamples = Mapping[str, float]
"""Values by metric, labels included: `tandem_sequences{state="running"}`."""

_START_S: Final = 120.0
_PAGE_S: Final = 5.0
_SAMPLE: Final = re.compile(rb"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)


class LivePlatform:
    """A platform that serves."""

    def __init__(self, platform: Platform, supervisor: Supervisor) -> None:
        self.platform = platform
        self.supervisor = supervisor
        self.model = platform.service.model_name
        self.host, self.port = platform.target.host, platform.target.port

    @property
    def router(self) -> Member:
        return next(member for member in self.platform.members if member.role == ROUTER)

    @property
    def workers(self) -> tuple[Member, ...]:
        return tuple(member for member in self.platform.members if member.role != ROUTER)

    async def figures(self, member: Member) -> MetricSamples:
        """The metrics that a process publishes now. Raises `OSError` when the process does not answer."""
        if member.role == ROUTER:
            return parse_metrics(await scrape(self.host, self.port))
        host, port = split_host(member.metrics)
        return parse_metrics(await scrape(host, port or 0))

    def pid(self, member: Member) -> int:
        """The process id of a member that runs."""
        assert member.pid is not None, f"{member.name} does not run"
        return member.pid


async def scrape(host: str, port: int) -> bytes:
    """A metrics page. Raises `OSError`."""
    async with asyncio.timeout(_PAGE_S):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")
            return await reader.read()
        finally:
            writer.close()


def parse_metrics(text: bytes) -> MetricSamples:
    """The samples of a page in Prometheus' text format."""
    return {name.decode(): float(value) for name, value in _SAMPLE.findall(text)}


def total(figures: MetricSamples, metric: str, label: str = "") -> float:
    """The sum of a metric over its labels, of those samples whose labels contain `label`."""
    return sum(value for name, value in figures.items() if name.partition("{")[0] == metric and label in name)


def run_platform(
    flags: Sequence[str],
    work: Callable[[LivePlatform], Awaitable[T]],
    environment: Mapping[str, str] | None = None,
    start_s: float = _START_S,
) -> T:
    """Start a platform with the flags of `tandem up` and the settings in `environment`, do `work`, stop it all.

    It has `start_s` to be ready.
    """
    options = parse([*flags, "--port", "0"])
    platform = Platform(options.service, {**os.environ, **(environment or {})})

    async def main() -> T:
        async def served(supervisor: Supervisor) -> T:
            await platform.ready(supervisor, start_s)
            return await work(LivePlatform(platform, supervisor))

        return await platform.run(LineDisplay(lambda _line: None), served)

    try:
        return asyncio.run(main())
    except TandemError as error:
        raise RuntimeError(f"{error.code}: {error.message}") from error
    finally:
        platform.directory.remove()
