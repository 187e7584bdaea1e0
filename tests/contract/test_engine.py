"""What every engine promises, whatever computes inside it. Tokens are compared with the engine's own `local` mode.

Lengths are those of an engine with blocks of 8 tokens; for one with larger blocks prompts are stretched, and figures
about them are put in proportion, so that the same blocks are full. An engine may have been lent: it remembers what
others asked of it, under other names.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count

import pytest

from tandem.core.errors import TandemError
from tandem.core.kv import Handle, pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.digest import Digester, unbind
from tandem.engine.protocol import (
    BlockSpace,
    Emitted,
    Engine,
    EngineRequest,
    FetchJob,
    FirstTokens,
    Gone,
    Pending,
    RequestStats,
    StepReport,
)
from tandem.process.system import SystemClock
from tests.contract.engines import BLOCK_TOKENS, ENGINES, Factory, Renewable

_NUMBERS = count(1)
GREEDY = Sampling(temperature=0.0)
LIMIT_S = 20.0


class Driven:
    """A running engine, with its reports collected."""

    def __init__(self, engine: Engine, epoch: int, root: bytes) -> None:
        self.engine = engine
        self.epoch = epoch
        self.root = root
        """Of all names here: what a lent engine has from before is under others."""
        self.stretch = engine.info.layout.block_tokens // BLOCK_TOKENS
        self.emitted: list[Emitted] = []
        self.ended: dict[int, RequestStats] = {}
        self.failed: dict[int, str] = {}
        self.fetches: dict[int, FetchJob] = {}
        self.names: dict[bytes, None] = dict.fromkeys(engine.snapshot())
        self.loads = 0
        self._before = tuple(self.names)
        self._heard = asyncio.Event()

    @property
    def kv(self) -> BlockSpace:
        assert self.engine.kv is not None
        return self.engine.kv

    def listen(self, report: StepReport) -> None:
        self.emitted += report.emitted
        self.failed.update({failed.work_id: failed.code for failed in report.failed})
        self.fetches.update({job.work_id: job for job in report.fetches})
        for ended in report.ended:
            assert ended.work_id not in self.ended, "a work ends once"
            self.ended[ended.work_id] = self._in_proportion(ended.stats)
        self.names.update(dict.fromkeys(report.kv.stored))
        for name in report.kv.removed:
            self.names.pop(name)
        self.loads += report.load is not None
        self._heard.set()

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait for reports until something holds."""
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self._heard.clear()
                await self._heard.wait()

    def _in_proportion(self, stats: RequestStats) -> RequestStats:
        """Prompt tokens as if blocks had 8; what is computed of a begun token counts as all of it."""
        computed = -(-stats.tokens_computed // self.stretch)
        reused, pulled = stats.tokens_reused // self.stretch, stats.tokens_pulled // self.stretch
        return replace(stats, tokens_computed=computed, tokens_reused=reused, tokens_pulled=pulled)

    @property
    def new_names(self) -> tuple[bytes, ...]:
        """Names that came about since the engine was lent."""
        return tuple(name for name in self.names if name not in self._before)

    def submit(
        self,
        prompt: tuple[int, ...],
        mode: str = "local",
        *,
        max_tokens: int = 5,
        branches: tuple[ChildRequest, ...] = (ChildRequest(0, 1),),
        sampling: Sampling = GREEDY,
        within_s: float | None = None,
        lease: str = "",
    ) -> int:
        number = next(_NUMBERS)
        self.engine.submit(
            EngineRequest(
                work_id=number,
                mode=mode,
                prompt=pack_tokens([token for token in prompt for _ in range(self.stretch)]),
                branches=branches,
                sampling=sampling,
                stopping=Stopping(max_tokens, ignore_eos=True),
                root=self.root,
                deadline=SystemClock().now() + (LIMIT_S if within_s is None else within_s),
                lease_id=(lease or f"lease-{number}") if mode == "prefill" else "",
                lease_s=30.0,
            )
        )
        return number

    async def answer(self, work: int) -> tuple[int, ...]:
        """The tokens of a work's only branch, once it has ended."""
        await self.until(lambda: work in self.ended)
        return self.tokens(work)

    def tokens(self, work: int, sequence: int = 0) -> tuple[int, ...]:
        return tuple(e.token for e in self.emitted if (e.work_id, e.sequence) == (work, sequence))


@pytest.fixture(params=sorted(ENGINES))
def factory(request: pytest.FixtureRequest) -> Factory:
    return ENGINES[request.param]


@asynccontextmanager
async def running(
    factory: Factory, *, epoch: int = 3, blocks: int = 64, root: bytes | None = None
) -> AsyncIterator[Driven]:
    """Engines that are to agree on names are given the same root."""
    async with factory(SystemClock(), epoch=epoch, blocks=blocks) as engine:
        await engine.start()
        driven = Driven(engine, epoch, root or fresh_root())
        task = asyncio.create_task(engine.run(driven.listen))
        try:
            yield driven
        finally:
            await engine.stop()
            await task


def fresh_root() -> bytes:
    return next(_NUMBERS).to_bytes(16, "big")


def fresh_lease() -> str:
    return f"shared-{next(_NUMBERS)}"


def prompt(length: int, base: int = 300) -> tuple[int, ...]:
    return tuple(base + number for number in range(length))


async def complete(holder: Driven, lease: str, name: bytes) -> Handle:
    """A handle to a block under a lease, once it is complete."""
    heard = asyncio.Event()
    unwatch = holder.kv.watch(lease, heard.set)
    async with asyncio.timeout(LIMIT_S):
        while isinstance(found := holder.kv.look(lease, name), Pending):
            await heard.wait()
            heard.clear()
    unwatch()
    assert isinstance(found, Handle)
    return found


async def hand_over(prefill: Driven, decode: Driven, lease: str, job: FetchJob) -> None:
    """Copy every block of a fetch from one engine to the other, checking digests on the way."""
    digester = Digester(decode.kv.layout)
    for target in job.targets:
        handle = await complete(prefill, lease, target.name)
        assert handle.epoch == prefill.epoch
        block = prefill.kv.memory.block(handle.slot)
        words = digester.content_words(block)
        assert unbind(handle.digests, prefill.epoch, target.name, handle.generation) == words
        decode.kv.memory.block(target.slot)[:] = block
        decode.kv.landed(job.work_id, target.index, words)
    decode.kv.fetch_ended(job.work_id, None)


async def test_info_says_what_the_engine_is(factory: Factory) -> None:
    async with running(factory) as one:
        info = one.engine.info
        assert info.blocks >= 64
        assert one.kv.memory.blocks >= 64
        assert info.layout == one.kv.layout
        assert one.kv.memory.block_bytes == info.layout.block_bytes
        assert len(one.kv.memory.buffer) >= 64 * info.layout.block_bytes
        assert info.vocab_size > 400
        assert info.context_tokens >= 512


async def test_a_local_work_emits_its_positions_in_order_and_ends_once(factory: Factory) -> None:
    async with running(factory) as one:
        work = one.submit(prompt(20), max_tokens=6)
        await one.until(lambda: work in one.ended)
        assert [e.position for e in one.emitted] == [1, 2, 3, 4, 5, 6]
        assert [e.finish for e in one.emitted] == [None] * 5 + ["length"]
        stats = one.ended[work]
        assert (stats.tokens_computed, stats.tokens_reused, stats.tokens_pulled) == (20, 0, 0)
        assert stats.admitted is not None
        assert stats.prefilled is not None
        assert stats.first_token is not None
        assert stats.finished is not None
        assert stats.submitted <= stats.admitted <= stats.prefilled <= stats.first_token <= stats.finished
        assert stats.chunks >= 2
        # Figures come at intervals: the last ones may have gone to whoever had a lent engine before.
        await one.until(lambda: one.loads)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 31, 40])
