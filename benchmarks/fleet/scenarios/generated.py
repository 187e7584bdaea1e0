"""Traffic that nobody recorded: kinds of load whose lengths, gaps, phases and shared prefixes a seed draws.

A kind of load fixes ranges alone: every seed draws its own medians, spreads and shares within them, so five seeds
are five loads. Each purpose has its own stream of entropy, so where kinds are mixed a request keeps its prompt and
answer when the rate changes, and no policy can move a draw. Workers are Llama-3.1-70B (FP8) on four H100 each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Final

from benchmarks.fleet.fleet import FleetSettings
from benchmarks.fleet.ours import OursSettings
from benchmarks.fleet.scenarios.draws import Range, Surge, between, length
from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.worker_settings import WorkerSettings
from benchmarks.fleet.workload import Request, Stage, Workload
from tandem.core.entropy import Entropy, SeededEntropy, below, unit
from tandem.engine.simulated.presets import preset

MODEL: Final = "h100-llama-3.1-70b-tp4"
BLOCK_TOKENS: Final = 64
MAX_TOKENS: Final = 4096
"""What clients ask for: routers do not know how long an answer becomes."""
PROMPT_TOKENS_MAX: Final = 32_768
_NETWORK_BYTES_PER_S: Final = 50e9


@dataclass(frozen=True)
class Kind:
    """Ranges of one kind of request, from which a seed draws: `weight` its share beside other kinds, medians of
    prompts and answers in tokens, `spread` the standard deviation of their logarithms, `shared` the share of a prompt
    that belongs to one of `prefixes` common beginnings."""

    weight: Range
    prompt: Range
    answer: Range
    spread: Range
    shared: Range
    prefixes: tuple[int, int]


@dataclass(frozen=True)
class Traffic:
    """A kind of load. Without `phase_s` its rate is steady and its kinds are mixed. With it phases of such lengths
    follow each other at rates that differ by `swing`; where `apart` is set each has a single kind, in turn."""

    name: str
    kinds: tuple[Kind, ...]
    phase_s: tuple[Range, ...] = ()
    swing: tuple[Range, ...] = ()
    apart: bool = False


_PROMPTS: Final = Kind((1, 1), (3_000, 9_000), (40, 160), (0.3, 0.8), (0.1, 0.6), (20, 200))
_ANSWERS: Final = Kind((1, 1), (100, 500), (400, 1_400), (0.3, 0.7), (0.0, 0.5), (1, 20))
_CHATS: Final = Kind((2, 6), (200, 900), (100, 400), (0.4, 0.9), (0.1, 0.6), (5, 50))
_LONG: Final = Kind((1, 2), (7_000, 18_000), (100, 400), (0.2, 0.5), (0.0, 0.3), (5, 50))

TRAFFIC: Final = (
    Traffic("bimodal", (_CHATS, _LONG)),
    Traffic("prompt_heavy", (_PROMPTS,)),
    Traffic("answer_heavy", (_ANSWERS,)),
    Traffic("bursts", (_CHATS, _PROMPTS), phase_s=((8, 20), (2, 8)), swing=((0.4, 0.9), (2.0, 4.0))),
    Traffic("shifting", (_PROMPTS, _ANSWERS), phase_s=((30, 60),), swing=((0.8, 1.25),), apart=True),
)


@dataclass(frozen=True)
class Generated:
    """A workload of one stage, and when one phase gives way to the next (none where traffic is steady)."""

    workload: Workload
    changes_s: tuple[float, ...]


@dataclass(frozen=True)
class _Drawn:
    """One kind with the seed's own figures."""

    weight: float
    prompt: float
    answer: float
    spread: float
    shared: float
    prefixes: int


@dataclass(frozen=True)
class _Phase:
    begin_s: float
    end_s: float
    rate: float
    kinds: tuple[int, ...]


def fleet(roles: tuple[str, ...], itl_target_s: float | None = None) -> FleetSettings:
    """Workers in these roles. With an ITL target they chunk prompts as workers of Tandem do in production, without
    one as engines whose chunks are fixed."""
    chosen = preset(MODEL)
    kv_tokens = chosen.model.blocks * chosen.model.block_tokens
    worker = WorkerSettings(kv_tokens, BLOCK_TOKENS, StepTime.of(chosen.model))
    if itl_target_s is not None:
        worker = worker.as_in_production(itl_target_s)
    return FleetSettings(roles, worker, _NETWORK_BYTES_PER_S / chosen.kv_token_bytes)


def ours_settings() -> OursSettings:
    """Our router for it."""
    return OursSettings(preset(MODEL).kv_token_bytes)


def traffic(name: str) -> Traffic:
    """By name. Raises `KeyError` when there is none."""
    return {each.name: each for each in TRAFFIC}[name]


