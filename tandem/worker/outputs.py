"""What an engine step means for the routers: tokens become text, positions and finishes, grouped by link."""

from dataclasses import dataclass, field

from tandem.core.messages import SequenceOutput
from tandem.engine.protocol import Emitted
from tandem.worker.attempts import Attempt, AttemptTable, Output


@dataclass
class Told:
    """What to do after a step: send `outputs` per session, then free what a stop string ended."""

    outputs: dict[int, list[SequenceOutput]] = field(default_factory=dict)
    stopped: list[tuple[int, int]] = field(default_factory=list)
    """(work id, sequence) that the engine does not know to be over."""


def tell(table: AttemptTable, emitted: tuple[Emitted, ...]) -> Told:
    """Turn a step's tokens into outputs. Tokens of dead attempts, and after a stop string, are dropped."""
    told = Told()
    by_work, outputs = table.by_work, told.outputs
    for one in emitted:
        attempt = by_work(one.work_id)
        if attempt is None or attempt.failed:
            continue
        output = attempt.outputs.get(one.sequence)
        if output is None or output.finished or one.position < output.position:
            continue
        assert one.position == output.position, f"position {one.position} came, {output.position} was next"
        of_session = outputs.get(attempt.session_id)
        if of_session is None:
            of_session = outputs[attempt.session_id] = []
        said = _sequence_output(attempt, output, one)
        of_session.append(said)
        if attempt.log is not None:
            attempt.log.add(said)
        if output.finished and one.finish is None and attempt.submit.mode != "prefill":
            told.stopped.append((one.work_id, one.sequence))
    return told


def _sequence_output(attempt: Attempt, output: Output, one: Emitted) -> SequenceOutput:
    finish: str | None = one.finish
    reason: str | int | None = one.stop_reason
    if finish is None:
        piece = output.text.feed(one.token)
    else:
        piece = output.text.finish(None if finish == "stop" else one.token)
    if piece.stop is not None:
        finish, reason = "stop", piece.stop
    output.position = one.position + 1
    output.finished = finish is not None
    return SequenceOutput(
        attempt.submit.handle,
        one.sequence,
        one.position,
        (one.token,),
        piece.text,
        piece.offset,
        finish,
        reason,
        () if one.logprob is None else (one.logprob,),
    )
