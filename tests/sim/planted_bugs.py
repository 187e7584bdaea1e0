"""Bugs to plant in the real code, each as a function that a test lets replace the right one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kv_transfer.export import Exporter
from kv_transfer.transport import PullOpen
from router.dispatch.positions import Positions
from router.dispatch.running import RunningRequest
from tandem.core.kv import Handle
from tandem.core.messages import SequenceOutput
from tandem.engine.digest import Digester, bind
from tandem.engine.local import LocalEngine
from tandem.engine.protocol import Gone, Pending
from tandem.engine.residence import Residence
from tandem.engine.sequence import Sequence

Plant = Callable[[pytest.MonkeyPatch], None]


def a_lease_not_released(patch: pytest.MonkeyPatch) -> None:
    """The holder hears that nothing more is wanted, and keeps it all the same, until the lease ends by itself."""
    patch.setattr(LocalEngine, "release", lambda _engine, _lease_id: None)


def an_epoch_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A holder answers whoever has a ticket, be it for an incarnation that is gone."""
    admit = Exporter._admit

    def lenient(exporter: Exporter, request: PullOpen) -> None:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(type(exporter._space), "epoch", request.holder_epoch)
            admit(exporter, request)

    patch.setattr(Exporter, "_admit", lenient)


def a_retry_without_dedup(patch: pytest.MonkeyPatch) -> None:
    """Whatever a worker sends is delivered, also what another one has sent before."""

    def accept(positions: Positions, output: SequenceOutput) -> SequenceOutput:
        positions.tokens.extend(output.tokens)
        positions.text_chars += len(output.text)
        positions.finish = output.finish
        return output

    patch.setattr(Positions, "accept", accept)


def a_missing_deadline(patch: pytest.MonkeyPatch) -> None:
    """The router knows its own deadline only, not the client's."""
    begin = RunningRequest.__init__

    def patient(request: RunningRequest, *arguments: Any) -> None:
        begin(request, *arguments)
        request._deadline = request.generation.received + request._tools.settings.deadlines.total_s

    patch.setattr(RunningRequest, "__init__", patient)


def a_digest_computed_at_pull_time(patch: pytest.MonkeyPatch) -> None:
    """The digest says what the memory holds now instead of what the engine wrote."""
    look = LocalEngine.look

    def late(engine: LocalEngine, lease_id: str, name: bytes) -> Handle | Pending | Gone:
        found = look(engine, lease_id, name)
        if not isinstance(found, Handle):
            return found
        words = Digester(engine.layout).content_words(engine.memory.block(found.slot))
        return replace(found, digests=bind(words, found.epoch, found.name, found.generation))

    patch.setattr(LocalEngine, "look", late)


def a_tail_block_put_in_the_index(patch: pytest.MonkeyPatch) -> None:
    """An exported partial block is published like a full one."""
    complete = Residence.complete

    def public(residence: Residence, sequence: Sequence, block: int, digests: bytes) -> None:
        if block >= len(sequence.names):
            sequence.extend_names(sequence.job.work.root, residence.block_tokens)
        if block < len(sequence.names) or not sequence.job.leased:
            complete(residence, sequence, block, digests)
            return
        residence.pool.publish(sequence.table[block], sequence.job.tail_name(residence.block_tokens), digests)
        residence.export(sequence, block)

    patch.setattr(Residence, "complete", public)


BUGS: tuple[tuple[Plant, str], ...] = (
    (a_lease_not_released, "still held|stood still"),
    (an_epoch_not_checked, "meant for another incarnation"),
    (a_retry_without_dedup, "position|goes on after|tokens"),
    (a_missing_deadline, "had no end"),
    (a_digest_computed_at_pull_time, "wrong tokens"),
    (a_tail_block_put_in_the_index, "no full block"),
)
"""Each with a pattern of the promise that it breaks."""
