"""Protobuf to and from `StepOutputs`, the one message of the hot path.

Outputs travel in columns, so that a step of one token per sequence is a handful of bulk copies in C instead of
a message object per output. Finishes and logprobs are rare and ride in side lists that name their output.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from protos import worker_pb2 as pb
from tandem.core.messages import Alternative, SequenceOutput, StepOutputs, TokenLogprob


def fill_step(out: pb.StepOutputs, outputs: Sequence[SequenceOutput]) -> None:
    """Write the columns of `outputs` into an empty message."""
    out.handle.extend([output.handle for output in outputs])
    out.sequence.extend([output.sequence for output in outputs])
    out.position.extend([output.position for output in outputs])
    out.text.extend([output.text for output in outputs])
    out.offset.extend([output.offset for output in outputs])
    out.token.extend([token for output in outputs for token in output.tokens])
    counts = [len(output.tokens) for output in outputs]
    if counts.count(1) != len(counts):
        out.count.extend(counts)
    for index, output in enumerate(outputs):
        if output.finish is not None:
            _fill_finish(out.finishes.add(), index, output)
        if output.logprobs:
            _fill_logprobs(out.logprobs.add(), index, output.logprobs)


def _fill_finish(out: pb.Finish, index: int, output: SequenceOutput) -> None:
    out.index = index
    out.finish = output.finish or ""
    if isinstance(output.stop_reason, str):
        out.stop_string = output.stop_reason
    elif output.stop_reason is not None:
        out.stop_token = output.stop_reason


def _fill_logprobs(out: pb.Logprobs, index: int, logprobs: Sequence[TokenLogprob]) -> None:
    out.index = index
    out.drawn.extend([entry.logprob for entry in logprobs])
    out.top_count.extend([len(entry.top) for entry in logprobs])
    out.top_token.extend([one.token for entry in logprobs for one in entry.top])
    out.top_logprob.extend([one.logprob for entry in logprobs for one in entry.top])


def read_step(step: pb.StepOutputs) -> StepOutputs:
    """Inverse of `fill_step`. Columns of unequal length are cut to the shortest."""
    tokens: Iterator[tuple[int, ...]] = (
        _split(step.token, step.count) if step.count else zip(step.token, strict=False)
    )
    outputs = list(map(SequenceOutput, step.handle, step.sequence, step.position, tokens, step.text, step.offset))
    for finish in step.finishes:
        if finish.index < len(outputs):
            outputs[finish.index] = _with_finish(outputs[finish.index], finish)
    for logprobs in step.logprobs:
        if logprobs.index < len(outputs):
            outputs[logprobs.index] = msgspec.structs.replace(
                outputs[logprobs.index], logprobs=_read_logprobs(logprobs)
            )
    return StepOutputs(tuple(outputs))


def _split(tokens: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    rest = iter(tokens)
    return (tuple(islice(rest, count)) for count in counts)


def _with_finish(output: SequenceOutput, finish: pb.Finish) -> SequenceOutput:
    kind = finish.WhichOneof("stop_reason")
    reason: str | int | None = getattr(finish, kind) if kind is not None else None
    return msgspec.structs.replace(output, finish=finish.finish, stop_reason=reason)


def _read_logprobs(logprobs: pb.Logprobs) -> tuple[TokenLogprob, ...]:
    rest = map(Alternative, logprobs.top_token, logprobs.top_logprob)
    return tuple(
        TokenLogprob(drawn, tuple(islice(rest, count)))
        for drawn, count in zip(logprobs.drawn, logprobs.top_count, strict=False)
    )
