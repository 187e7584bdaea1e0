"""Workers against routers that are broken: whatever an open link carries, the worker and its other routers go on."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from kv_transfer.tiers.memory_tiers import memory_tiers
from kv_transfer.tiers.settings import TierSettings
from kv_transfer.transport.tcp import TcpSettings, TcpTransport
from tandem.core.deadlines import Deadlines
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import KINDS, TandemError
from tandem.core.messages import (
    Drain,
    Export,
    ProvideFirst,
    PublishSplit,
    RemoteKv,
    ResumeAttempt,
    ResumeNotFound,
    SplitRecord,
    Submit,
    Tune,
)
from tandem.core.metrics import NullMeter
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.local import LocalEngine
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.reference import reference_tokens
from tandem.engine.simulated.runner import SimulatedRunner
from tandem.link import tcp_dialer
from tandem.link.messages import COMMANDS, STATE_REQUESTS, MessageCodec
from tandem.link.proof import LinkKeys
from tandem.link.protocol import Dialer, LinkServer
from tandem.link.tcp_dialer import TcpDialer
from tandem.link.tcp_server import TcpLinkServer
from tandem.process.health import Health
from tandem.process.logs import EventLines
from tandem.process.run import StopSignal, run_service
from tandem.process.system import SystemClock
from tandem.worker.deps import WorkerDeps
from tandem.worker.service import WorkerService
from tandem.worker.settings import HostSettings
from tandem.worker.simple_decoder import SimpleDecoder
from tests.worlds.link_messages_drawn import Drawing
from tests.worlds.platform import until
from tests.worlds.worker_stage import KEYRING, Router, build_decode, dial, prompt, submit

MODEL = SimulatedModel(blocks=512, context_tokens=4096, base_s=0.0002, sequence_s=0.0, token_s=0.0, context_s=0.0)
SOON = Deadlines(
    heartbeat_every_s=0.1, heartbeat_lost_s=20.0, transfer_progress_s=0.2, lease_s=1.0, connect_s=1.0,
    resumable_lease_s=0.2, router_restart_s=0.2,
)  # fmt: skip
"""What is left behind goes soon, and a busy machine must not look like a silent router."""
KEYS = LinkKeys([bytes(range(32))])
WITHIN_S = 60.0
LINKS = 30
FRAMES = 12
Over = tuple[Callable[[], LinkServer], Callable[[str], Dialer]]
OVER: dict[str, Over] = {
    "tcp": (
        lambda: TcpLinkServer("127.0.0.1:0", keys=KEYS),
        lambda name: TcpDialer(name, SeededEntropy(1, name), keys=KEYS),
    ),
}


class Verbatim:
    """The encoding of a broken router: bytes go out as they are."""

    def __init__(self, wording: MessageCodec[Any]) -> None:
        self._wording = wording
        self.decode = wording.decode

    def encode(self, message: Any) -> bytes:
        return message if isinstance(message, bytes) else self._wording.encode(message)


@dataclass
class Stage:
    """A worker with everything it may have, a sound router, and whatever broken ones are dialled."""

    service: WorkerService
    engine: LocalEngine
    dialer: Callable[[str], Dialer]
    sound: Router
    life: asyncio.Task[None]
    answers: int = 0
    enough: bool = False
    asking: asyncio.Task[None] = field(init=False)

    async def broken(self, name: str) -> Router:
        try:
            return await dial(self.dialer(name), self.service.address)
        except TandemError:
            await asyncio.wait((self.life,), timeout=10.0)
            if self.life.done():
                self.life.result()
            raise

    async def ask(self) -> None:
        """Requests one after the other: every token must be the right one."""
        while not self.enough:
            handle = self.answers + 1
            one = submit(handle, tokens=prompt(60, handle % 50), stopping=Stopping(max_tokens=60))
            self.sound.link.tokens.send(one)
            await self.sound.ended(handle)
            expected = reference_tokens(MODEL, one.prompt, one.branches[0], one.sampling, one.stopping).tokens
            assert self.sound.tokens(handle) == expected, (handle, self.sound.failed)
            self.sound.outputs.clear()
            self.answers += 1

    async def answered(self, router: Router, handle: int) -> None:
        """Until the worker has read what was sent before, or has ended the link."""
        router.link.tokens.send(ResumeAttempt(handle, ()))
        heard = router.until(lambda: router.lost is not None or ResumeNotFound(handle) in router.heard, WITHIN_S)
        answer = asyncio.ensure_future(heard)
        await asyncio.wait((answer, self.life), return_when=asyncio.FIRST_COMPLETED)
        if self.life.done():
            answer.cancel()
            self.life.result()
        await answer

    async def freed(self) -> None:
        """The sound router asks for no more; until then, and until nothing is held for anybody."""
        self.enough = True
        await until(lambda: self.asking.done(), WITHIN_S, "the sound router got no answer")
        self.asking.result()
        assert self.sound.lost is None
        assert self.answers > 0
        await until(lambda: self.held() is None, WITHIN_S, lambda: str(self.held()))

    def held(self) -> str | None:
        """What is held for anybody beside the sound router's request; None when nothing is."""
        pool, leases = self.engine.scheduler.kv_cache.pool, self.engine.scheduler.leases
        others = self.service.host.attempts
        if others or pool.used or pool.quarantined or len(leases):
            return f"{others} attempts, {pool.used} blocks, {pool.quarantined} in quarantine, {len(leases)} leases"
        return None


