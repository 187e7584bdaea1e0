"""What a router learns of its workers, as it was when it was written down: every term after every thing told.

Workers of several kinds have true costs; they report steps and rates, prompts that were alone or not, pulls and
reads, some of them without a time or with one that a stall has spoilt; workers are lost and come back as others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from router.placement import CostModel
from router.settings import CostPriors
from tandem.core.entropy import SeededEntropy, below, unit
from tandem.core.messages import Load, StepFit, StepSums, TierCost
from tandem.core.spans import Attribute, Span
from tests.unit.router.placement.test_router_placement import load
from tests.worlds.golden import assert_as_written, digest

SEEDS, TOLD = range(30), 60
KINDS = ((), ("gpu", "m", "r", "one"), ("gpu", "m", "r", "other"), ("cpu", "m", "r", "one"))
TIERS = (TierCost("dram", 500, 8e9, 1e-4), TierCost("nvme", 5000, 1e9, 5e-4))


@dataclass
class Truth:
    """What one worker takes, in seconds: a step, a sequence and a position of it, a prompt's token and position."""

    name: str
    kind: tuple[str, ...]
    step_s: float
    sequence_s: float
    position_s: float
    token_s: float
    attention_s: float
    fits: bool
    plain: StepSums
    prompts: StepSums

    def load(self, entropy: SeededEntropy) -> tuple[Load, int]:
        """What it tells after some steps, and the positions that they attended to."""
        running, attended = below(entropy, 40), below(entropy, 40_000)
        step_s = (self.step_s + self.sequence_s * running + self.position_s * attended) * self.noise(entropy)
        rate = (0.0, self.noise(entropy) / self.token_s)[below(entropy, 2)]
        fit = None
        if self.fits and below(entropy, 3):
            self.plain, self.prompts = self.stepped(self.plain, entropy, 0), self.stepped(self.prompts, entropy, 3)
            told = (self.step_s, self.sequence_s, self.position_s, 1e-3, self.token_s, self.attention_s)
            fit = StepFit(*told, self.plain, self.prompts)
        told_step = (0.0, step_s)[below(entropy, 6) > 0]
        return load(running=running, step_s=told_step, prefill_tokens_per_s=rate, fit=fit), attended

    def prompt(self, entropy: SeededEntropy) -> Span:
        computed, cached, chunks = below(entropy, 3000), below(entropy, 2000), 1 + below(entropy, 4)
        took = self.step_s * chunks + self.token_s * computed + self.attention_s * computed * (cached + computed / 2)
        took_s = took * self.noise(entropy) * (1.0, 1.0, 1.0, 20.0, 0.0)[below(entropy, 5)]
        figures: dict[str, Attribute] = {"tokens_computed": computed, "tokens_reused": cached}
        if below(entropy, 2):
            figures["chunks"] = chunks
        return Span("", "", "", "prefill", "worker", 0.0, took_s, figures)

    def stepped(self, before: StepSums, entropy: SeededEntropy, most: int) -> StepSums:
        """The sums after some more steps, which computed up to `most` prompts each; of one worker in a few the clock
        stood still."""
        steps, rows, pieces = below(entropy, 60), 0.0, 0.0
        seconds, reads, tokens, positions = before.seconds, 0.0, 0.0, 0.0
        for _ in range(steps):
            sequences, chunk, prompts = below(entropy, 30), below(entropy, 2000), below(entropy, most + 1)
            rows, reads, pieces = rows + sequences, reads + sequences * 300.0, pieces + prompts
            tokens, positions = tokens + prompts * chunk, positions + prompts * chunk * chunk / 2
        took_s = self.step_s * steps + self.sequence_s * rows + self.position_s * reads + 1e-3 * pieces
        took_s += self.token_s * tokens + self.attention_s * positions
        seconds += took_s * self.noise(entropy) * (0.0, 1.0)[below(entropy, 9) > 0]
        return StepSums(
            before.steps + steps,
            seconds,
            before.rows + rows,
            before.reads + reads,
            before.pieces + pieces,
            before.tokens + tokens,
            before.positions + positions,
        )

    def noise(self, entropy: SeededEntropy) -> float:
        return 0.9 + 0.2 * unit(entropy)


