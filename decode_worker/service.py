"""The decode worker: pulls the blocks of prompts computed elsewhere, verifies them, and generates."""

from collections.abc import Callable, Sequence

from kv_transfer.fetch import Fetcher, FetchSettings
from kv_transfer.transport import Transport
from tandem.engine.protocol import BlockSpace
from tandem.service.link import LinkServer
from tandem.service.logs import EventLines
from tandem.worker.parts import Parts
from tandem.worker.service import WorkerName, WorkerService


class FetchSide:
    """`tandem.worker.service.KvSide` that pulls over the transports it has."""

    def __init__(self, parts: Parts, transports: Sequence[Transport], settings: FetchSettings | None = None) -> None:
        self._parts = parts
        self._transports = tuple(transports)
        self._settings = settings
        self.fetcher: Fetcher | None = None

    async def open(self, space: BlockSpace) -> tuple[str, ...]:
        parts = self._parts
        self.fetcher = Fetcher(space, self._transports, parts.clock, parts.deadlines, parts.meter, self._settings)
        return ()

    async def close(self) -> None:
        if self.fetcher is not None:
            await self.fetcher.close()
        for transport in self._transports:
            await transport.close()


def decode_worker(
    parts: Parts,
    worker_id: str,
    links: LinkServer,
    transports: Sequence[Transport],
    begin_epoch: Callable[[int], None],
    *,
    role: str = "decode",
    revision: str = "",
    events: EventLines | None = None,
) -> WorkerService:
    """A worker that takes modes `decode` and `local`; with role `unified` routers give it whole requests."""
    assert role in ("decode", "unified"), role
    name = WorkerName(worker_id, role, revision)
    return WorkerService(parts, name, links, FetchSide(parts, transports), begin_epoch, events)