def generated(chosen: Traffic, seed: int, rate: float, duration_s: float, surge: Surge | None = None) -> Generated:
    """Requests that arrive for `duration_s` seconds, `rate` a second in the mean without what a surge adds."""
    entropy = SeededEntropy(seed, f"generated {chosen.name}")
    kinds = _kinds(chosen, entropy.fork("kinds"))
    phases = _phases(chosen, entropy.fork("phases"), rate, duration_s)
    changes = tuple(phase.begin_s for phase in phases[1:])
    if surge is not None:
        phases = [part for phase in phases for part in _surged(phase, surge)]
    which, prompts, answers = entropy.fork("which"), entropy.fork("prompts"), entropy.fork("answers")
    prefixes = entropy.fork("prefixes")
    requests = []
    for number, (at_s, phase) in enumerate(_arrivals(entropy.fork("arrivals"), phases)):
        place = _weighted(which, kinds, phase.kinds)
        kind = kinds[place]
        tokens = length(prompts, kind.prompt, kind.spread, PROMPT_TOKENS_MAX)
        output = length(answers, kind.answer, kind.spread, MAX_TOKENS)
        blocks = _blocks(kind, place, below(prefixes, kind.prefixes), number, tokens)
        requests.append(Request(number, at_s, blocks, BLOCK_TOKENS, tokens, output, MAX_TOKENS))
    return Generated(Workload(chosen.name, (Stage(rate, duration_s, tuple(requests)),)), changes)


def _kinds(chosen: Traffic, entropy: Entropy) -> list[_Drawn]:
    return [
        _Drawn(
            weight=between(entropy, kind.weight),
            prompt=between(entropy, kind.prompt),
            answer=between(entropy, kind.answer),
            spread=between(entropy, kind.spread),
            shared=kind.shared[0] + (kind.shared[1] - kind.shared[0]) * unit(entropy),
            prefixes=kind.prefixes[0] + below(entropy, kind.prefixes[1] - kind.prefixes[0] + 1),
        )
        for kind in chosen.kinds
    ]


def _phases(chosen: Traffic, entropy: Entropy, rate: float, duration_s: float) -> list[_Phase]:
    """Their rates are such that all of them together have the mean that was asked for."""
    every = tuple(range(len(chosen.kinds)))
    if not chosen.phase_s:
        return [_Phase(0.0, duration_s, rate, every)]
    drawn: list[_Phase] = []
    turn, at_s = below(entropy, 2), 0.0
    while at_s < duration_s:
        lasting = between(entropy, chosen.phase_s[turn % len(chosen.phase_s)])
        factor = between(entropy, chosen.swing[turn % len(chosen.swing)])
        end_s = min(duration_s, at_s + lasting)
        drawn.append(_Phase(at_s, end_s, factor, (turn % len(every),) if chosen.apart else every))
        turn, at_s = turn + 1, end_s
    mean = sum(phase.rate * (phase.end_s - phase.begin_s) for phase in drawn) / duration_s
    return [_Phase(phase.begin_s, phase.end_s, rate * phase.rate / mean, phase.kinds) for phase in drawn]


def _surged(phase: _Phase, surge: Surge) -> list[_Phase]:
    """The phase, cut where the surge begins and ends."""
    edges = (phase.begin_s, surge.begin_s, surge.end_s, phase.end_s)
    cuts = [min(max(edge, phase.begin_s), phase.end_s) for edge in edges]
    rates = (phase.rate, phase.rate * surge.factor, phase.rate)
    return [
        _Phase(begin_s, end_s, rate, phase.kinds)
        for (begin_s, end_s), rate in zip(pairwise(cuts), rates, strict=True)
        if end_s > begin_s
    ]


def _arrivals(entropy: Entropy, phases: Sequence[_Phase]) -> Iterator[tuple[float, _Phase]]:
    """A Poisson process whose rate is that of the phase: each draws how many arrivals' worth of time lies between."""
    wanted = -log(1 - unit(entropy))
    for phase in phases:
        at_s = phase.begin_s
        while (next_s := at_s + wanted / phase.rate) < phase.end_s:
            at_s, wanted = next_s, -log(1 - unit(entropy))
            yield at_s, phase
        wanted -= (phase.end_s - at_s) * phase.rate


def _weighted(entropy: Entropy, kinds: Sequence[_Drawn], places: Sequence[int]) -> int:
    left = unit(entropy) * sum(kinds[place].weight for place in places)
    for place in places[:-1]:
        left -= kinds[place].weight
        if left < 0:
            return place
    return places[-1]


def _blocks(kind: _Drawn, place: int, prefix: int, number: int, tokens: int) -> tuple[int, ...]:
    """Names: those of a prefix are of its kind, all others of the request alone."""
    count = -(-tokens // BLOCK_TOKENS)
    shared = min(int(kind.shared * kind.prompt) // BLOCK_TOKENS, count - 1)
    head = (1 << 60) | place << 50 | prefix << 32
    return tuple(head | block if block < shared else number << 32 | block for block in range(count))
