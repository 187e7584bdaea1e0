"""The prefill worker: computes prompts and lets decode workers pull their blocks under leases."""

from collections.abc import Callable, Sequence

from kv_transfer.tickets import Keyring
from kv_transfer.transport.protocol import Transport
from tandem.link.protocol import LinkServer
from tandem.process.health import Health
from tandem.process.logs import EventLines
from tandem.worker.deps import WorkerDeps
from tandem.worker.kv_side import TransportSide
from tandem.worker.service import WorkerName, WorkerService


def prefill_worker(
    parts: WorkerDeps,
    worker_id: str,
    links: LinkServer,
    transports: Sequence[Transport],
    keyring: Keyring,
    begin_epoch: Callable[[int], None],
    *,
    revision: str = "",
    events: EventLines | None = None,
    health: Health | None = None,
) -> WorkerService:
    """A worker that takes modes `prefill` and `local`, and serves pulls over every transport, in this order."""
    name = WorkerName(worker_id, "prefill", revision)
    side = TransportSide(parts, transports, keyring, exports=True)
    return WorkerService(parts, name, links, side, begin_epoch, events, health)
