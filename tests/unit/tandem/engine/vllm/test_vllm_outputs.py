"""How an answer of vLLM's ends, whoever ended it."""

from types import SimpleNamespace

import pytest

from tandem.core.kv import pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.protocol import EngineRequest
from tandem.engine.vllm.outputs import new_positions
from tandem.engine.vllm.requests import Expanded, with_images
from tandem.engine.vllm.tracked_request import TrackedRequest

EOS, STOP, LENGTH, ABORT = 1, 0, 1, 2


def finishes(tokens: list[int], reason: int | None, *, mode: str = "local", most: int = 10) -> list[str | None]:
    work = EngineRequest(
        work_id=1, mode=mode, prompt=pack_tokens((5, 6)), branches=(ChildRequest(0, 7),), sampling=Sampling(),
        stopping=Stopping(max_tokens=most), root=bytes(16), deadline=60.0,
    )  # fmt: skip
    run = TrackedRequest(work, 0.0, (EOS,))
    output = SimpleNamespace(
        new_token_ids=tokens, finish_reason=reason, new_logprobs=None, new_prompt_logprobs_tensors=None
    )
    return [each.finish for each in new_positions(run, run.root, output)]


@pytest.mark.parametrize(
    ("tokens", "reason", "said"),
    [
        ([3, 4], None, [None, None]),
        ([3, 4], LENGTH, [None, "length"]),
        ([3, 4], STOP, [None, "stop"]),
        ([3, EOS], STOP, [None, "stop"]),
        ([3, EOS, 4], LENGTH, [None, "stop"]),
        ([3, 4], ABORT, [None, None]),
    ],
)
def test_what_vllm_ends_earlier_than_was_asked_ends_as_vllm_says(
    tokens: list[int], reason: int | None, said: list[str | None]
) -> None:
    assert finishes(tokens, reason) == said


def test_the_work_s_own_bound_goes_first() -> None:
    assert finishes([3, 4, 5], LENGTH, most=2) == [None, "length"]


def test_the_first_token_of_a_hand_over_ends_nothing() -> None:
    assert finishes([3], LENGTH, mode="prefill") == [None]


def test_images_that_leave_less_room_end_the_answer_earlier() -> None:
    work = EngineRequest(
        work_id=1, mode="local", prompt=pack_tokens((5, 6)), branches=(ChildRequest(0, 7),), sampling=Sampling(),
        stopping=Stopping(max_tokens=18, fills=True), root=bytes(16), deadline=60.0, private=True, images=(b"file",),
    )  # fmt: skip
    run = TrackedRequest(work, 0.0, (EOS,))
    assert run.stop_check.finish_of(3, 4) == (None, None)
    run.expanded(with_images(work, Expanded(pack_tokens(range(16)), {}), context_tokens=20), 1.0)
    assert run.stop_check.finish_of(3, 3) == (None, None)
    assert run.stop_check.finish_of(3, 4) == ("length", None)
