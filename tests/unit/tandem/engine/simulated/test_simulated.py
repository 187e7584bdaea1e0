"""The simulated engine: right bytes give the reference's tokens, anything else gives other ones."""

import asyncio
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.digest import Digester
from tandem.engine.local import LocalEngine
from tandem.engine.protocol import Emitted, EngineRequest, StepReport
from tandem.engine.scheduler.plan import BlockRef, Draw, Row, Step, StepResult
from tandem.engine.scheduler.step_budget import StepLoad
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.content import Content
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.reference import reference_tokens
from tandem.engine.simulated.runner import SimulatedRunner

MODEL = SimulatedModel(block_tokens=4, blocks=16, context_tokens=64, vocab=1000)
TOKENS = tuple(range(40, 55))
TABLE = np.array([9, 3, 12, 5], dtype="<u4").tobytes()


def draw(position: int = 1, **fields: object) -> Draw:
    given_fields: dict[str, object] = {"seed": 5, "sampling": Sampling(), **fields}
    return Draw(work_id=1, sequence=0, position=position, **given_fields)  # type: ignore[arg-type]


def row(start: int, end: int, *, write: bool = True, draws: tuple[Draw, ...] = ()) -> Row:
    return Row(pack_tokens(TOKENS[start:end]), start, TABLE, write, draws)


def compute(runner: SimulatedRunner, *rows: Row, complete: tuple[BlockRef, ...] = ()) -> StepResult:
    return runner.compute(Step(1, rows, complete=complete))


def filled() -> SimulatedRunner:
    runner = SimulatedRunner(MODEL)
    compute(runner, row(0, 15))
    return runner


def token(runner: SimulatedRunner, **fields: object) -> int:
    return compute(runner, row(14, 15, write=False, draws=(draw(**fields),))).drawn[0].token  # type: ignore[arg-type]


def attended_by(runner: SimulatedRunner, end: int = 15) -> int:
    """E over the first tokens: by default all but what the last block has room for."""
    runner._begin()
    return int(runner._sums.attended([TABLE], [end])[0][0])


@given(st.lists(st.integers(1, 14), max_size=5))
def test_chunks_do_not_matter(cuts: list[int]) -> None:
    whole, pieces = SimulatedRunner(MODEL), SimulatedRunner(MODEL)
    wanted = compute(whole, row(0, 15, draws=(draw(),))).drawn
    edges = sorted({0, 15, *cuts})
    for start, end in pairwise(edges):
        drawn = compute(pieces, row(start, end, draws=(draw(),) if end == 15 else ())).drawn
    assert drawn == wanted
    assert bytes(pieces.memory.buffer) == bytes(whole.memory.buffer)


@settings(max_examples=200)
@given(st.integers(0, 3), st.integers(0, 63), st.integers(1, 255))
def test_every_attended_byte_counts_and_no_other(block: int, byte: int, change: int) -> None:
    runner = filled()
    before = token(runner, sampling=Sampling(logprobs=0)), bytes(runner.memory.buffer)
    slot = (9, 3, 12, 5)[block]
    runner.memory.block(slot)[byte] ^= change
    attended = block < 3 or byte % 32 < 24
    assert (attended_by(runner) != attended_by(filled())) == attended
    assert before[1] != bytes(runner.memory.buffer)


def test_swapped_stale_and_empty_blocks_change_the_token() -> None:
    wanted = token(filled())
    swapped = filled()
    first, second = bytes(swapped.memory.block(9)), bytes(swapped.memory.block(3))
    swapped.memory.block(9)[:], swapped.memory.block(3)[:] = second, first
    empty = filled()
    empty.memory.block(3)[:] = bytes(64)
    assert wanted not in (token(swapped), token(empty))


def test_poison_spreads_into_what_is_computed_on_it() -> None:
    runner, right = SimulatedRunner(MODEL), filled()
    compute(runner, row(0, 8))
    runner.memory.block(9)[0] ^= 1
    compute(runner, row(8, 15))
    assert bytes(runner.memory.block(12)) != bytes(right.memory.block(12))


