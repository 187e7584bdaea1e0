"""The edge of a worker process: settings in, the real seams built, one service run to its end."""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from kv_transfer.key_file import read_keyring
from kv_transfer.transport.nixl import SCHEME as NIXL
from kv_transfer.transport.protocol import Transport
from tandem.core.errors import TandemError
from tandem.engine.digest_threads import DigestThreads
from tandem.link.proof import LinkKeys
from tandem.link.protocol import LinkServer
from tandem.link.servers import open_server
from tandem.process.certificate_expiry import tell_expiry
from tandem.process.health import Health
from tandem.process.logs import EventLines, set_up_logs
from tandem.process.metrics import PrometheusMeter
from tandem.process.run import fail, serve_process
from tandem.process.settings import load_settings
from tandem.process.settings_help import help_asked
from tandem.process.system import SystemClock, SystemEntropy
from tandem.process.telemetry import Telemetry, endpoint_from, open_telemetry
from tandem.worker.deps import WorkerDeps
from tandem.worker.detokenizer import Decoder
from tandem.worker.engines import ProgressCallback, build_engine, open_decoder, scheduler_settings, vllm_settings
from tandem.worker.gpu_binding import bind_near_gpus
from tandem.worker.kv_paths import WORKER_SCHEMES, KvPaths
from tandem.worker.own_tiers import own_tiers
from tandem.worker.process_settings import WorkerSettings
from tandem.worker.publishing import publishing
from tandem.worker.service import WorkerService

_LOADED: Final = 0.99


@dataclass(frozen=True)
class ProcessDeps:
    """The parts that a role builds its service from."""

    settings: WorkerSettings
    parts: WorkerDeps
    links: LinkServer
    transports: tuple[Transport, ...]
    begin_epoch: Callable[[int], None]
    events: EventLines
    health: Health


def worker_main(roles: tuple[str, ...], make: Callable[[ProcessDeps], WorkerService]) -> int:
    """Run a worker of one of `roles` (the first by default) from command line and environment; the exit status."""
    if help_asked(f"{roles[0]}_worker", WorkerSettings, sys.argv[1:]):
        return 0
    events = EventLines(sys.stdout if "--events" in sys.argv else None)
    try:
        settings = read_settings(roles, sys.argv[1:], os.environ)
        set_up_logs(json_lines=settings.log.format == "json", level=settings.log.level)
        events = EventLines(sys.stdout if settings.events else None)
        events.emit("loading", fraction=0.0)
        meter = PrometheusMeter()
        tell_expiry(meter, settings.link.tls)
        health = Health(events, meter)
        if settings.metrics_bind is not None:
            # Before anything is loaded, which may take long: whoever probes is answered from the start.
            events.emit("metrics", address=meter.serve(settings.metrics_bind, lambda: health.problem))
        hardware = bind_near_gpus(settings, os.environ)
        if settings.follows:
            _follow(settings, events, health)
        decoder = open_decoder(settings)
    except TandemError as error:
        return fail(events, error)
    telemetry = _telemetry(settings, os.environ)
    try:
        status = serve_process(
            lambda lines: _service(make, _process(settings, decoder, telemetry, meter, lines, health, hardware)),
            events,
            settings.deadlines.drain_s,
            health=health,
        )
    finally:
        telemetry.close()
    if _threads_stay(settings):
        _leave(status)
    return status


def _threads_stay(settings: WorkerSettings) -> bool:
    """Whether there may be threads on which the interpreter's own way out hangs or crashes. With vLLM it also takes
    seconds, for which a drained worker would keep its place from the next one."""
    return settings.engine == "vllm" or NIXL in settings.kv.transports


def _follow(settings: WorkerSettings, events: EventLines, health: Health) -> NoReturn:
    """Run a node that follows another one's worker. Raises `bad_setting`."""
    # Imported on use: only nodes that follow need what these bring along.
    from tandem.engine.vllm.headless import HeadlessNode
    from tandem.worker.headless import HeadlessService

    own = vllm_settings(settings)

    def service(lines: EventLines) -> HeadlessService:
        return HeadlessService(HeadlessNode(own, scheduler_settings(settings), _telling(lines)), health)

    _leave(serve_process(service, events, settings.deadlines.drain_s, health=health))


def _leave(status: int) -> NoReturn:
    """End without the interpreter's own way out, on which the nixl library crashes once a peer has died, and where a
    thread in which vLLM is still loading for nodes that are gone, or reads images for ever, would not let itself be
    ended."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def read_settings(roles: tuple[str, ...], argv: Sequence[str], environ: Mapping[str, str]) -> WorkerSettings:
    """The settings of a worker process. Raises `bad_setting`."""
    defaults = {"TANDEM_ROLE": roles[0], "TANDEM_WORKER_ID": f"{roles[0]}-{os.getpid()}"}
    settings = load_settings(WorkerSettings, argv, {**defaults, **environ})
    if settings.role not in roles:
        problem = f"role = {settings.role!r}: this program is for {' and '.join(roles)}"
        raise TandemError("bad_setting", problem, param="role")
    return settings


def _telemetry(settings: WorkerSettings, environ: Mapping[str, str]) -> Telemetry:
    endpoint = settings.otlp_endpoint if settings.otlp_endpoint is not None else endpoint_from(environ)
    return open_telemetry(settings.role, endpoint, settings.worker_id)


def _process(
    settings: WorkerSettings,
    decoder: Decoder,
    telemetry: Telemetry,
    meter: PrometheusMeter,
    events: EventLines,
    health: Health,
    hardware: str = "",
) -> ProcessDeps:
    clock, entropy = SystemClock(), SystemEntropy()
    link = settings.link
    paths = KvPaths(settings.worker_id, settings.kv, settings.socket_directory, meter, link.tls, link.tls)
    transports = paths.open(WORKER_SCHEMES)
    loaded = build_engine(settings, decoder, clock, entropy.u64(), _telling(events))
    parts = WorkerDeps(
        loaded.engine,
        decoder,
        clock,
        entropy,
        telemetry.recorder,
        meter,
        settings.deadlines,
        settings.host,
        own_tiers(settings, clock, entropy, meter),
        publishing(settings.index, clock, meter),
        DigestThreads,
        hardware,
        settings.kv.node,
        paths.problems,
    )
    key_file = settings.ticket_key_file
    keys = None if key_file is None else LinkKeys(read_keyring(key_file).secrets)
    links = open_server(link.bind, link.advertise, link.tls, settings.deadlines.connect_s, keys)
    return ProcessDeps(settings, parts, links, transports, loaded.begin_epoch, events, health)


def _telling(events: EventLines) -> ProgressCallback:
    """All but the last of it: what opens after the engine is a part of loading too."""
    return lambda fraction, stage: events.emit("loading", fraction=min(fraction, _LOADED), stage=stage)


def _service(make: Callable[[ProcessDeps], WorkerService], process: ProcessDeps) -> WorkerService:
    if not process.settings.drills:
        return make(process)
    # Imported on use: a worker that nobody drills does not even have the code.
    from tandem.worker.drill_faults import FlippingTransport, Flips, obey_signals

    flips = Flips()
    transports = tuple(FlippingTransport(transport, flips) for transport in process.transports)
    service = make(replace(process, transports=transports))
    obey_signals(flips, lambda: service.address)
    return service
