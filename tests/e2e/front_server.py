"""The front door on real sockets over a scripted generator."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from router.front.app import RestApp
from router.front.auth import Keys
from router.front.door import FrontDoor, Services
from router.front.http_server import HttpServer
from router.front.public_grpc import PublicGrpc
from router.front.render import Renderer, SimpleRenderer
from router.front.settings import FrontSettings
from router.front.tokenizing_threads import Threaded
from tandem.service.metrics import PrometheusMeter
from tandem.service.system import SystemClock, SystemEntropy
from tandem.service.telemetry import RingRecorder
from tests.unit.front_stage import MODEL, Script


@dataclass(frozen=True)
class Served:
    """Where it listens."""

    script: Script
    door: FrontDoor
    port: int
    grpc_port: int


@contextlib.asynccontextmanager
async def serving(
    script: Script,
    *,
    keys: Keys | None = None,
    settings: FrontSettings | None = None,
    renderer: Renderer | None = None,
) -> AsyncIterator[Served]:
    """Both public interfaces on loopback."""
    clock, meter, tokenizing = SystemClock(), PrometheusMeter(), Threaded()
    door = FrontDoor(
        Services(
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
    http = HttpServer(RestApp(door, keys or Keys(), meter.render))
    public = PublicGrpc(door, keys or Keys())
    try:
        port, grpc_port = await http.start("127.0.0.1", 0), await public.start("127.0.0.1", 0)
        yield Served(script, door, port, grpc_port)
    finally:
        door.end_all()
        await asyncio.gather(http.close(1.0), public.close(1.0))
        tokenizing.close()
