"""Builds a router: from settings to a service, once a loop runs."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kv_transfer.index.compact_index import CompactIndex
from kv_transfer.tickets import Keyring
from router.api.auth import Keys
from router.api.chat_templates.render import Renderer
from router.api.chat_templates.templates import Templates
from router.api.core import ApiCore, ApiDeps, nothing_coming
from router.api.errors import explain
from router.api.grpc.server import PublicGrpc
from router.api.rest.app import RestApp
from router.discovery.kubernetes import Connect, KubernetesDiscovery, WatchDeps
from router.discovery.loading import credentials_in, load_text_side
from router.discovery.model_service import TextSource, facts_of
from router.discovery.texts import TextSide, TextSides
from router.dispatch.deps import DispatchDeps
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.pinned_prefixes import FleetPinnedPrefixes
from router.fleet.fleet import Fleet
from router.fleet.prober import PairProber
from router.fleet.services import ServiceRegistry
from router.fleet.tenant_dialer import TenantDialer
from router.http_server.connections_max import ConnectionsMax, connections_within
from router.http_server.server import HttpServer
from router.placement import CostModel
from router.process_settings import ProcessSettings
from router.service import Addresses, Discovery, RouterComponents, RouterService
from router.settings import RouterSettings
from router.tokenization.threads import Threaded
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter
from tandem.core.slo import Slo
from tandem.kube.cluster import Cluster
from tandem.link.dialer import open_dialer
from tandem.link.proof import LinkKeys
from tandem.link.protocol import Dialer
from tandem.process.certificate_expiry import tell_expiry
from tandem.process.logs import EventLines
from tandem.process.loop_watch import LoopWatch
from tandem.process.metrics import PrometheusMeter
from tandem.process.system import DESCRIPTORS_KEPT, SystemClock, SystemEntropy, descriptors
from tandem.process.telemetry import Telemetry
from tandem.process.tls import server_context
from tandem.process.tls_settings import TlsSettings
from tandem.process.workers_file import Member, ServiceEntry, WorkersFile, drains_of
from tandem.spec.tenants import read_tenants, tenant_name

if TYPE_CHECKING:
    from kv_transfer.index.redis_index import RedisIndex


@dataclass(frozen=True)
class Wiring:
    """Everything that is read or opened before the loop runs. `connect` reaches another API server than the settings
    name."""

    settings: ProcessSettings
    renderers: dict[str, Renderer]
    templates: Templates
    keys: Keys
    keyring: Keyring
    connect: Connect | None = None
    tenant_keys: Mapping[str, Keyring] = field(default_factory=dict)
    """The keys of workers in each tenant's namespace; of workers elsewhere they are those of `keyring`."""

    def build(self, telemetry: Telemetry, events: EventLines) -> RouterService:
        """The service, on the running loop."""
        settings = self.settings
        clock, entropy, meter = SystemClock(), SystemEntropy(), PrometheusMeter()
        tell_expiry(meter, settings.link_tls)
        shared = _shared_index(settings, meter)
        fleet = self._fleet(clock, entropy, meter, shared)
        dispatcher = Dispatcher(fleet, self._tools(clock, entropy, meter, telemetry, fleet.services))
        load = text_loader(settings, self.templates)
        texts = TextSides(load, self.templates.clock) if settings.kubernetes else None
        services = ApiDeps(
            dispatcher,
            self.renderers if texts is None else texts,
            Threaded(queue_s=settings.core.deadlines.queue_s),
            clock,
            entropy,
            meter,
            telemetry.recorder,
            resumer=dispatcher,
            keeper=FleetPinnedPrefixes(fleet),
            seeker=None if shared is None else dispatcher,
            coming=nothing_coming if texts is None else texts.coming,
            slo=fleet.services.slo,
        )
        door = ApiCore(services, settings.front, settings.core.deadlines)
        discovery = self._discovery(fleet, texts, clock, entropy, meter)
        bounds = _bounds(settings)
        listed, outlooks = lambda models: dispatcher.standings().of(models), dispatcher.outlooks
        app = RestApp(door, self.keys, meter.render, fleet.listing, listed, outlooks)
        rest, grpc = HttpServer(app, bounds, meter, explain), PublicGrpc(door, self.keys, bounds.grpc)
        watch = LoopWatch(meter, clock.now, time.thread_time)
        insides = RouterComponents(fleet, dispatcher, door, rest, app.probes, grpc, discovery, shared, watch)
        context = None if settings.peer_port is None else server_context(settings.link_tls)
        ports = settings.port, settings.grpc_port, settings.peer_port
        return RouterService(insides, Addresses(settings.host, *ports, context, settings.metrics_bind), events)

    def _fleet(self, clock: Clock, entropy: Entropy, meter: Meter, shared: "RedisIndex | None") -> Fleet:
        settings, core = self.settings, self.settings.core
        index = CompactIndex(int.from_bytes(entropy.token(16), "little"))
        services = ServiceRegistry()
        tenants = read_tenants(settings.tenants)
        keyless = () if settings.tenant_keys is None else tenants.patterns.keys() - self.tenant_keys.keys()
        services.tenants = replace(tenants, keyless=frozenset(keyless))
        dialer = self._dialer(entropy, services)
        prober = _prober(core, self.keyring, clock, entropy, meter, self._signing(services))
        fleet = Fleet(dialer, clock, core.deadlines, index, meter, core.fleet, prober, shared, services=services)
        services.default_slo = Slo(settings.front.slo.ttft_s, settings.front.slo.tpot_s)
        return fleet

    def _dialer(self, entropy: Entropy, services: ServiceRegistry) -> Dialer:
        """Dials workers of a tenant by its own name and key: a certificate of another tenant is no proof there."""
        settings, proves = self.settings, self.settings.ticket_key_file is not None

        def opened(tls: TlsSettings, keyring: Keyring) -> Dialer:
            return open_dialer(settings.name, entropy, tls, LinkKeys(keyring.secrets) if proves else None)

        own, tls = opened(settings.link_tls, self.keyring), settings.link_tls
        dialers = {
            namespace: opened(replace(tls, server_name=tenant_name(tls.server_name, namespace)), keyring)
            for namespace, keyring in self.tenant_keys.items()
        }
        return TenantDialer(dialers, own, services.namespace_at) if dialers else own

    def _signing(self, services: ServiceRegistry) -> Callable[[str], Keyring]:
        return lambda model: self.tenant_keys.get(services.namespace_of(model), self.keyring)

    def _tools(
        self, clock: Clock, entropy: Entropy, meter: Meter, telemetry: Telemetry, services: ServiceRegistry
    ) -> DispatchDeps:
        return DispatchDeps(
            loop=asyncio.get_running_loop(),
            clock=clock,
            entropy=entropy,
            keyring=self.keyring,
            settings=self.settings.core,
            costs=CostModel(self.settings.core.priors),
            recorder=telemetry.recorder,
            meter=meter,
            signing=self._signing(services),
        )

    def _discovery(
        self, fleet: Fleet, texts: TextSides | None, clock: Clock, entropy: Entropy, meter: Meter
    ) -> Discovery | None:
        settings = self.settings
        fleet.set_members(settings.workers)
        if texts is None:
            return _from_file(settings, fleet)
        fleet.services.watched = True
        watching = WatchDeps(texts, clock, entropy, meter, fleet.services.tenants)
        reach = self.connect or _connecting(settings)
        return KubernetesDiscovery(reach, settings.namespace, fleet, watching, settings.workers)