async def test_prefill_and_decode_apart_give_the_tokens_of_one_engine(factory: Factory, length: int) -> None:
    async with running(factory) as alone:
        wanted = await alone.answer(alone.submit(prompt(length)))
    root = fresh_root()
    async with running(factory, root=root) as prefill, running(factory, epoch=4, root=root) as decode:
        first = prefill.submit(prompt(length), "prefill")
        rest = decode.submit(prompt(length), "decode")
        await prefill.until(lambda: first in prefill.ended)
        await decode.until(lambda: rest in decode.fetches)
        tokens = prefill.kv.first_tokens(f"lease-{first}")
        assert tokens == FirstTokens(((0, wanted[0], None),))
        await hand_over(prefill, decode, f"lease-{first}", decode.fetches[rest])
        decode.engine.provide_first(rest, 0, wanted[0])
        decode.engine.provide_first(rest, 0, wanted[0])
        await decode.until(lambda: rest in decode.ended)
        assert prefill.tokens(first) + decode.tokens(rest) == wanted
        assert decode.ended[rest].tokens_computed == 0
        assert decode.ended[rest].tokens_pulled == length


async def test_what_is_not_fetched_is_computed_and_the_first_token_drawn_when_told(factory: Factory) -> None:
    root = fresh_root()
    async with running(factory, root=root) as prefill, running(factory, epoch=4, root=root) as decode:
        wanted = await prefill.answer(prefill.submit(prompt(30)))
        lease = prefill.submit(prompt(30), "prefill")
        await prefill.until(lambda: lease in prefill.ended)
        rest = decode.submit(prompt(30), "decode")
        await decode.until(lambda: rest in decode.fetches)
        job = decode.fetches[rest]
        await hand_over(prefill, decode, f"lease-{lease}", FetchJob(rest, job.targets[:2]))
        decode.engine.sample_first(rest)
        assert await decode.answer(rest) == wanted
        assert (decode.ended[rest].tokens_pulled, decode.ended[rest].tokens_computed) == (16, 14)