def test_the_draw_depends_on_position_seed_token_and_history_but_not_on_the_seed_when_greedy() -> None:
    runner = filled()
    base = token(runner)
    assert token(runner, position=2) != base
    assert token(runner, seed=6) != base
    greedy = Sampling(temperature=0.0)
    assert token(runner, sampling=greedy, seed=1) == token(runner, sampling=greedy, seed=2)
    penalty = Sampling(presence_penalty=1.0)
    seen = {token(runner, sampling=penalty, output=pack_tokens((number,))) for number in range(5)}
    assert len(seen) == 5


def test_bias_and_forbidden_tokens_are_obeyed() -> None:
    runner = filled()
    base = token(runner)
    assert token(runner, forbidden=(base,)) != base
    assert token(runner, sampling=Sampling(logit_bias=((base, -100.0),))) != base
    assert token(runner, sampling=Sampling(logit_bias=((777, 100.0),))) == 777


def test_the_end_token_comes_at_its_rate() -> None:
    model = SimulatedModel(block_tokens=4, blocks=4, context_tokens=64, vocab=1000, eos_rate=0.1)
    ends = 0
    for seed in range(1000):
        answer = reference_tokens(model, pack_tokens((7,)), ChildRequest(0, seed), Sampling(), Stopping(1))
        ends += answer.tokens == (0,)
    assert 60 <= ends <= 140


def test_digests_and_zeroed_tails() -> None:
    runner = SimulatedRunner(MODEL)
    runner.memory.block(5)[:] = b"\xff" * 64
    result = compute(runner, row(0, 15), complete=(BlockRef(9, 4), BlockRef(5, 3)))
    content = Content(MODEL)
    for index, (slot, words) in enumerate(zip((9, 5), result.digests, strict=True)):
        wanted = content.block_bytes(TOKENS, (0, 3)[index])
        assert bytes(runner.memory.block(slot)) == wanted
        assert words == Digester(MODEL.layout).content_words(wanted)


def test_copies_come_before_rows() -> None:
    runner = filled()
    runner.compute(Step(1, (row(0, 15),), copies=((9, 1),)))
    assert bytes(runner.memory.block(1)) == bytes(runner.memory.block(9))


def test_the_step_formula() -> None:
    model = SimulatedModel(base_s=1.0, sequence_s=0.1, token_s=0.01, context_s=0.001)
    assert model.step_s(StepLoad(2, 3, 4.0)) == pytest.approx(1.234)


@pytest.mark.parametrize(
    ("field", "value"), [("blocks", 0), ("base_s", -1.0), ("vocab", 10), ("eos_rate", 1.0), ("eos_token_id", 300)]
)
def test_bad_settings_are_named(field: str, value: float) -> None:
    with pytest.raises(TandemError, match=field) as raised:
        SimulatedModel(**{field: value})  # type: ignore[arg-type]
    assert raised.value.param == field


def test_another_seed_is_another_model() -> None:
    other = SimulatedModel(block_tokens=4, blocks=16, context_tokens=64, vocab=1000, seed=1)
    assert other.info().model_hash != MODEL.info().model_hash
    branch, stopping = ChildRequest(0, 5), Stopping(4)
    prompt = pack_tokens(TOKENS)
    assert reference_tokens(other, prompt, branch, Sampling(), stopping) != reference_tokens(
        MODEL, prompt, branch, Sampling(), stopping
    )


def test_it_runs_on_virtual_time_and_takes_the_formulas_time() -> None:
    model = SimulatedModel(
        block_tokens=4, blocks=64, context_tokens=64, vocab=1000, base_s=1.0, sequence_s=0, token_s=0
    )
    emitted: list[tuple[float, Emitted]] = []

    async def main(loop: VirtualLoop) -> float:
        engine = LocalEngine(SimulatedRunner(model), SchedulerSettings(), LoopClock(loop), 1)
        await engine.start()
        done = asyncio.Event()

        def listen(report: StepReport) -> None:
            emitted.extend((loop.time(), item) for item in report.emitted)
            if report.ended:
                done.set()

        task = asyncio.create_task(engine.run(listen))
        await asyncio.sleep(100.0)
        engine.submit(
            EngineRequest(
                work_id=1,
                mode="local",
                prompt=pack_tokens(TOKENS),
                branches=(ChildRequest(0, 5),),
                sampling=Sampling(),
                stopping=Stopping(5),
                root=bytes(16),
                deadline=1e9,
            )
        )
        await done.wait()
        await engine.stop()
        await task
        return loop.time()

    assert run(main) == pytest.approx(105.0)
    assert [time for time, _ in emitted] == pytest.approx([101.0, 102.0, 103.0, 104.0, 105.0])
    wanted = reference_tokens(model, pack_tokens(TOKENS), ChildRequest(0, 5), Sampling(), Stopping(5))
    assert tuple(item.token for _, item in emitted) == wanted.tokens