def _bounds(settings: ProcessSettings) -> ConnectionsMax:
    """The connection limits: those of the settings, lowered to what the process has file descriptors for."""
    over_grpc = 0 if settings.grpc_port is None else settings.front.grpc_connections_max
    wanted = ConnectionsMax(settings.front.connections_max, grpc=over_grpc)
    had = descriptors(wanted.descriptors + DESCRIPTORS_KEPT) - DESCRIPTORS_KEPT
    return connections_within(had, wanted.public, wanted.grpc)


def _prober(
    core: RouterSettings,
    keyring: Keyring,
    clock: Clock,
    entropy: Entropy,
    meter: Meter,
    signing: Callable[[str], Keyring],
) -> PairProber | None:
    pairs = core.fleet.pairs
    return PairProber(pairs, keyring, clock, entropy, core.deadlines, meter, signing) if pairs.canary else None


def _shared_index(settings: ProcessSettings, meter: Meter) -> "RedisIndex | None":
    if not settings.index.redis_url:
        return None
    # Imported on use: without Redis its client is not even loaded.
    from kv_transfer.index.redis_client import redis_client
    from kv_transfer.index.redis_index import RedisIndex

    return RedisIndex(settings.index, meter, redis_client(settings.index))


def text_loader(settings: ProcessSettings, templates: Templates) -> Callable[[str, TextSource], TextSide]:
    """Reads the text side of a model, with the credentials of its tenant where there are tenants. It blocks."""
    given = settings.tenant_credentials

    def load(model: str, source: TextSource) -> TextSide:
        if given is None and not settings.tenants:
            return load_text_side(model, source, settings.text_files, settings.cache, templates)
        # What one tenant's credentials have brought is kept from the others.
        namespace = source.service.partition("/")[0]
        cache = None if settings.cache is None else settings.cache / namespace
        own = os.environ if given is None else credentials_in(given / namespace)
        return load_text_side(model, source, settings.text_files, cache, templates, own)

    return load


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
