"""`python -m router`: the router as a process. Settings are flags (`--port 8000`), environment or a file."""

import asyncio
import gc
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import uvloop

from kv_transfer.index.compact_index import CompactIndex
from kv_transfer.key_file import read_keyring
from kv_transfer.tickets import Keyring, TicketKey
from router.api.auth import Keys, load_keys
from router.api.chat_templates.render import FileRenderer, Renderer, SimpleRenderer
from router.api.chat_templates.template_helper import HelperTemplates
from router.api.chat_templates.templates import Templates
from router.api.door import FrontDoor, Services, nothing_coming
from router.api.errors import explain
from router.api.grpc.public_grpc import PublicGrpc
from router.api.rest.app import RestApp
from router.discovery.kubernetes import Connect, KubernetesDiscovery, Watching
from router.discovery.loading import load_text_side
from router.discovery.reading import TextSource, facts_of
from router.discovery.texts import TextSide, TextSides
from router.dispatch.context import Tools
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.keeping import FleetKeeper
from router.fleet.fleet import Fleet
from router.fleet.prober import PairProber
from router.http_server.connections_max import ConnectionsMax, connections_within
from router.http_server.server import HttpServer
from router.placement import CostModel
from router.process_settings import ProcessSettings, sized
from router.service import Addresses, Discovery, Insides, RouterService
from router.settings import RouterSettings
from router.tokenization.tokenizing_threads import Threaded
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter
from tandem.core.simple_tokenizer import MODEL_NAME
from tandem.core.slo import Slo
from tandem.kube.cluster import Cluster
from tandem.link.link_dialer import open_dialer
from tandem.link.link_proof import LinkKeys
from tandem.model.directory import open_model
from tandem.process.large_pages import use_large_pages
from tandem.process.logs import EventLines, set_up_logs
from tandem.process.loop_watch import LoopWatch
from tandem.process.metrics import PrometheusMeter
from tandem.process.run import fail, serve_process
from tandem.process.settings import load_settings
from tandem.process.settings_help import help_asked
from tandem.process.system import DESCRIPTORS_KEPT, SystemClock, SystemEntropy, descriptors
from tandem.process.telemetry import Telemetry, endpoint_from, open_telemetry
from tandem.process.tls import server_context
from tandem.process.workers_file import Member, ServiceEntry, WorkersFile, drains_of

if TYPE_CHECKING:
    from kv_transfer.index.redis_index import RedisIndex

_GC_THRESHOLDS: Final = (20_000, 20, 20)
"""A request leaves some hundred objects that refer to each other. At the interpreter's own thresholds the collector
runs many times for each burst of requests, mostly over what is still in use; these let a few megabytes gather."""


def main() -> int:
    """Run a router to its end; the exit status."""
    if help_asked("router", ProcessSettings, sys.argv[1:]):
        return 0
    events, templates = EventLines(sys.stdout if "--events" in sys.argv else None), HelperTemplates(SystemClock())
    try:
        settings = sized(load_settings(ProcessSettings, _flags(sys.argv[1:]), os.environ))
        set_up_logs(json_lines=settings.log.format == "json", level=settings.log.level)
        events = EventLines(sys.stdout if settings.events else None)
        events.emit("loading", fraction=0.0)
        if not settings.kubernetes and settings.engine != "simulated":
            templates.prepare()
        renderers = {} if settings.kubernetes else dict([open_renderer(settings, templates)])
        keys = load_keys(settings.api_keys) if settings.api_keys is not None else Keys()
        keyring = open_keyring(settings, SystemEntropy())
        build = builder(settings, renderers, templates, keys, keyring)
    except TandemError as error:
        return fail(events, error)
    endpoint = settings.otlp_endpoint if settings.otlp_endpoint is not None else endpoint_from(os.environ)
    telemetry = open_telemetry("router", endpoint, settings.name)
    # One text at a time is tokenized where it is asked for: threads for batches would only hand it to and fro.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # What has been loaded stays: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    use_large_pages()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        return serve_process(
            lambda lines: build(telemetry, lines),
            events,
            settings.core.deadlines.drain_s,
            loop_factory=uvloop.new_event_loop,
        )
    finally:
        templates.close()
        telemetry.close()


def open_renderer(settings: ProcessSettings, templates: Templates) -> tuple[str, Renderer]:
    """The served model's name and text side. Blocks while a hub model is downloaded. Raises `bad_model`."""
    if settings.engine == "simulated":
        return settings.model_name or MODEL_NAME, SimpleRenderer(templates.clock)
    directory = open_model(settings.model, name=settings.model_name, cache=settings.cache)
    directory = directory.with_template(settings.chat_template, anywhere=True)
    return directory.name, FileRenderer(directory, templates, settings.parsers, settings.generation_config)


def open_keyring(settings: ProcessSettings, entropy: Entropy) -> Keyring:
    """The ticket keys; without a file one that only this router knows, good for workers that hand nothing over.
    Raises `bad_setting`."""
    if settings.ticket_key_file is not None:
        return read_keyring(settings.ticket_key_file)
    return Keyring(TicketKey("drawn", entropy.token(32)))


