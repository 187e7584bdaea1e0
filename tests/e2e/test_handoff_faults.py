"""Broken hand-offs over real transports with the real engine: noticed, counted, computed; the answer right."""

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from kv_transfer.transport.protocol import Answer as Offered
from kv_transfer.transport.protocol import BlockReceived, Offer, PullOpen, Transport
from tandem.core.deadlines import Deadlines
from tandem.core.request import Sampling, Stopping
from tandem.engine.protocol import BlockMemory
from tandem.engine.scheduler.plan import Runner
from tandem.engine.torch.build import build_runner
from tandem.engine.torch.process import ProcessRunner
from tests.worlds.asking import Answer, Ask
from tests.worlds.breakage import (
    FlippingProxy,
    HeldRunner,
    MeddlingHolder,
    Proxied,
    SpoiledArrivals,
    flip,
    misnamed,
)
from tests.worlds.platform import Platform, PlatformSettings, Worker, platform
from tools.equality.models import demo
from tools.equality.runs import Setting
from tools.equality.single import SingleEngine

SETTING = Setting(demo())
PROMPT = SETTING.subject.prompt(60, 7)
"""Four blocks, the last one partial, computed in one chunk."""
ASK = Ask("fault", PROMPT, Stopping(max_tokens=12))
OTHER = Ask("afterwards", SETTING.subject.prompt(50, 100), Stopping(max_tokens=12))


def pair(scheme: str = "tcp", **changes: object) -> PlatformSettings:
    """One prefill and one decode worker."""
    return replace(SETTING.platform(scheme), prefill=1, decode=1, **changes)  # type: ignore[arg-type]


def only(name: str, wrap: Callable[[Transport], Transport]) -> Callable[[str, Transport], Transport]:
    return lambda worker, transport: wrap(transport) if worker == name else transport


async def truth(*asks: Ask) -> list[Answer]:
    async with SingleEngine(SETTING.torch, SETTING.scheduler, SETTING.subject.decoder) as engine:
        return [await engine.ask(ask) for ask in asks]


async def noticed(running: Platform, reason: str) -> None:
    """One block is refused for `reason`, its prompt is computed, and the next hand-off is whole again."""
    right, right_after = await truth(ASK, OTHER)
    asked = running.begin(ASK)
    assert await asked.answer() == right
    assert running.refused(reason) == 1
    (seen,) = await running.reported(asked.request_id, "decode")
    assert seen.report is not None
    assert seen.report.tokens_computed > 0
    assert seen.report.tokens_computed + seen.report.tokens_pulled == len(PROMPT)
    assert pull_failure(running, asked.request_id).startswith("kv_corrupt")
    after = running.begin(OTHER)
    assert await after.answer() == right_after
    (whole,) = await running.reported(after.request_id, "decode")
    assert whole.report is not None
    assert whole.report.tokens_computed == 0
    assert running.refused(reason) == 1


def pull_failure(running: Platform, request_id: str) -> str:
    """Why the pull of a request failed, from its trace."""
    (span,) = [span for span in running.recorder.spans(request_id) if span.name == "kv.pull"]
    return str(span.attributes["failed"])


