"""`python -m router`: the router as a process. Settings are flags (`--port 8000`), environment or a file."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from typing import Final

import uvloop

from kv_transfer.key_file import read_keyring
from kv_transfer.memory_index import MemoryIndex
from kv_transfer.tickets import Keyring, TicketKey
from router.dispatch.context import Tools
from router.dispatch.dispatcher import Dispatcher
from router.fleet.discovery import Member, WorkersFile, drains_of
from router.fleet.fleet import Fleet
from router.fleet.prober import PairProber
from router.front.app import RestApp
from router.front.auth import Keys, load_keys
from router.front.door import FrontDoor, Services
from router.front.http_server import HttpServer
from router.front.public_grpc import PublicGrpc
from router.front.render import FileRenderer, Renderer, SimpleRenderer
from router.front.tokenizing_threads import Threaded
from router.placement import CostModel
from router.process_settings import ProcessSettings
from router.service import Addresses, Insides, RouterService
from router.settings import RouterSettings
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter
from tandem.core.simple_tokenizer import MODEL_NAME
from tandem.engine.model_directory import open_model
from tandem.service.link_dialer import open_dialer
from tandem.service.logs import EventLines, set_up_logs
from tandem.service.metrics import PrometheusMeter
from tandem.service.run import fail, serve_process
from tandem.service.settings import load_settings
from tandem.service.settings_help import help_asked
from tandem.service.system import DESCRIPTORS_KEPT, SystemClock, SystemEntropy, descriptors
from tandem.service.telemetry import Telemetry, endpoint_from, open_telemetry

_GC_THRESHOLDS: Final = (20_000, 20, 20)
"""A request leaves some hundred objects that refer to each other. At the interpreter's own thresholds the collector
runs many times for each burst of requests, mostly over what is still in use; these let a few megabytes gather."""


def main() -> int:
    """Run a router to its end; the exit status."""
    if help_asked("router", ProcessSettings, sys.argv[1:]):
        return 0
    events = EventLines(sys.stdout if "--events" in sys.argv else None)
    try:
        settings = load_settings(ProcessSettings, _flags(sys.argv[1:]), os.environ)
        set_up_logs(json_lines=settings.log.format == "json", level=settings.log.level)
        events = EventLines(sys.stdout if settings.events else None)
        events.emit("loading", fraction=0.0)
        clock = SystemClock()
        name, renderer = open_renderer(settings, clock)
        keys = load_keys(settings.api_keys) if settings.api_keys is not None else Keys()
        keyring = open_keyring(settings, SystemEntropy())
        build = _builder(settings, {name: renderer}, keys, keyring)
    except TandemError as error:
        return fail(events, error)
    endpoint = settings.otlp_endpoint if settings.otlp_endpoint is not None else endpoint_from(os.environ)
    telemetry = open_telemetry("router", endpoint, settings.name)
    # What has been loaded stays: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        return serve_process(
            lambda lines: build(telemetry, lines),
            events,
            settings.core.deadlines.drain_s,
            loop_factory=uvloop.new_event_loop,
        )
    finally:
        telemetry.close()


def open_renderer(settings: ProcessSettings, clock: Clock) -> tuple[str, Renderer]:
    """The served model's name and text side. Blocks while a hub model is downloaded. Raises `bad_model`."""
    if settings.engine == "simulated":
        return settings.model_name or MODEL_NAME, SimpleRenderer(clock)
    directory = open_model(settings.model, name=settings.model_name, cache=settings.cache)
    return directory.name, FileRenderer(directory, clock)


def open_keyring(settings: ProcessSettings, entropy: Entropy) -> Keyring:
    """The ticket keys; without a file one that only this router knows, good for workers that hand nothing over.
    Raises `bad_setting`."""
    if settings.ticket_key_file is not None:
        return read_keyring(settings.ticket_key_file)
    return Keyring(TicketKey("drawn", entropy.token(32)))


def _builder(
    settings: ProcessSettings, renderers: dict[str, Renderer], keys: Keys, keyring: Keyring
) -> Callable[[Telemetry, EventLines], RouterService]:
    def build(telemetry: Telemetry, events: EventLines) -> RouterService:
        clock, entropy, meter = SystemClock(), SystemEntropy(), PrometheusMeter()
        core = settings.core
        dialer = open_dialer(settings.name, entropy, settings.link_tls)
        prober = _prober(core, keyring, clock, entropy, meter)
        fleet = Fleet(dialer, clock, core.deadlines, MemoryIndex(), meter, core.fleet, prober)
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
        services = Services(
            dispatcher, renderers, Threaded(), clock, entropy, meter, telemetry.recorder, resumer=dispatcher
        )
        door = FrontDoor(services, settings.front, core.deadlines)
        fleet.set_members(settings.workers)
        discovery = _discovery(settings, fleet)
        connections_max = descriptors(settings.front.connections_max + DESCRIPTORS_KEPT) - DESCRIPTORS_KEPT
        rest = HttpServer(RestApp(door, keys, meter.render, fleet.listing), connections_max)
        insides = Insides(fleet, dispatcher, door, rest, PublicGrpc(door, keys), discovery)
        return RouterService(insides, Addresses(settings.host, settings.port, settings.grpc_port), events)

    return build


def _prober(
    core: RouterSettings, keyring: Keyring, clock: Clock, entropy: Entropy, meter: Meter
) -> PairProber | None:
    pairs = core.fleet.pairs
    return PairProber(pairs, keyring, clock, entropy, core.deadlines, meter) if pairs.canary else None


def _discovery(settings: ProcessSettings, fleet: Fleet) -> WorkersFile | None:
    if settings.workers_file is None:
        return None

    def on_members(found: tuple[Member, ...]) -> None:
        fleet.set_members((*settings.workers, *(member.address for member in found)))
        fleet.set_drains(drains_of(found))

    return WorkersFile(settings.workers_file, on_members)


def _flags(argv: list[str]) -> list[str]:
    """Names of flags may be written with dashes."""
    return [_underscored(part) if part.startswith("--") else part for part in argv]


def _underscored(flag: str) -> str:
    name, equals, value = flag[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


if __name__ == "__main__":
    sys.exit(main())
