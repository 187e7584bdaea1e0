"""What an answer must fulfil beside the truth, and how a difference is excused. Pure.

Two things are no fault of a transfer. A *near-tie*: the two greatest logits lie closer than a given gap. An *edge*:
a random number that falls onto the border between two tokens' shares, nearer than rounding. There are as many
borders as tokens, so among some thousand draws one on an edge is to be expected even in float32. A claimed edge has
to be proven: the single engine, with the temperature moved by a millionth, gives the very sequence in question.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from tandem.core.messages import AttemptReport
from tests.worlds.asking import Answer, Ask, Spoken
from tests.worlds.tap import Seen

EDGES = (1e-7, 1e-6)
"""Relative changes of the temperature: they move logits about as much as float32 rounding does."""


@dataclass
class ComparisonTally:
    """One comparison. `flips` are prompts with an excused difference; `failures` say what is wrong."""

    title: str
    prompts: int = 0
    sequences: int = 0
    tokens: int = 0
    handed_off: int = 0
    tokens_pulled: int = 0
    tokens_reused: int = 0
    flips: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    disputed: list[tuple[Ask, Answer, Answer]] = field(default_factory=list)
    """Sampled answers (ours, right) that differ from the truth and may do so on an edge: not judged yet."""

    @property
    def holds(self) -> bool:
        return not self.failures and self.prompts > 0

    def answered(self, ask: Ask, answer: Answer, truth: Answer, gap_max: float | None) -> None:
        """Count one answer. With `gap_max`, sequences may part where the two best tokens were closer than that."""
        self.prompts += 1
        self.sequences += ask.n
        self.tokens += sum(len(each.tokens) for each in answer.sequences)
        if answer == truth and not answer.error:
            return
        problem = f"error {answer.error or truth.error}" if answer.error or truth.error else ""
        if not problem:
            differing = [pair for pair in zip(answer.sequences, truth.sequences, strict=True) if pair[0] != pair[1]]
            problem = next((found for ours, right in differing if (found := _difference(ours, right, gap_max))), "")
        if problem and ask.sampling.temperature > 0 and not answer.error:
            self.disputed.append((ask, answer, truth))
        elif problem:
            self.failures.append(f"{_name(ask)}: {problem}")
        else:
            self.flips += 1

    def judge(self, ask: Ask, answer: Answer, truth: Answer, moved: Sequence[Answer]) -> None:
        """Decide a disputed answer, given what the single engine says at the `nudged` temperatures."""
        for number, (ours, right) in enumerate(zip(answer.sequences, truth.sequences, strict=True)):
            if ours != right and all(ours != each.sequences[number] for each in moved):
                self.failures.append(f"{_name(ask)}: {_difference(ours, right, None)}")
                return
        self.flips += 1

    def handed(self, ask: Ask, answer: Answer, attempts: Sequence[Seen]) -> None:
        """Count what decode reported of a request it did not prefill."""
        if not attempts:
            self.failures.append(f"{_name(ask)}: was not handed off")
            return
        if all(len(each.tokens) == 1 for each in answer.sequences):
            return  # Decode may have been told to let go before anything was transferred.
        report = attempts[-1].report
        if len(attempts) > 1 or report is None:
            self.failures.append(f"{_name(ask)}: {len(attempts)} attempts, last report {report}")
            return
        self.handed_off += 1
        self.tokens_pulled += report.tokens_pulled
        self.tokens_reused += report.tokens_reused
        if problem := _computed(report, len(ask.prompt)):
            self.failures.append(f"{_name(ask)}: {problem}")

    def line(self) -> str:
        """A row of the table whose head is `HEAD`."""
        cells = (self.prompts, self.sequences, self.tokens, self.handed_off, self.tokens_pulled, self.tokens_reused)
        numbers = "".join(f"{cell:>10}" for cell in cells)
        return f"{self.title:<34}{numbers}{self.flips:>7}{len(self.failures):>8}{self.seconds:>8.1f}"


HEAD = f"{'comparison':<34}" + "".join(
    f"{title:>{width}}"
    for title, width in (
        ("prompts", 10), ("sequences", 10), ("tokens", 10), ("handed off", 11), ("pulled", 9), ("reused", 10),
        ("flips", 7), ("failed", 8), ("s", 8),
    )
)  # fmt: skip


def nudged(ask: Ask) -> tuple[Ask, ...]:
    """The request with its temperature a little lower, and a little higher."""
    factors = [1 + sign * edge for edge in EDGES for sign in (-1, 1)]
    return tuple(
        replace(ask, sampling=structs.replace(ask.sampling, temperature=ask.sampling.temperature * factor))
        for factor in factors
    )


def _difference(ours: Spoken, right: Spoken, gap_max: float | None) -> str:
    """What is wrong with a sequence that is not the truth; empty when a near-tie explains it."""
    at = next((i for i, (a, b) in enumerate(zip(ours.tokens, right.tokens, strict=False)) if a != b), None)
    if at is None:
        return f"ends differently: {_end(ours)}, right is {_end(right)}"
    where = f"position {at + 1} is {ours.tokens[at]}, right is {right.tokens[at]}"
    if gap_max is None:
        return where
    best = right.logprobs[at].top
    gap = best[0].logprob - best[1].logprob
    return "" if gap < gap_max else f"{where}, and their logits lie {gap:.3f} apart"


def _end(spoken: Spoken) -> str:
    return f"{len(spoken.tokens)} tokens, {spoken.finish} ({spoken.stop_reason}), text {spoken.text!r}"


def _computed(report: AttemptReport, prompt_tokens: int) -> str:
    if report.tokens_computed == 0 and report.tokens_pulled + report.tokens_reused == prompt_tokens:
        return ""
    return (
        f"decode computed {report.tokens_computed}, pulled {report.tokens_pulled} and reused "
        f"{report.tokens_reused} of {prompt_tokens} prompt tokens"
    )


def _name(ask: Ask) -> str:
    return f"{ask.about}, {len(ask.prompt)} prompt tokens, seed {ask.seed}"
