"""Everything a run of drills knows about one platform before it strikes for the first time."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from tandem.apps.bench.content import TokenRange
from tandem.apps.bench.probe import find_style
from tandem.apps.chaos.client import ChaosClient
from tandem.apps.chaos.drill.recovery import Probe, RecoveryWatch
from tandem.apps.chaos.drill.reference import take_references
from tandem.apps.chaos.drill.requests import RequestShapes, shapes
from tandem.apps.chaos.judge import ExpectedAnswer
from tandem.apps.cli.router_client import refusal, send_request
from tandem.apps.client.http import Client, Target, parse_target
from tandem.core.errors import TandemError

_PROBES: Final = 3
_FIRST_ANSWER_S: Final = 30.0


@dataclass(frozen=True)
class Bounds:
    """Time bounds in seconds, and the number of clients beside the struck one. A frozen process has to be noticed
    before it resumes."""

    streams: int = 8
    abusers: int = 0
    """Clients that misuse the platform for as long as the streams go on."""
    warm_s: float = 0.25
    """Seconds the load runs before a request is to be caught."""
    after_s: float = 0.4
    """Seconds the load goes on after the blow."""
    freeze_s: float = 3.0
    land_s: float = 10.0
    """Within which a worker has to have carried out what a signal asked for."""
    end_s: float = 60.0
    """A request that has not ended by then has no end."""
    recover_s: float = 45.0
    release_s: float = 5.0
    """Within which blocks have to be free once every request has ended."""
    orphans_s: float = 2.5
    """Within which they have to be free after a router's death: the promised 2 s, and how old a figure may be."""
    lease_s: float = 15.0
    """Additional seconds for blocks to become free where clients that asked for resumable streams did not come
    back."""


@dataclass(frozen=True)
class Session:
    """What the rounds of a drill need."""

    url: str
    target: Target
    model: str
    engine: str
    caller: ChaosClient
    shapes: RequestShapes
    rights: Mapping[str, ExpectedAnswer]
    recovery: RecoveryWatch
    bounds: Bounds


class _Model(msgspec.Struct):
    id: str
    max_model_len: int = 2048


class _Models(msgspec.Struct):
    data: tuple[_Model, ...] = ()


@asynccontextmanager
async def open_session(url: str, key: str, engine: str, bounds: Bounds) -> AsyncIterator[Session]:
    """Find out what is served and take the right answers. Raises `bad_setting`, `link_lost`, `engine_failed`."""
    target = parse_target(url, key)
    model = await _only_model(target)
    async with aclosing(Client(target)) as client:
        _, tokens_per_word = await find_style(
            client, model.id, chat=False, text_only=True, vocabulary=TokenRange(), timeout_s=_FIRST_ANSWER_S
        )
    wanted = shapes(model.max_model_len, tokens_per_word)
    async with aclosing(ChaosClient(target, model.id, f"drill-{os.urandom(4).hex()}", bounds.end_s)) as caller:
        rights = await take_references(caller, wanted.all())
        usual_s = max([await _took_s(caller, wanted) for _ in range(_PROBES)])
        probe = Probe(wanted.probe, rights[wanted.probe.name], usual_s)
        recovery = RecoveryWatch(url, caller, probe)
        yield Session(url, target, model.id, engine, caller, wanted, rights, recovery, bounds)


async def _only_model(target: Target) -> _Model:
    status, body = await send_request(target, "GET", "/v1/models")
    if status != 200:
        raise TandemError("bad_setting", f"--url: no model list from there: {refusal(status, body)}")
    models = msgspec.json.decode(body, type=_Models).data
    if not models:
        raise TandemError("bad_setting", "--url: the platform serves no model")
    return models[0]


async def _took_s(caller: ChaosClient, wanted: RequestShapes) -> float:
    now = asyncio.get_running_loop().time
    began = now()
    await caller.ask(wanted.probe)
    return now() - began
