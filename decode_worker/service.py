"""The decode worker: pulls the blocks of prompts computed elsewhere, verifies them, and generates."""

from collections.abc import Callable, Sequence

from kv_transfer.tickets import Keyring, TicketKey
from kv_transfer.transport.protocol import Transport
from tandem.core.canary import CANARY
from tandem.link.protocol import LinkServer
from tandem.process.health import Health
from tandem.process.logs import EventLines
from tandem.worker.deps import WorkerDeps
from tandem.worker.kv_side import TransportSide
from tandem.worker.service import WorkerName, WorkerService


def decode_worker(
    parts: WorkerDeps,
    worker_id: str,
    links: LinkServer,
    transports: Sequence[Transport],
    begin_epoch: Callable[[int], None],
    *,
    role: str = "decode",
    revision: str = "",
    events: EventLines | None = None,
    health: Health | None = None,
    keyring: Keyring | None = None,
) -> WorkerService:
    """A worker that takes modes `decode` and `local`; with role `unified` routers give it whole requests, with role
    `auto` as they choose also prompts of which other workers decode the answer.

    With the ticket keys of the service it hands the blocks of its streams over when it leaves.
    """
    assert role in ("decode", "unified", "auto"), role
    name = WorkerName(worker_id, role, revision)
    # Without a key nobody else's ticket is good here: the only pull this worker answers then is its own canary's.
    own = keyring or Keyring(TicketKey(CANARY, parts.entropy.token(32)))
    side = TransportSide(parts, transports, own, exports=keyring is not None)
    return WorkerService(parts, name, links, side, begin_epoch, events, health)