async def test_a_bit_flipped_on_the_wire() -> None:
    proxy = FlippingProxy()
    async with platform(pair("tcp", wrap_transport=only("prefill-0", lambda tcp: Proxied(tcp, proxy)))) as running:
        proxy.arm(running.workers["prefill-0"].engine.layout.block_bytes * 3 // 2)
        await noticed(running, "digest")
        assert proxy.flipped


def once(
    change: Callable[[BlockReceived, memoryview], BlockReceived],
) -> Callable[[BlockReceived, memoryview], BlockReceived]:
    """Spoil the second block that arrives, and no other."""
    arrived = []

    def spoil(landed: BlockReceived, block: memoryview) -> BlockReceived:
        arrived.append(landed.index)
        return change(landed, block) if len(arrived) == 2 else landed

    return spoil


def flipped(landed: BlockReceived, block: memoryview) -> BlockReceived:
    flip(block, 12345)
    return landed


def of_an_older_epoch(landed: BlockReceived, _block: memoryview) -> BlockReceived:
    handle = msgspec.structs.replace(landed.handle, epoch=landed.handle.epoch ^ 1)
    return msgspec.structs.replace(landed, handle=handle)


def zeroed(landed: BlockReceived, block: memoryview) -> BlockReceived:
    block[:] = bytes(block.nbytes)
    return landed


@pytest.mark.parametrize("scheme", ["tcp", "shm"])
@pytest.mark.parametrize(
    ("change", "reason"), [(flipped, "digest"), (zeroed, "digest"), (of_an_older_epoch, "epoch")]
)
async def test_a_block_that_changes_on_its_way(
    scheme: str, change: Callable[[BlockReceived, memoryview], BlockReceived], reason: str
) -> None:
    wrap = only("decode-0", lambda transport: SpoiledArrivals(transport, once(change)))
    async with platform(pair(scheme, wrap_transport=wrap)) as running:
        await noticed(running, reason)


class Meddler:
    """What a holder does wrong with the second block of the first pull."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._done = False

    def __call__(self, batch: tuple[Offered, ...], memory: BlockMemory) -> tuple[Offered, ...]:
        offers = [answer for answer in batch if isinstance(answer, Offer)]
        if self._done or len(offers) < 2:
            return batch
        self._done = True
        other, bad = offers[0], offers[1]
        if self._what == "overwritten":
            flip(memory.block(bad.handle.slot), 999)
            return batch
        wrong = misnamed(bad, other.handle.name)
        if self._what == "exchanged":
            handle = msgspec.structs.replace(bad.handle, slot=other.handle.slot)
            wrong = msgspec.structs.replace(bad, handle=handle)
        return tuple(wrong if answer is bad else answer for answer in batch)


@pytest.mark.parametrize("scheme", ["tcp", "shm"])
@pytest.mark.parametrize(("what", "reason"), [("overwritten", "digest"), ("exchanged", "digest"), ("named", "name")])
async def test_a_holder_that_gives_out_the_wrong_bytes(scheme: str, what: str, reason: str) -> None:
    meddler = Meddler(what)
    wrap = only("prefill-0", lambda transport: MeddlingHolder(transport, lambda _: None, meddler))
    async with platform(pair(scheme, wrap_transport=wrap)) as running:
        await noticed(running, reason)


@pytest.mark.parametrize("scheme", ["tcp", "shm"])
async def test_a_holder_that_is_a_new_incarnation_refuses_and_decode_computes(scheme: str) -> None:
    workers: list[Worker] = []

    def asked(_request: PullOpen) -> None:
        workers[0].engine.begin_epoch(4711)

    wrap = only("prefill-0", lambda transport: MeddlingHolder(transport, asked, lambda batch, _: batch))
    (right,) = await truth(ASK)
    async with platform(pair(scheme, wrap_transport=wrap)) as running:
        workers.append(running.workers["prefill-0"])
        request = running.begin(ASK)
        assert await request.answer() == right
        (seen,) = await running.reported(request.request_id, "decode")
        assert seen.report is not None
        assert seen.report.tokens_pulled == 0
        # Its last token is computed again when decode is told to sample after it had computed everything.
        assert len(PROMPT) <= seen.report.tokens_computed <= len(PROMPT) + 1
        assert pull_failure(running, request.request_id).startswith("stale_epoch")
        await running.idle()


async def test_prefill_killed_before_its_first_token() -> None:
    held: list[HeldRunner] = []

    def wrap(name: str, runner: Runner) -> Runner:
        if name != "prefill-0":
            return runner
        held.append(HeldRunner(runner, steps=0))
        return held[-1]

    (right,) = await truth(ASK)
    async with platform(pair("tcp", wrap_runner=wrap)) as running:
        asked = running.begin(ASK)
        await held[0].held.wait()
        assert asked.listener.tokens == 0
        await running.kill("prefill-0")
        assert await asked.answer() == right
        (seen,) = await running.reported(asked.request_id, "decode")
        assert seen.report is not None
        # Its last token is computed again when decode is told to sample after it had computed everything.
        assert len(PROMPT) <= seen.report.tokens_computed <= len(PROMPT) + 1


async def test_prefill_that_hangs_is_gone_on_without() -> None:
    impatient = Deadlines(queue_s=0.5, prefill_progress_s=0.5)

    def wrap(name: str, runner: Runner) -> Runner:
        return HeldRunner(runner, steps=1) if name == "prefill-0" else runner

    right_before, right = await truth(OTHER, ASK)
    async with platform(pair("shm", wrap_runner=wrap, deadlines=impatient)) as running:
        # How long a step takes is known from here on.
        assert await running.ask(OTHER) == right_before
        assert await running.ask(ASK) == right


LONG = replace(ASK, stopping=Stopping(max_tokens=40, ignore_eos=True), seed=11)
STEPS = 15
"""Decode steps before the worker is lost: tokens 2 to 16 have been given out by then."""


async def stop_across(ask: Ask, tokens: int) -> Ask:
    """The request with a stop string that begins in its first `tokens` tokens and ends after them."""
    whole, part = await truth(ask, replace(ask, stopping=Stopping(max_tokens=tokens, ignore_eos=True)))
    text, cut = whole.sequences[0].text, len(part.sequences[0].text)
    stop = text[cut - 4 : cut + 3]
    assert text.find(stop) == cut - 4
    return replace(ask, stopping=Stopping(max_tokens=40, stop=("nowhere", stop), ignore_eos=True))


@pytest.mark.parametrize("what", ["greedy", "seeded", "penalised", "two sequences", "stop string"])
async def test_decode_lost_in_mid_stream(what: str) -> None:
    asks = {
        "greedy": LONG,
        "seeded": replace(LONG, sampling=Sampling(temperature=1.0)),
        "penalised": replace(LONG, sampling=Sampling(temperature=0.9, frequency_penalty=0.7, presence_penalty=0.3)),
        "two sequences": replace(LONG, sampling=Sampling(temperature=1.0), n=2),
    }
    ask = await stop_across(LONG, STEPS + 1) if what == "stop string" else asks[what]
    held: list[HeldRunner] = []

    def wrap(name: str, runner: Runner) -> Runner:
        if name != "decode-0":
            return runner
        held.append(HeldRunner(runner, STEPS))
        return held[-1]

    (right,) = await truth(ask)
    if what == "stop string":
        assert right.sequences[0].finish == "stop"
    async with platform(replace(pair("tcp", wrap_runner=wrap), decode=2)) as running:
        asked = running.begin(ask)
        async with asyncio.timeout(100):
            await held[0].held.wait()
        assert 0 < asked.listener.tokens <= (STEPS + 1) * ask.n
        await running.kill("decode-0")
        assert await asked.answer() == right
        last = running.attempts(asked.request_id, "local" if ask.n > 1 else "decode")[-1]
        assert running.worker_at(last.address).name == "decode-1"


async def test_an_engine_process_killed_in_mid_stream() -> None:
    engines: list[ProcessRunner] = []

    def wrap(name: str, runner: Runner) -> Runner:
        if name != "decode-0":
            return runner
        apart = build_runner(replace(SETTING.torch, mode="process"))
        assert isinstance(apart, ProcessRunner)
        engines.append(apart)
        return apart

    some = asyncio.Event()
    ask = replace(LONG, stopping=Stopping(max_tokens=200, ignore_eos=True), sampling=Sampling(temperature=1.0))
    (right,) = await truth(ask)
    async with platform(replace(pair("shm", wrap_runner=wrap), decode=2)) as running:
        asked = running.begin(ask, lambda count: some.set() if count >= 5 else None)
        async with asyncio.timeout(100):
            await some.wait()
        pid = engines[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert await asked.answer() == right
        first, last = running.attempts(asked.request_id, "decode")
        assert running.worker_at(first.address).name == "decode-0"
        assert running.worker_at(last.address).name == "decode-1"
