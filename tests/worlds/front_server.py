"""The front door on real sockets over a scripted generator."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from router.api.auth import Keys
from router.api.chat_templates.render import Renderer, SimpleRenderer
from router.api.core import ApiCore, ApiDeps
from router.api.errors import explain
from router.api.grpc.server import PublicGrpc
from router.api.rest.app import RestApp
from router.api.settings import ApiSettings
from router.http_server.server import HttpServer
from router.tokenization.threads import Threaded
from tandem.process.metrics import PrometheusMeter
from tandem.process.system import SystemClock, SystemEntropy
from tandem.process.telemetry import RingRecorder
from tests.worlds.front_stage import MODEL, Script


@dataclass(frozen=True)
class Served:
    """Where it listens."""

    script: Script
    door: ApiCore
    port: int
    grpc_port: int


@contextlib.asynccontextmanager
async def serving(
    script: Script,
    *,
    keys: Keys | None = None,
    settings: ApiSettings | None = None,
    renderer: Renderer | None = None,
) -> AsyncIterator[Served]:
    """Both public interfaces on loopback."""
    clock, meter, tokenizing = SystemClock(), PrometheusMeter(), Threaded()
    door = ApiCore(
        ApiDeps(
            generator=script,
            renderers={MODEL: renderer or SimpleRenderer(clock)},
            tokenizing=tokenizing,
            clock=clock,
            entropy=SystemEntropy(),
            meter=meter,
            recorder=RingRecorder(),
        ),
        settings,
    )
    http = HttpServer(RestApp(door, keys or Keys(), meter.render), explain=explain)
    public = PublicGrpc(door, keys or Keys())
    try:
        port, grpc_port = await http.start("127.0.0.1", 0), await public.start("127.0.0.1", 0)
        yield Served(script, door, port, grpc_port)
    finally:
        door.end_all()
        await asyncio.gather(http.close(1.0), public.close(1.0))
        tokenizing.close()
