"""The right answer of a simulated model, without engine, blocks or steps: what every path must reproduce."""

from dataclasses import dataclass

import numpy as np

from tandem.core.kv import pack_tokens, unpack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.scheduler.plan import Draw
from tandem.engine.simulated.content import Content
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.sampling import TokenSampler


@dataclass(frozen=True)
class Answer:
    """Output tokens after the forced ones, and why they end."""

    tokens: tuple[int, ...]
    finish: str


def reference_tokens(
    model: SimulatedModel, prompt: bytes, branch: ChildRequest, sampling: Sampling, stopping: Stopping
) -> Answer:
    """The tokens that one branch of a request yields on any worker, in any batch, by any route."""
    content, drawing = Content(model), TokenSampler(model)
    known = unpack_tokens(prompt) + branch.forced
    state = int(content.chunk(0, np.array(known, dtype=np.uint64), 0)[1][-1])
    eos = () if stopping.ignore_eos else (model.eos_token_id,)
    ends = (*eos, *stopping.stop_token_ids)
    last, output = known[-1], list(branch.forced)
    while True:
        position = len(output) + 1
        draw = Draw(
            0, branch.sequence, branch.seed, position, sampling,
            prompt if sampling.needs_history else b"",
            pack_tokens(output) if sampling.needs_history else b"",
            ends if position <= stopping.min_tokens else (),
        )  # fmt: skip
        last = drawing.draw_one(state, last, draw).token
        output.append(last)
        new = tuple(output[len(branch.forced) :])
        if last in ends and position > stopping.min_tokens:
            return Answer(new, "stop")
        if position >= stopping.max_tokens:
            return Answer(new, "length")
        state = content.next_state(state, last, len(known) + len(new) - 1)
