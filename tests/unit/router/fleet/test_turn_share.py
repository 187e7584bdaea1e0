"""Steps of thousands of sequences are written in slices: in order, whole, and with turns of others between."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from router.fleet.turn_share import OUTPUTS_PER_TURN, TurnShare, sliced
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.messages import Pong, RouterMessage, SequenceOutput, StepOutputs


def step(count: int, first: int = 0) -> StepOutputs:
    return StepOutputs(tuple(SequenceOutput(first + each, 0, 1, (7,), " x", 0) for each in range(count)))


def flat(messages: tuple[RouterMessage, ...]) -> list[object]:
    return [part for each in messages for part in (each.outputs if type(each) is StepOutputs else (each,))]


frames = st.lists(st.integers(0, 900).map(lambda count: step(count) if count % 7 else Pong(1, count)), max_size=6)


@given(frames)
def test_slices_have_everything_in_its_order_and_little_each(messages: list[RouterMessage]) -> None:
    parts = list(sliced(tuple(messages)))
    assert [each for part, _ in parts for each in flat(part)] == flat(tuple(messages))
    for part, count in parts:
        assert count == sum(len(each.outputs) for each in part if type(each) is StepOutputs) <= OUTPUTS_PER_TURN


def test_a_small_frame_is_one_part() -> None:
    messages = (step(3), Pong(1, 1), step(4))
    assert list(sliced(messages)) == [(messages, 7)]


def test_workers_share_a_turn_and_others_get_theirs() -> None:
    written: list[str] = []

    async def main(loop: VirtualLoop) -> None:
        turn, done = TurnShare(), 0

        async def read(name: str) -> None:
            nonlocal done
            for _, outputs in sliced((step(OUTPUTS_PER_TURN * 4),)):
                while not turn.take(outputs):  # noqa: ASYNC110  (turns)
                    await asyncio.sleep(0)
                written.append(name)
            done += 1

        async def other() -> None:
            while done < 3:
                written.append(".")
                await asyncio.sleep(0)

        await asyncio.gather(*[read(name) for name in "abc"], other())

    run(main)
    assert [written.count(name) for name in "abc"] == [4, 4, 4]
    turns = "".join(written).split(".")
    assert max(map(len, turns)) <= 2, "a slice of one turn may stand beside one of the next, never more"
