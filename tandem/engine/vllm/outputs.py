"""Translate vLLM's output records into positions. The records are read by their fields; nothing of vLLM is
imported."""

from collections.abc import Iterator
from typing import Any, Final

from tandem.core.messages import Alternative, PromptLogprob, TokenLogprob
from tandem.engine.protocol import Emitted
from tandem.engine.vllm.tracked_request import TrackedChild, TrackedRequest

_PREEMPTED: Final = 3
_FINISHES: Final = ("stop", "length")
"""Finish reasons, indexed by vLLM's number of the reason; vLLM's other reasons are no ordinary ends."""


def record_stats(run: TrackedRequest, output: Any) -> None:
    """Record what an output of the request that computes the prompt reports about that computation."""
    for happened in output.events or ():
        if happened.type == _PREEMPTED:
            run.preemptions += 1
    stats = output.prefill_stats
    if stats is not None and run.prefilled is None:
        run.tokens_computed = stats.num_computed_tokens
        run.tokens_reused = stats.num_local_cached_tokens
        run.tokens_loaded = stats.num_external_cached_tokens


def new_positions(run: TrackedRequest, branch: TrackedChild, output: Any) -> Iterator[Emitted]:
    """The positions that are new to the submitter of the work, in order, up to one that ends the branch."""
    wanted = run.work.sampling.logprobs
    for index, token in enumerate(output.new_token_ids):
        branch.drawn += 1
        position = branch.base + branch.drawn
        if position <= branch.position:
            continue
        branch.position = position
        finish, stop_reason = run.stop_check.finish_of(token, position)
        if finish is None and index == len(output.new_token_ids) - 1 and run.work.mode != "prefill":
            # vLLM may have bounds beside the work's.
            finish = _finish(output.finish_reason)
        logprob = None if wanted is None else logprob_of(output.new_logprobs, index, wanted)
        if logprob is not None and index == 0 and output.new_prompt_logprobs_tensors is not None:
            scored = prompt_logprobs_of(output.new_prompt_logprobs_tensors)
            logprob = TokenLogprob(logprob.logprob, logprob.top, scored)
        yield Emitted(run.work_id, branch.index, position, token, finish, stop_reason, logprob)
        if finish is not None:
            return


def logprob_of(found: Any, row: int, wanted: int) -> TokenLogprob | None:
    """The drawn token's log-probability is the first of its row, the likeliest tokens follow."""
    if found is None:
        return None
    tokens, values = found.logprob_token_ids[row], found.logprobs[row]
    top = tuple(Alternative(int(tokens[at]), float(values[at])) for at in range(1, min(wanted + 1, len(tokens))))
    return TokenLogprob(float(values[0]), top)


def prompt_logprobs_of(found: Any) -> tuple[PromptLogprob, ...]:
    """Log-probabilities of the prompt's tokens from the second on. `found` holds tensors of a row per token: the
    token's own log-probability first, then those of the likeliest tokens."""
    rows = zip(
        found.logprob_token_ids.tolist(), found.logprobs.tolist(), found.selected_token_ranks.tolist(), strict=True
    )
    return tuple(
        PromptLogprob(values[0], rank, tuple(Alternative(*each) for each in zip(tokens[1:], values[1:], strict=True)))
        for tokens, values, rank in rows
    )


def _finish(reason: Any) -> str | None:
    number = len(_FINISHES) if reason is None else int(reason)
    return _FINISHES[number] if number < len(_FINISHES) else None