def take(holder: Driven, receiver: Driven, lease: str, job: FetchJob, indices: tuple[int, ...]) -> None:
    """Copy some blocks of a fetch from one engine to another, as they are under a shared lease; the rest is lost."""
    digester = Digester(receiver.kv.layout)
    for target in job.targets:
        handle = holder.kv.look(lease, target.name)
        assert isinstance(handle, Handle)
        if target.index in indices:
            block = holder.kv.memory.block(handle.slot)
            receiver.kv.memory.block(target.slot)[:] = block
            receiver.kv.landed(job.work_id, target.index, digester.content_words(block))
    receiver.kv.fetch_ended(job.work_id, "the rest is lost")


@pytest.mark.parametrize("indices", [(), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("mode", ["local", "prefill"])
async def test_leading_blocks_of_another_engine_change_no_token(
    factory: Factory, mode: str, indices: tuple[int, ...]
) -> None:
    stats = await bring_some(factory, mode, indices)
    assert stats.tokens_pulled == 8 * len(indices)
    assert stats.tokens_computed == 30 - 8 * len(indices)


@pytest.mark.parametrize("mode", ["local", "prefill"])
async def test_blocks_of_another_engine_beyond_a_hole_change_no_token(factory: Factory, mode: str) -> None:
    await bring_some(factory, mode, (1, 2))


async def test_blocks_of_another_engine_beyond_a_hole_are_not_computed(factory: Factory) -> None:
    stats = await bring_some(factory, "local", (1, 2))
    assert (stats.tokens_pulled, stats.tokens_computed) == (16, 14)


async def bring_some(factory: Factory, mode: str, indices: tuple[int, ...]) -> RequestStats:
    """Some of the first three blocks of a prompt come from another engine, the rest is computed. Its tokens are those
    of the other engine, and then all of its full blocks are here."""
    root = fresh_root()
    async with running(factory, root=root) as holder, running(factory, epoch=4, root=root) as one:
        wanted = await holder.answer(holder.submit(prompt(30)))
        work = one.submit(prompt(30), mode)
        prefix = one.kv.prefix(work)
        assert prefix is not None
        assert (len(prefix.names), prefix.here) == (3, 0)
        one.kv.bring(work, 3)
        await one.until(lambda: work in one.fetches)
        job = one.fetches[work]
        assert tuple(target.name for target in job.targets) == prefix.names
        lease = fresh_lease()
        assert holder.kv.share(lease, prefix.names, 30.0)
        take(holder, one, lease, job, indices)
        answer = await one.answer(work)
        assert answer == wanted[: len(answer)]
        assert len(answer) == (1 if mode == "prefill" else len(wanted))
        if mode == "prefill":
            for name in prefix.names:
                await complete(one, f"lease-{work}", name)
        again = one.submit(prompt(30))
        assert (await one.answer(again), one.ended[again].tokens_reused) == (wanted, 24)
        return one.ended[work]


async def test_blocks_are_shared_for_a_while_without_any_work(factory: Factory) -> None:
    async with running(factory) as one:
        await one.answer(one.submit(prompt(24)))
        await one.until(lambda: len(one.new_names) == 3)
        names, lease, short = one.new_names, fresh_lease(), fresh_lease()
        assert one.kv.share(lease, (*names, bytes(16)), 30.0)
        assert isinstance(one.kv.look(lease, names[0]), Handle)
        assert isinstance(one.kv.look(lease, bytes(16)), Gone)
        assert one.kv.first_tokens(lease) is None
        one.kv.release(lease)
        assert not one.kv.share(lease, names, 30.0), "it has ended"
        assert one.kv.share(short, names, 0.05)
        heard = asyncio.Event()
        unwatch = one.kv.watch(short, heard.set)
        async with asyncio.timeout(LIMIT_S):
            while one.kv.lease_exists(short):
                await heard.wait()
                heard.clear()
        unwatch()


async def test_a_relayed_first_token_is_emitted_as_such_while_the_fetch_runs(factory: Factory) -> None:
    async with running(factory) as decode:
        work = decode.submit(prompt(20), "decode", max_tokens=1)
        await decode.until(lambda: work in decode.fetches)
        decode.engine.provide_first(work, 0, 321, relay=True)
        await decode.until(lambda: work in decode.ended)
        (emitted,) = decode.emitted
        assert (emitted.position, emitted.token, emitted.relayed, emitted.finish) == (1, 321, True, "length")
        decode.kv.fetch_ended(work, "not wanted any more")


async def test_forced_tokens_are_not_emitted_and_change_nothing(factory: Factory) -> None:
    async with running(factory) as one:
        sampling = Sampling(temperature=0.8, frequency_penalty=0.5)
        wanted = await one.answer(one.submit(prompt(20), max_tokens=8, sampling=sampling))
        for cut in (1, 4, 7):
            branches = (ChildRequest(0, 1, wanted[:cut]),)
            again = await one.answer(one.submit(prompt(20), max_tokens=8, sampling=sampling, branches=branches))
            assert again == wanted[cut:]


async def test_branches_are_independent_and_reproducible(factory: Factory) -> None:
    async with running(factory) as one:
        sampling = Sampling(temperature=1.0)
        branches = tuple(ChildRequest(number, 70 + number) for number in range(3))
        work = one.submit(prompt(21), sampling=sampling, branches=branches)
        await one.until(lambda: work in one.ended)
        assert one.ended[work].tokens_computed == 21
        for number in range(3):
            single = one.submit(prompt(21), sampling=sampling, branches=(branches[number],))
            await one.until(lambda single=single: single in one.ended)  # type: ignore[misc]
            assert one.tokens(single, number) == one.tokens(work, number)


async def test_a_cached_prefix_is_reused_with_the_same_tokens(factory: Factory) -> None:
    async with running(factory) as one:
        wanted = await one.answer(one.submit(prompt(24)))
        work = one.submit(prompt(24))
        assert await one.answer(work) == wanted
        assert (one.ended[work].tokens_computed, one.ended[work].tokens_reused) == (1, 23)
        assert sorted(one.names) == sorted(one.engine.snapshot())


async def test_logprobs_are_there_when_asked_for(factory: Factory) -> None:
    async with running(factory) as one:
        work = one.submit(prompt(9), sampling=Sampling(temperature=0.0, logprobs=2), max_tokens=3)
        await one.until(lambda: work in one.ended)
        for emitted in one.emitted:
            assert emitted.logprob is not None
            assert emitted.logprob.logprob <= 0.0
            assert emitted.logprob.top[0].token == emitted.token
            assert emitted.logprob.top[0].logprob >= emitted.logprob.top[1].logprob
        bare = one.submit(prompt(9), max_tokens=1)
        await one.until(lambda: bare in one.ended)
        assert one.emitted[-1].logprob is None


async def test_watchers_hear_of_blocks_and_of_the_end(factory: Factory) -> None:
    async with running(factory) as one:
        heard = asyncio.Event()
        lease = fresh_lease()
        unwatch = one.kv.watch(lease, heard.set)
        assert not one.kv.lease_exists(lease)
        work = one.submit(prompt(20), "prefill", lease=lease)
        assert one.kv.lease_exists(lease)
        async with asyncio.timeout(LIMIT_S):
            while one.kv.first_tokens(lease) is None:
                await heard.wait()
                heard.clear()
        await one.until(lambda: work in one.ended)
        assert one.kv.renew(lease)
        heard.clear()
        one.kv.release(lease)
        async with asyncio.timeout(LIMIT_S):
            await heard.wait()
        assert isinstance(one.kv.look(lease, bytes(16)), Gone)
        assert not one.kv.renew(lease)
        unwatch()


async def test_names_outside_the_lease_are_not_answered(factory: Factory) -> None:
    async with running(factory) as one:
        lease = fresh_lease()
        one.submit(prompt(20), "prefill", lease=lease)
        assert isinstance(one.kv.look(lease, bytes(16)), Gone)
        assert isinstance(one.kv.look("other", bytes(16)), Gone)
        assert not isinstance(one.kv.look(lease, bytes(16)), Pending)


async def test_a_held_block_stays_readable_whatever_else_the_pool_is_wanted_for(factory: Factory) -> None:
    async with running(factory, blocks=16) as one:
        await one.answer(one.submit(prompt(24)))
        await one.until(lambda: len(one.new_names) == 3)
        digester, name = Digester(one.kv.layout), one.new_names[0]
        handle = one.kv.hold(name)
        assert handle is not None
        assert one.kv.hold(bytes(16)) is None
        for base in (350, 360, 370):
            await one.answer(one.submit(prompt(90, base)))
        words = digester.content_words(one.kv.memory.block(handle.slot))
        assert unbind(handle.digests, one.epoch, name, handle.generation) == words
        one.kv.unhold(handle.slot)
        await one.answer(one.submit(prompt(100, 380), max_tokens=20))
        assert name not in one.engine.snapshot()


async def test_a_cancel_ends_the_work_and_frees_everything(factory: Factory) -> None:
    async with running(factory) as one:
        work = one.submit(prompt(20), max_tokens=300)
        await one.until(lambda: one.emitted)
        one.engine.cancel(work)
        one.engine.cancel(work)
        one.engine.cancel(12345)
        await one.until(lambda: work in one.ended)
        assert work not in one.failed
        # The whole pool can be used again.
        assert len(await one.answer(one.submit(prompt(500), max_tokens=12))) == 12


async def test_a_deadline_ends_the_work_with_a_typed_error(factory: Factory) -> None:
    async with running(factory) as one:
        work = one.submit(prompt(20), "decode", within_s=0.05)
        await one.until(lambda: work in one.ended)
        assert one.failed == {work: "deadline_exceeded"}


async def test_impossible_works_are_refused_at_once(factory: Factory) -> None:
    async with running(factory, blocks=8) as one:
        with pytest.raises(TandemError) as context:
            one.submit(prompt(500), max_tokens=1000)
        assert context.value.code == "context_length_exceeded"
        with pytest.raises(TandemError) as blocks:
            one.submit(prompt(100), max_tokens=20)
        assert blocks.value.code == "out_of_blocks"


async def test_many_works_on_a_small_pool_all_get_their_own_answer(factory: Factory) -> None:
    async with running(factory) as roomy, running(factory, blocks=12) as tight:
        prompts = [prompt(5 + 3 * number, 300 + number) for number in range(10)]
        wanted = [roomy.submit(tokens, max_tokens=20) for tokens in prompts]
        works = [tight.submit(tokens, max_tokens=20) for tokens in prompts]
        await roomy.until(lambda: len(roomy.ended) == 10)
        await tight.until(lambda: len(tight.ended) == 10)
        assert [tight.tokens(work) for work in works] == [roomy.tokens(work) for work in wanted]


async def test_a_new_epoch_voids_what_the_last_one_handed_out(factory: Factory) -> None:
    async with running(factory) as one:
        lease = fresh_lease()
        work = one.submit(prompt(20), "prefill", lease=lease)
        await one.until(lambda: work in one.ended)
        assert isinstance(one.engine, Renewable)
        one.engine.begin_epoch(99)
        assert one.kv.epoch == 99
        assert not one.kv.lease_exists(lease)
