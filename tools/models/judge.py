"""Whether what Tandem answered is what vLLM answers. Pure."""

from collections.abc import Sequence
from typing import Final

from tools.models.reference import ReferenceAnswer
from tools.models.trial_types import PromptTally

LOGPROB_TOLERANCE: Final = {"float32": 1e-3, "bfloat16": 0.15}
GAP_TOLERANCE: Final = {"float32": 1e-4, "bfloat16": 0.05}
"""Two tokens whose logarithms lie closer may change places; every such case is counted."""


def tally(
    dtype: str, prompts: Sequence[Sequence[int]], found: Sequence[ReferenceAnswer], right: Sequence[ReferenceAnswer]
) -> PromptTally:
    """`prompts` are only named in what is wrong."""
    near, wrong = 0, []
    for prompt, ours, theirs in zip(prompts, found, right, strict=True):
        difference, excused = _difference(dtype, ours, theirs)
        near += excused
        if difference and not excused:
            wrong.append(f"{len(prompt)} prompt tokens: {difference}")
    asked = len(found)
    return PromptTally(asked, asked - near - len(wrong), near, sum(len(each.tokens) for each in found), tuple(wrong))


def _difference(dtype: str, ours: ReferenceAnswer, theirs: ReferenceAnswer) -> tuple[str, bool]:
    """What differs, in words, and whether a near-tie excuses it."""
    for at, (token, right) in enumerate(zip(ours.tokens, theirs.tokens, strict=False)):
        if token != right:
            gap = theirs.gaps[at]
            where = f"position {at + 1} is {token}, right is {right}, {gap:.4f} above the next best"
            return where, gap < GAP_TOLERANCE[dtype]
        off = abs(ours.logprobs[at] - theirs.logprobs[at])
        if off > LOGPROB_TOLERANCE[dtype]:
            return f"the log-probability of position {at + 1} is {off:.4f} off", False
    if len(ours.tokens) != len(theirs.tokens):
        return f"{len(ours.tokens)} tokens, right are {len(theirs.tokens)}", False
    return "", False


def varied(answers: Sequence[ReferenceAnswer]) -> str:
    """Why equal answers would mean nothing, as with weights that always say the same; empty when they mean much."""
    different = len({each.tokens for each in answers})
    tokens = len({token for each in answers for token in each.tokens})
    if different < len(answers) or tokens < 2 * len(answers):
        return f"{len(answers)} answers of vLLM alone are {different} different ones of {tokens} tokens"
    return ""
