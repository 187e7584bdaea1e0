"""What is told of an engine's tokens, and when."""

import pytest

from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.messages import SequenceOutput, Submit
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.core.simple_tokenizer import BYTE_IDS, decode
from tandem.engine.protocol import Emitted
from tandem.worker.attempts import Attempt, AttemptTable, new_outputs
from tandem.worker.output_log import OutputLog
from tandem.worker.outputs import StreamInterval, process_outputs
from tandem.worker.settings import HostSettings
from tandem.worker.simple_decoder import SimpleDecoder

WORDS = tuple(range(BYTE_IDS, BYTE_IDS + 40))


def table_of(*works: int, stop: tuple[str, ...] = ()) -> AttemptTable:
    table = AttemptTable()
    for work in works:
        submit = Submit(
            handle=10 * work,
            request_id=f"r{work}",
            attempt=1,
            mode="local",
            prompt=pack_tokens((1, 2, 3)),
            branches=(ChildRequest(0, 1, (), 0),),
            sampling=Sampling(),
            stopping=Stopping(max_tokens=40, stop=stop),
            deadline_s=10.0,
        )
        table.add(Attempt(1, work, submit, 0.0, outputs=new_outputs(submit, SimpleDecoder()), log=OutputLog()))
    return table


def step(
    table: AttemptTable, pace: StreamInterval, position: int, *works: int, last: bool = False
) -> list[SequenceOutput]:
    finish = "length" if last else None
    told = process_outputs(table, tuple(Emitted(work, 0, position, WORDS[position], finish) for work in works), pace)
    return told.outputs.get(1, [])


def tokens_of(outputs: list[SequenceOutput]) -> list[tuple[int, ...]]:
    return [tuple(range(said.position, said.position + len(said.tokens))) for said in outputs]


def test_every_token_is_told_at_once_by_default() -> None:
    table, pace = table_of(1), StreamInterval(1)
    assert [tokens_of(step(table, pace, position, 1)) for position in (1, 2, 3)] == [[(1,)], [(2,)], [(3,)]]


def test_with_an_interval_the_first_and_the_last_are_told_at_once_and_the_rest_together() -> None:
    table, pace = table_of(1), StreamInterval(4)
    came = [tokens_of(step(table, pace, position, 1)) for position in range(1, 11)]
    assert came == [[(1,)], [], [], [(2, 3, 4)], [], [], [], [(5, 6, 7, 8)], [], []]
    assert tokens_of(step(table, pace, 11, 1, last=True)) == [(9, 10), (11,)]


@pytest.mark.parametrize("interval", [1, 2, 3, 5, 64])
def test_texts_and_offsets_are_the_same_whatever_the_interval(interval: int) -> None:
    table, pace = table_of(1, 2), StreamInterval(interval)
    said = [one for position in range(1, 31) for one in step(table, pace, position, 1, 2, last=position == 30)]
    for handle in (10, 20):
        mine = [one for one in said if one.handle == handle]
        assert [token for one in mine for token in one.tokens] == list(WORDS[1:31])
        text = "".join(one.text for one in mine)
        assert text == decode(WORDS[1:31])
        assert [one.offset for one in mine] == [len("".join(o.text for o in mine[:at])) for at in range(len(mine))]


def test_what_is_held_back_of_a_dead_attempt_is_never_told() -> None:
    table, pace = table_of(1, 2), StreamInterval(3)
    step(table, pace, 1, 1, 2)
    step(table, pace, 2, 1, 2)
    attempt = table.by_work(1)
    assert attempt is not None
    attempt.failed = True
    assert [one.handle for one in step(table, pace, 3, 1, 2)] == [20]


def test_what_is_held_back_is_told_to_whoever_has_taken_the_attempt_over() -> None:
    table, pace = table_of(1), StreamInterval(3)
    step(table, pace, 1, 1)
    step(table, pace, 2, 1)
    attempt = table.by_work(1)
    assert attempt is not None
    assert attempt.log is not None
    assert [one.tokens for message in attempt.log.messages(7) for one in message.outputs] == [(WORDS[1],)]
    table.move(attempt, 5, 7)
    told = process_outputs(table, (Emitted(1, 0, 3, WORDS[3]),), pace)
    assert {session: [(one.handle, one.position) for one in said] for session, said in told.outputs.items()} == {
        5: [(7, 2)]
    }


def test_what_may_be_part_of_a_stop_string_is_told_as_it_comes() -> None:
    table, pace = table_of(1, stop=("never",)), StreamInterval(8)
    assert [tokens_of(step(table, pace, position, 1)) for position in (1, 2, 3)] == [[(1,)], [(2,)], [(3,)]]


@pytest.mark.parametrize("interval", [0, 65])
def test_an_interval_without_sense_is_refused(interval: int) -> None:
    with pytest.raises(TandemError, match="expected 1 to 64") as refused:
        HostSettings(stream_interval=interval)
    assert refused.value.param == "host.stream_interval"