@settings(max_examples=60)
@given(st.data())
def test_sums_that_are_kept_are_what_the_bytes_add_up_to(data: st.DataObject) -> None:
    """Whatever is computed, copied, or changed from outside, in any order: no sum outlives its bytes. Nobody attends
    to a position that nobody has written yet: a sum that counts one is not told when it is written."""
    runner = SimulatedRunner(MODEL)
    compute(runner, row(0, 8))
    end = 8
    for _ in range(data.draw(st.integers(1, 8))):
        match data.draw(st.sampled_from(("step", "chunk", "change", "look", "copy"))):
            case "step" if end < 15:
                compute(runner, row(end, end + 1, draws=(draw(),)))
                end += 1
            case "chunk" if end < 14:
                until = data.draw(st.integers(end + 2, 15))
                compute(runner, row(end, until))
                end = until
            case "change":
                slot = data.draw(st.sampled_from((9, 3, 12, 5)))
                runner.memory.block(slot)[data.draw(st.integers(0, 63))] ^= 255
            case "copy":
                runner.compute(Step(1, (), copies=((9, 1), (1, 9))))
            case _:
                attended_by(runner, data.draw(st.integers(1, end)))
    until = data.draw(st.integers(1, 15))
    kept = attended_by(runner, until)
    whole = runner.memory.buffer
    assert len(whole) == MODEL.blocks * 64, "whoever takes the whole memory makes every sum void"
    assert kept == attended_by(runner, until)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from((2, 8)))
def test_what_is_carried_from_step_to_step_is_what_the_slots_hold(data: st.DataObject, sequences: int) -> None:
    """Sequences that share blocks, lose theirs to others, or have them changed, draw what a runner draws that reads
    all slots at every step."""
    model = SimulatedModel(block_tokens=4, blocks=40, context_tokens=64, vocab=1000)
    carries, reads = SimulatedRunner(model), SimulatedRunner(model)
    assert len(reads.memory.buffer) == 40 * 64, "nothing is kept by who has given the whole memory away"
    tables = [[0, 1] + [8 + 4 * index + block for block in range(3)] for index in range(sequences)]
    prefix = Row(pack_tokens(TOKENS[:8]), 0, np.array([0, 1], dtype="<u4").tobytes(), True, ())
    for runner in (carries, reads):
        compute(runner, prefix)
    ends = [8] * sequences
    for turn in range(data.draw(st.integers(2, 14))):
        running = [index for index in range(sequences) if ends[index] < 19 and data.draw(st.integers(0, 5))]
        rows = []
        for index in running:
            table = np.array(tables[index][: ends[index] // 4 + 1], dtype="<u4").tobytes()
            draws = (Draw(index, 0, 5, ends[index] - 7, Sampling(temperature=index % 2)),)
            rows.append(Row(pack_tokens((40 + turn,)), ends[index], table, True, draws))
            ends[index] += 1
        written = compute(carries, *rows), compute(reads, *rows)
        assert written[0].drawn == written[1].drawn
        victim, slot = data.draw(st.integers(0, sequences - 1)), data.draw(st.integers(0, 39))
        match data.draw(st.sampled_from(("nothing", "nothing", "change", "chunk", "steal", "again", "copy"))):
            case "change":
                for runner in (carries, reads):
                    runner.memory.block(slot)[3] ^= 255
            case "chunk":
                chunk = Row(pack_tokens(TOKENS[:3]), 0, np.array([slot], dtype="<u4").tobytes(), True, ())
                assert compute(carries, chunk).drawn == compute(reads, chunk).drawn
            case "steal":
                block = data.draw(st.integers(0, 4))
                tables[victim][block] = tables[(victim + 1) % sequences][block]
            case "again":
                ends[victim] = data.draw(st.integers(8, ends[victim]))
            case "copy":
                source = data.draw(st.integers(0, 39))
                for runner in (carries, reads):
                    runner.compute(Step(1, (), copies=((source, slot),)))
            case _:
                pass
