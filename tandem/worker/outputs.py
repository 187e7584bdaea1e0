"""Turns an engine step into outputs for the routers: tokens become text, positions and finishes, grouped by link."""

from tandem.core.messages import SequenceOutput
from tandem.engine.protocol import Emitted
from tandem.worker.attempts import Attempt, AttemptTable, Output


class SessionOutputs:
    """The actions after a step: send `outputs` per session, then free what a stop string ended."""

    __slots__ = ("outputs", "stopped")

    def __init__(self) -> None:
        self.outputs: dict[int, list[SequenceOutput]] = {}
        self.stopped: list[tuple[int, int]] = []
        """(work id, sequence) that the engine does not know to be over."""


class StreamInterval:
    """Decides when plain tokens are sent: with every `interval`-th step that brings tokens."""

    __slots__ = ("_steps", "interval", "untold")

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.untold: dict[Output, Attempt] = {}
        """The outputs that have tokens not yet sent, with their attempts."""
        self._steps = 0

    def due(self) -> dict[Output, Attempt]:
        """Count a step that has brought tokens; gives the outputs whose held-back tokens are to be sent now."""
        self._steps += 1
        if self._steps % self.interval or not self.untold:
            return {}
        due, self.untold = self.untold, {}
        return due


def process_outputs(table: AttemptTable, emitted: tuple[Emitted, ...], pace: StreamInterval) -> SessionOutputs:
    """Turn a step's tokens into outputs. Tokens of dead attempts, and after a stop string, are dropped."""
    told = SessionOutputs()
    by_work, outputs, paced = table.by_work, told.outputs, pace.interval > 1
    session_id, of_session = -1, list[SequenceOutput]()
    for one in emitted:
        attempt = by_work(one.work_id)
        if attempt is None or attempt.failed:
            continue
        output, position = attempt.outputs.get(one.sequence), one.position
        if output is None or output.finished or position < output.position:
            continue
        assert position == output.position, f"position {position} came, {output.position} was next"
        text = output.text
        offset, added = text.released, None
        if one.finish is None and one.logprob is None and (added := text.plain(one.token)) is not None:
            output.position = position + 1
            if paced and position != output.first_position:
                output.untold.append(one.token)
                output.untold_text += added
                pace.untold[output] = attempt
                continue
            said = SequenceOutput(attempt.submit.handle, one.sequence, position, (one.token,), added, offset)
        else:
            if output.untold:
                del pace.untold[output]
                _say(told, attempt, _held_back(attempt, output, one.sequence, position, offset))
            said = _sequence_output(attempt, output, one)
        if attempt.session_id != session_id or not of_session:
            session_id = attempt.session_id
            of_session = outputs.setdefault(session_id, [])
        of_session.append(said)
        if attempt.log is not None:
            attempt.log.add(said)
        if added is None and output.finished and one.finish is None and attempt.submit.mode != "prefill":
            told.stopped.append((one.work_id, one.sequence))
    if paced and emitted:
        _tell_due(told, pace)
    return told


def _tell_due(told: SessionOutputs, pace: StreamInterval) -> None:
    for output, attempt in pace.due().items():
        if not (attempt.failed or output.finished):
            sequence = next(number for number, each in attempt.outputs.items() if each is output)
            _say(told, attempt, _held_back(attempt, output, sequence, output.position, output.text.released))


def _say(told: SessionOutputs, attempt: Attempt, said: SequenceOutput) -> None:
    told.outputs.setdefault(attempt.session_id, []).append(said)
    if attempt.log is not None:
        attempt.log.add(said)


def _held_back(attempt: Attempt, output: Output, sequence: int, position: int, offset: int) -> SequenceOutput:
    """The held-back output of a branch whose next token is `position` and whose next character is `offset`."""
    tokens, text = tuple(output.untold), output.untold_text
    output.untold, output.untold_text = [], ""
    handle = attempt.submit.handle
    return SequenceOutput(handle, sequence, position - len(tokens), tokens, text, offset - len(text))


def _sequence_output(attempt: Attempt, output: Output, one: Emitted) -> SequenceOutput:
    finish: str | None = one.finish
    reason: str | int | None = one.stop_reason
    position = one.position
    output.position = position + 1
    if finish is None:
        piece = output.text.feed(one.token)
    else:
        piece = output.text.finish(None if finish == "stop" else one.token)
    if piece.stop is not None:
        finish, reason = "stop", piece.stop
    output.finished = finish is not None
    return SequenceOutput(
        attempt.submit.handle,
        one.sequence,
        position,
        (one.token,),
        piece.text,
        piece.offset,
        finish,
        reason,
        () if one.logprob is None else (one.logprob,),
    )
