"""The sequences of one request: what a further attempt has to compute, hold and generate of them."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from router.dispatch.sequences import Sequences
from router.generation import Generation
from tandem.core.kv import pack_tokens
from tandem.core.messages import SequenceOutput
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.core.spans import TraceContext


def generation(n: int, max_tokens: int = 8) -> Generation:
    return Generation(
        request_id="req",
        model="demo",
        tenant="t",
        tenant_salt="",
        prompt=pack_tokens(range(20)),
        n=n,
        seed=7,
        sampling=Sampling(),
        stopping=Stopping(max_tokens=max_tokens),
        timeout_s=1.0,
        received=0.0,
        received_wall=0.0,
        trace=TraceContext("a" * 32, "b" * 16),
    )


def accepted(sequences: Sequences, *counts: int, finished: tuple[int, ...] = ()) -> Sequences:
    """So many tokens of each sequence have been accepted, each a letter of the text."""
    for sequence, count in enumerate(counts):
        finish = "stop" if sequence in finished else None
        output = SequenceOutput(0, sequence, 1, tuple(range(count)), "x" * count, 0, finish)
        sequences.recall([output], lambda *_: None)
    return sequences


def asked(sequences: Sequences, **changes: Any) -> Any:
    return sequences.placement_request({}, {}, (), None, changes.get("age_ms", 0.0))


@pytest.mark.parametrize(
    ("n", "counts", "finished", "prompt_tokens", "going_on", "max_tokens", "local_only"),
    [
        (1, (0,), (), 20, 1, 8, False),
        (1, (5,), (), 25, 1, 3, False),
        (1, (8,), (), 28, 1, 1, False),
        (3, (0, 0, 0), (), 20, 3, 8, False),
        # What is replayed is that of the longest that goes on; sequences that differ have no prompt in common.
        (3, (2, 5, 6), (2,), 25, 2, 3, True),
        (3, (1, 0, 0), (0,), 20, 2, 8, False),
    ],
)
def test_a_resumed_request_asks_for_what_is_left_of_it(
    n: int,
    counts: tuple[int, ...],
    finished: tuple[int, ...],
    prompt_tokens: int,
    going_on: int,
    max_tokens: int,
    local_only: bool,
) -> None:
    """Else it is refused where it fits, or goes to a worker that has no room for it."""
    request = asked(accepted(Sequences(generation(n)), *counts, finished=finished))
    assert (request.prompt_tokens, request.sequences) == (prompt_tokens, going_on)
    assert (request.max_tokens, request.local_only) == (max_tokens, local_only)


@pytest.mark.parametrize(
    "changes", [{"images": (b"png",)}, {"sampling": Sampling(prompt_logprobs=1)}], ids=["images", "prompt logprobs"]
)
def test_what_the_generating_worker_must_see_itself_is_not_handed_over(changes: dict[str, Any]) -> None:
    assert asked(Sequences(msgspec.structs.replace(generation(1), **changes))).local_only


def test_a_further_attempt_forces_what_was_accepted_and_leaves_out_what_has_finished() -> None:
    sequences = accepted(Sequences(generation(3)), 2, 5, 6, finished=(2,))
    assert sequences.branches() == (ChildRequest(0, 7, (0, 1), 2), ChildRequest(1, 7, (0, 1, 2, 3, 4), 5))
    assert (sequences.accepted, sequences.lengths, sequences.tokens_left) == (13, [2, 5, 6], 6)


def test_an_attempt_lacks_a_first_token_until_every_sequence_that_goes_on_has_moved() -> None:
    sequences = accepted(Sequences(generation(2)), 2, 3)
    attempt: Any = SimpleNamespace(first={0: 3, 1: 4})
    assert sequences.lacks_first(attempt)
    assert sequences.lacks_all_first(attempt)
    sequences.positions[0].accept(SequenceOutput(0, 0, 3, (9,), "x", 2))
    assert sequences.lacks_first(attempt)
    assert not sequences.lacks_all_first(attempt)
    sequences.positions[1].accept(SequenceOutput(0, 1, 4, (9,), "x", 3))
    assert not sequences.lacks_first(attempt)


@pytest.mark.parametrize(("tokens", "at_first"), [(1, True), (2, False)])
def test_a_sequence_that_has_one_token_of_an_attempt_ended_at_its_first(tokens: int, at_first: bool) -> None:
    """Then decode has not stopped by itself, and prefill's blocks are to be let go of."""
    sequences, attempt = accepted(Sequences(generation(1)), 2), SimpleNamespace(first={0: 3})
    sequences.positions[0].accept(SequenceOutput(0, 0, 3, tuple(range(tokens)), "x" * tokens, 2, "stop"))
    assert sequences.ended_at_first(attempt) == at_first  # type: ignore[arg-type]