def builder(
    settings: ProcessSettings,
    renderers: dict[str, Renderer],
    templates: Templates,
    keys: Keys,
    keyring: Keyring,
    connect: Connect | None = None,
) -> Callable[[Telemetry, EventLines], RouterService]:
    """What makes the service on a running loop. `connect` reaches another API server than the settings name."""

    def build(telemetry: Telemetry, events: EventLines) -> RouterService:
        clock, entropy, meter = SystemClock(), SystemEntropy(), PrometheusMeter()
        core = settings.core
        proved = None if settings.ticket_key_file is None else LinkKeys(keyring.secrets)
        dialer = open_dialer(settings.name, entropy, settings.link_tls, proved)
        prober = _prober(core, keyring, clock, entropy, meter)
        index = CompactIndex(int.from_bytes(entropy.token(16), "little"))
        shared = _shared_index(settings, meter)
        fleet = Fleet(dialer, clock, core.deadlines, index, meter, core.fleet, prober, shared)
        fleet.services.default_slo = Slo(settings.front.slo.ttft_s, settings.front.slo.tpot_s)
        tools = Tools(
            loop=asyncio.get_running_loop(),
            clock=clock,
            entropy=entropy,
            keyring=keyring,
            settings=core,
            costs=CostModel(core.priors),
            recorder=telemetry.recorder,
            meter=meter,
        )
        dispatcher = Dispatcher(fleet, tools)
        texts = _text_sides(settings, templates) if settings.kubernetes else None
        services = Services(
            dispatcher,
            renderers if texts is None else texts,
            Threaded(queue_s=core.deadlines.queue_s),
            clock,
            entropy,
            meter,
            telemetry.recorder,
            resumer=dispatcher,
            keeper=FleetKeeper(fleet),
            seeker=None if shared is None else dispatcher,
            coming=nothing_coming if texts is None else texts.coming,
            slo=fleet.services.slo,
        )
        door = FrontDoor(services, settings.front, core.deadlines)
        fleet.set_members(settings.workers)
        if texts is None:
            discovery: Discovery | None = _from_file(settings, fleet)
        else:
            fleet.services.watched = True
            watching, reach = Watching(texts, clock, entropy, meter), connect or _connecting(settings)
            discovery = KubernetesDiscovery(reach, settings.namespace, fleet, watching, settings.workers)
        over_grpc = 0 if settings.grpc_port is None else settings.front.grpc_connections_max
        wanted = ConnectionsMax(settings.front.connections_max, grpc=over_grpc)
        had = descriptors(wanted.descriptors + DESCRIPTORS_KEPT) - DESCRIPTORS_KEPT
        bounds = connections_within(had, wanted.public, wanted.grpc)
        app = RestApp(
            door,
            keys,
            meter.render,
            fleet.listing,
            lambda models: dispatcher.standings().of(models),
            dispatcher.outlooks,
        )
        rest = HttpServer(app, bounds, meter, explain)
        watch = LoopWatch(meter, clock.now, time.thread_time)
        grpc = PublicGrpc(door, keys, bounds.grpc)
        insides = Insides(fleet, dispatcher, door, rest, app.probes, grpc, discovery, shared, watch)
        context = None if settings.peer_port is None else server_context(settings.link_tls)
        ports = settings.port, settings.grpc_port, settings.peer_port
        where = Addresses(settings.host, *ports, context, settings.metrics_bind)
        return RouterService(insides, where, events)

    return build


def _prober(
    core: RouterSettings, keyring: Keyring, clock: Clock, entropy: Entropy, meter: Meter
) -> PairProber | None:
    pairs = core.fleet.pairs
    return PairProber(pairs, keyring, clock, entropy, core.deadlines, meter) if pairs.canary else None


def _shared_index(settings: ProcessSettings, meter: Meter) -> "RedisIndex | None":
    if not settings.index.redis_url:
        return None
    # Imported on use: without Redis its client is not even loaded.
    from kv_transfer.index.redis_client import redis_client
    from kv_transfer.index.redis_index import RedisIndex

    return RedisIndex(settings.index, meter, redis_client(settings.index))


def _text_sides(settings: ProcessSettings, templates: Templates) -> TextSides:
    def load(model: str, source: TextSource) -> TextSide:
        return load_text_side(model, source, settings.text_files, settings.cache, templates)

    return TextSides(load, templates.clock)


def _connecting(settings: ProcessSettings) -> Connect:
    """The client of the API server is imported on use: it is an extra, and takes a while to load."""

    async def reach() -> Cluster:
        try:
            from tandem.kube.kube_cluster import connect
        except ImportError as error:
            problem = f"kubernetes needs the extra of that name: pip install 'tandem-serve[kubernetes]' ({error})"
            raise TandemError("bad_setting", problem, param="kubernetes") from error
        return await connect(None if settings.kubeconfig is None else str(settings.kubeconfig))

    return reach


def _from_file(settings: ProcessSettings, fleet: Fleet) -> WorkersFile | None:
    if settings.workers_file is None:
        return None

    def on_members(found: tuple[Member, ...]) -> None:
        fleet.set_members((*settings.workers, *(member.address for member in found)))
        fleet.set_drains(drains_of(found))

    def on_services(found: tuple[ServiceEntry, ...]) -> None:
        fleet.set_services([facts_of(entry) for entry in found], ())

    return WorkersFile(settings.workers_file, on_members, on_services=on_services)


def _flags(argv: list[str]) -> list[str]:
    """Names of flags may be written with dashes, and namespaces one by one."""
    flags, namespaces = list[str](), list[str]()
    rest = [_underscored(part) if part.startswith("--") else part for part in argv]
    while rest:
        part = rest.pop(0)
        name, equals, value = part.partition("=")
        if name != "--namespace":
            flags.append(part)
        elif equals or rest:
            namespaces.append(value if equals else rest.pop(0))
    return [*flags, *([f"--namespace={','.join(namespaces)}"] if namespaces else [])]


def _underscored(flag: str) -> str:
    name, equals, value = flag[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


if __name__ == "__main__":
    sys.exit(main())