@asynccontextmanager
async def staged(over: str) -> AsyncIterator[Stage]:
    server, dialer = OVER[over]
    clock, entropy = SystemClock(), SeededEntropy(3, over)
    engine = LocalEngine(SimulatedRunner(MODEL), SchedulerSettings(), clock, entropy.u64())
    made = WorkerDeps(
        engine,
        SimpleDecoder(),
        clock,
        entropy,
        deadlines=SOON,
        settings=HostSettings(canary=False),
        open_tiers=lambda space, _info: memory_tiers(
            TierSettings(dram_bytes=64 * MODEL.layout.block_bytes), space, clock, NullMeter()
        ),
    )
    service = build_decode(made, server(), [TcpTransport(TcpSettings())], "worker", role="unified", keyring=KEYRING)
    life = asyncio.create_task(run_service(service, StopSignal(), Health(EventLines()), 5.0), name="worker")
    await until(lambda: life.done() or service.host.ready if service.address else life.done(), WITHIN_S, "no worker")
    sound = await dial(dialer("sound"), service.address)
    stage = Stage(service, engine, dialer, sound, life)
    stage.asking = asyncio.create_task(stage.ask(), name="asking")
    try:
        yield stage
        await stage.freed()
        assert not life.done(), life.result()
    finally:
        sound.stop()
        for task in (stage.asking, life):
            task.cancel()
        await asyncio.wait((stage.asking, life))


@pytest.fixture(autouse=True)
def _broken_routers_send_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_dialer, "COMMANDS", Verbatim(COMMANDS))
    monkeypatch.setattr(tcp_dialer, "STATE_REQUESTS", Verbatim(STATE_REQUESTS))


