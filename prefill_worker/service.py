"""The prefill worker: computes prompts and lets decode workers pull their blocks under leases."""

from collections.abc import Callable, Sequence

from kv_transfer.export import Exporter, ExportSettings
from kv_transfer.tickets import Keyring
from kv_transfer.transport import Transport
from tandem.engine.protocol import BlockSpace
from tandem.service.link import LinkServer
from tandem.service.logs import EventLines
from tandem.worker.parts import Parts
from tandem.worker.service import WorkerName, WorkerService


class ExportSide:
    """`tandem.worker.service.KvSide` that serves pulls over every transport, in order of preference."""

    def __init__(
        self, parts: Parts, transports: Sequence[Transport], keyring: Keyring, settings: ExportSettings | None = None
    ) -> None:
        self._parts = parts
        self._transports = tuple(transports)
        self._keyring = keyring
        self._settings = settings
        self.fetcher: None = None

    async def open(self, space: BlockSpace) -> tuple[str, ...]:
        exporter = Exporter(space, self._keyring, self._parts.clock, self._parts.deadlines, self._settings)
        return tuple([await transport.serve(exporter) for transport in self._transports])

    async def close(self) -> None:
        for transport in self._transports:
            await transport.close()


def prefill_worker(
    parts: Parts,
    worker_id: str,
    links: LinkServer,
    transports: Sequence[Transport],
    keyring: Keyring,
    begin_epoch: Callable[[int], None],
    *,
    revision: str = "",
    events: EventLines | None = None,
) -> WorkerService:
    """A worker that takes modes `prefill` and `local`."""
    name = WorkerName(worker_id, "prefill", revision)
    return WorkerService(parts, name, links, ExportSide(parts, transports, keyring), begin_epoch, events)
