"""Seeded faults: what breaks and when. Values only; `tandem.sim.world` carries them out."""

from dataclasses import dataclass

from tandem.core.entropy import SeededEntropy, below, unit


@dataclass(frozen=True)
class Kill:
    """The worker's process dies at `at_s` without a word, and comes back as a new incarnation."""

    at_s: float
    worker: str
    back_after_s: float


@dataclass(frozen=True)
class Corrupt:
    """From `at_s` on, the next `blocks` blocks pulled from this worker arrive with a flipped byte."""

    at_s: float
    worker: str
    blocks: int


Fault = Kill | Corrupt


@dataclass(frozen=True)
class FaultProfile:
    """How much a seed breaks. Every seed kills exactly `kills` workers."""

    kills: int = 1
    corrupt_share: float = 0.5
    span_s: float = 8.0


def draw_faults(profile: FaultProfile, seed: int, workers: tuple[str, ...]) -> tuple[Fault, ...]:
    """The faults of one seed, in order of time."""
    entropy = SeededEntropy(seed, "faults")
    faults: list[Fault] = []
    for _ in range(profile.kills):
        at_s = 0.2 + unit(entropy) * profile.span_s * 0.8
        faults.append(Kill(at_s, workers[below(entropy, len(workers))], 0.5 + unit(entropy) * 2.0))
    if unit(entropy) < profile.corrupt_share:
        at_s = unit(entropy) * profile.span_s
        faults.append(Corrupt(at_s, workers[below(entropy, len(workers))], 1 + below(entropy, 4)))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))