def drawn(entropy: SeededEntropy, name: str) -> Truth:
    pace = (1.0, 2.5)[below(entropy, 3) == 0]
    none = StepSums(*(0.0 for _ in StepSums.__struct_fields__))
    return Truth(
        name,
        KINDS[below(entropy, len(KINDS))],
        pace * 0.004 * (1 + unit(entropy)),
        pace * 1e-4,
        pace * 1e-8 * unit(entropy),
        pace * 5e-5 * (1 + unit(entropy)),
        pace * 1e-9,
        below(entropy, 3) > 0,
        none,
        none,
    )


def pull(entropy: SeededEntropy) -> Span:
    kind = ("peer", "store", "dram", "nvme")[below(entropy, 4)]
    rate = (0.0, unit(entropy) * 5)[below(entropy, 5) > 0]
    figures: dict[str, Attribute] = {"kind": kind, "bytes": below(entropy, 1 << 26), "gb_per_s": rate}
    return Span("", "", "", "kv.pull", "worker", 0.0, unit(entropy) * 0.1, figures)


def tell(entropy: SeededEntropy, costs: CostModel, workers: list[Truth]) -> str:
    """One thing that a router hears."""
    number = below(entropy, len(workers))
    worker = workers[number]
    match below(entropy, 8):
        case 0 | 1 | 2:
            told, attended = worker.load(entropy)
            costs.observe_load(worker.name, told, attended, worker.kind)
            return f"{worker.name} load"
        case 3 | 4:
            costs.observe_spans(worker.name, [worker.prompt(entropy)], alone=below(entropy, 3) > 0)
            return f"{worker.name} prompt"
        case 5:
            costs.observe_spans(worker.name, [pull(entropy), worker.prompt(entropy)], alone=True)
            return f"{worker.name} pull"
        case 6:
            expected = unit(entropy) * 100
            costs.observe_first(("m", "n")[below(entropy, 2)], expected, expected * (0.5 + unit(entropy)))
            costs.observe_answer(1 + below(entropy, 500), float(below(entropy, 300)))
            return "ends"
        case _:
            if below(entropy, 3) == 0:
                costs.forget(worker.name)
                workers[number] = drawn(entropy, worker.name)
            return f"{worker.name} lost"


def known(costs: CostModel, names: Sequence[str]) -> Iterator[str]:
    """All that placement reads."""
    for name in (*names, "w-unknown"):
        steps, usual, prompts = costs.steps.terms(name), costs.steps.usual(name), costs.prefill.terms(name)
        yield f"{name} " + " ".join(f"{value:.6g}" for value in (*steps, *usual, *prompts))
        read = (costs.transfers.read_ms(name, tier, 1 << 24) for tier in TIERS)
        times = (costs.prefill_ms(name, 700, 100), costs.step_ms(name, 7, 3000), *read)
        yield f"{name} " + " ".join(f"{value:.6g}" for value in times)
    moved = (costs.transfer_ms(1 << 24, kind) for kind in ("peer", "store"))
    sharp = (costs.sharpness(model) for model in ("m", "n", "other"))
    left = (costs.answers.expected_left(most, age, 128) for most in (20, 300, 4000) for age in (0.0, 40.0))
    yield " ".join(f"{value:.6g}" for value in (*moved, *sharp, *left, costs.transfers.carried()))


def lived(seed: int) -> list[str]:
    entropy, story = SeededEntropy(seed, "learning"), list[str]()
    workers = [drawn(entropy, f"w{number}") for number in range(1 + below(entropy, 5))]
    costs = CostModel(CostPriors())
    for _ in range(TOLD):
        story.append(tell(entropy, costs, workers))
        story.extend(known(costs, [worker.name for worker in workers]))
    return story


def test_what_is_learned_is_what_it_was_when_it_was_written_down() -> None:
    stories = {}
    for seed in SEEDS:
        story = lived(seed)
        stories[f"{seed}: {digest(story)}, {len(story)} lines"] = story
    assert_as_written("learned", list(stories), stories)
