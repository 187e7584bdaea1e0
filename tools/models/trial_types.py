"""What a trial of a model tells: plain data, that pages and tests read without vLLM."""

import msgspec


class PromptTally(msgspec.Struct, frozen=True, omit_defaults=True):
    """`equal` of `asked` prompts have the reference's tokens and log-probabilities; `near_ties` more part from it
    where its two best tokens are too close to tell; `wrong` says what the others did."""

    asked: int = 0
    equal: int = 0
    near_ties: int = 0
    tokens: int = 0
    wrong: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """At most one of ten prompts is excused."""
        return self.asked > 0 and not self.wrong and self.near_ties * 10 <= self.asked


class Twins(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many of the damaged prompts gave other tokens than they give undamaged."""

    asked: int = 0
    differ: int = 0

    @property
    def holds(self) -> bool:
        """Every damage was seen."""
        return self.differ == self.asked > 0


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a model that was run.

    `pair` is None where its KV is not handed over, `remark` says why; `problem` is why the model failed.
    """

    name: str
    block: int = 0
    groups: tuple[str, ...] = ()
    unified: PromptTally = PromptTally()
    unified_twins: Twins = Twins()
    pair: PromptTally | None = None
    pair_twins: Twins | None = None
    remark: str = ""
    problem: str = ""
    seconds: float = 0.0
    vllm: str = ""

    @property
    def holds(self) -> bool:
        """Everything that was asked is as it should be."""
        found = [self.unified, self.unified_twins, self.pair, self.pair_twins]
        return not self.problem and all(each.holds for each in found if each is not None)


class Checked(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a model that cannot run here. `size` is the arithmetic of what it needs, in words."""

    name: str
    context_tokens: int = 0
    size: str = ""
    problem: str = ""
    vllm: str = ""

    @property
    def holds(self) -> bool:
        """Its configuration was read, its size computed, and vLLM takes its arguments."""
        return not self.problem and self.context_tokens > 0
