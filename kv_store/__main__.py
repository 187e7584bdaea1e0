"""`tandem kv-store`, `python -m kv_store`: a store as a process."""

import os
import sys
from collections.abc import Callable, Sequence

from kv_store.pods import ServicePods, connect_in_cluster
from kv_store.service import Membership, StoreDeps, StoreService
from kv_store.settings import StoreSettings
from kv_transfer.key_file import read_keyring
from kv_transfer.tiers.backend import HeldSpace
from kv_transfer.tiers.local import LocalTiers
from kv_transfer.tiers.open import TierIdentity, open_tiers
from kv_transfer.tiers.settings import TierSettings
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.engine.digest_threads import DigestThreads
from tandem.link.dialer import open_dialer
from tandem.link.proof import LinkKeys
from tandem.link.servers import open_server
from tandem.process.certificate_expiry import tell_expiry
from tandem.process.health import Health
from tandem.process.logs import EventLines, set_up_logs
from tandem.process.metrics import PrometheusMeter
from tandem.process.run import fail, serve_process
from tandem.process.settings import load_settings
from tandem.process.settings_help import help_asked
from tandem.process.system import SystemClock, SystemEntropy
from tandem.process.workers_file import Member, WorkersFile
from tandem.worker.kv_paths import STORE_SCHEMES, KvPaths
from tandem.worker.publishing import publishing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a store from command line and environment; the exit status."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if help_asked("kv_store", StoreSettings, argv):
        return 0
    events = EventLines(sys.stdout if "--events" in argv else None)
    try:
        settings = load_settings(StoreSettings, argv, os.environ)
        set_up_logs(json_lines=settings.log.format == "json", level=settings.log.level)
        events = EventLines(sys.stdout if settings.events else None)
        meter = PrometheusMeter()
        tell_expiry(meter, settings.link.tls, settings.link_tls)
        health = Health(events, meter)
        if settings.metrics_bind is not None:
            events.emit("metrics", address=meter.serve(settings.metrics_bind, lambda: health.problem))
    except TandemError as error:
        return fail(events, error)
    return serve_process(
        lambda lines: StoreService(settings, _parts(settings, meter, lines, health)),
        events,
        settings.deadlines.drain_s,
        health=health,
    )


def _parts(settings: StoreSettings, meter: PrometheusMeter, events: EventLines, health: Health) -> StoreDeps:
    """Raises `bad_setting`."""
    assert settings.ticket_key_file is not None
    entropy, clock, link = SystemEntropy(), SystemClock(), settings.link
    keyring = read_keyring(settings.ticket_key_file)
    proved = LinkKeys(keyring.secrets)
    paths = KvPaths(settings.worker_id, settings.kv, settings.socket_directory, meter, link.tls, settings.link_tls)

    def tiers(wanted: TierSettings, space: HeldSpace, root: bytes) -> LocalTiers:
        identity = TierIdentity(settings.worker_id, root)
        return open_tiers(wanted, space, clock, meter, keyring, identity, entropy)

    return StoreDeps(
        links=open_server(link.bind, link.advertise, link.tls, settings.deadlines.connect_s, proved),
        dialer=open_dialer(settings.worker_id, entropy, settings.link_tls, proved),
        transports=paths.open(STORE_SCHEMES),
        keyring=keyring,
        clock=clock,
        entropy=entropy,
        meter=meter,
        events=events,
        health=health,
        open_tiers=tiers,
        open_membership=lambda tell: _membership(settings, tell, clock, entropy),
        open_publisher=publishing(settings.index, clock, meter),
        open_hashing=DigestThreads,
    )


def _membership(
    settings: StoreSettings, tell: Callable[[Sequence[Member]], None], clock: Clock, entropy: Entropy
) -> Membership:
    if settings.kubernetes is not None:
        return ServicePods(connect_in_cluster, settings.kubernetes, tell, clock, entropy)
    assert settings.workers_file is not None
    return WorkersFile(settings.workers_file, tell)


if __name__ == "__main__":
    sys.exit(main())