@pytest.mark.parametrize("over", OVER)
async def test_no_command_harms_the_worker_or_another_router(over: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    codes: Counter[str] = Counter()
    ended = 0
    async with staged(over) as stage:
        for number in range(LINKS):
            router = await stage.broken(f"broken {number}")
            drawing = Drawing(number, stage.engine.epoch)
            for left in reversed(range(FRAMES)):
                frame = drawing.frame() if left else drawing.spoiled_frame()
                router.link.tokens.send(frame)  # type: ignore[arg-type]
                await stage.answered(router, drawing.fresh())
                if router.lost is not None:
                    ended += 1
                    break
            router.link.close("enough")
            router.stop()
            codes.update(failed.code for failed in router.failed)
    assert codes.keys() <= KINDS.keys() - {"internal"}
    assert codes["invalid_request"] >= LINKS // 2
    assert ended >= LINKS // 2
    assert "" not in told(caplog, "link_closed")
    assert "the link was lost" not in told(caplog, "link_closed")
    assert tracebacks(caplog) == []


def told(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """The reasons of all events of this name."""
    return [str(vars(record)["fields"]["reason"]) for record in caplog.records if record.message == name]


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (Drain(math.nan), "within_s"),
        (Drain(math.inf), "within_s"),
        (Drain(-1.0), "within_s"),
        (PublishSplit(SplitRecord(1, "x" * (2 << 20), ()), 1.0), "record"),
    ],
)
async def test_a_command_that_means_nothing_ends_its_link_and_no_other(
    command: Drain | PublishSplit, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with staged("tcp") as stage:
        router = await stage.broken("broken")
        router.link.tokens.send(command)
        await router.until(lambda: router.lost is not None, WITHIN_S)
        assert reason in (router.lost or "")
        router.stop()
    assert tracebacks(caplog) == []


REFUSED: dict[str, Submit] = {
    "branches": submit(7, branches=(ChildRequest(0, 1), ChildRequest(0, 2))),
    "branches of a number that is none": submit(7, branches=(ChildRequest(-1, 1),)),
    "branches of forced tokens that are none": submit(7, branches=(ChildRequest(0, 1, (-1,)),)),
    "branches of a seed that is none": submit(7, branches=(ChildRequest(0, 1 << 63), ChildRequest(1, -5))),
    "stop_token_ids": submit(7, stopping=Stopping(max_tokens=5, min_tokens=2, stop_token_ids=(4_000_000_000,))),
    "temperature": submit(7, sampling=Sampling(temperature=math.nan)),
    "logprobs": submit(7, sampling=Sampling(logprobs=1 << 40)),
    "logit_bias": submit(7, sampling=Sampling(logit_bias=((-3, 1.0),))),
    "deadline_s": submit(7, deadline_s=math.nan),
    "export": submit(7, "prefill", export=Export("lease", 1, math.nan)),
    "remote": submit(7, "decode", remote=RemoteKv("p", 1, ("tcp://[::1",), "lease", b"")),
    "remote of a name that is none": submit(7, "decode", remote=RemoteKv("p", 1, ("tcp://a..b:1",), "lease", b"")),
    "remote of an incarnation that is none": submit(7, "decode", remote=RemoteKv("p", -1, (), "lease", b"")),
    "prompt": submit(7, tokens=b"\xff" * 4),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_submit_that_would_take_the_engine_down_is_refused_by_the_field(what: str) -> None:
    async with staged("tcp") as stage:
        router = await stage.broken("broken")
        router.link.tokens.send(REFUSED[what])
        await router.ended(7)
        assert [(failed.code, failed.param) for failed in router.failed] == [("invalid_request", what.split()[0])]
        router.stop()


async def test_a_first_token_that_is_none_fails_its_attempt_alone() -> None:
    async with staged("tcp") as stage:
        router = await stage.broken("broken")
        remote = RemoteKv("prefill-9", 7, ("tcp://127.0.0.1:1",), "lease", b"rubbish")
        router.link.tokens.send(submit(7, "decode", remote=remote))
        router.link.tokens.send(ProvideFirst(7, 0, 1 << 32))
        await router.ended(7)
        assert [(failed.code, failed.param) for failed in router.failed] == [("invalid_request", "token")]
        router.stop()


async def test_a_step_target_beyond_all_numbers_bounds_nothing() -> None:
    async with staged("tcp") as stage:
        router = await stage.broken("broken")
        handles = iter(range(10, 20))
        for target_s in (1e308, math.inf, math.nan, -1.0, 5e-324):
            router.link.tokens.send(Tune(target_s))
            router.link.tokens.send(submit(next(handles), tokens=prompt(300)))
        await stage.answered(router, 9)
        before = stage.answers
        await until(lambda: stage.life.done() or stage.answers > before + 1, WITHIN_S, "the engine stands still")
        router.link.close("enough")
        router.stop()
