"""Seeded traffic: what clients ask for and when they lose patience. Values only."""

from dataclasses import dataclass

from tandem.core.entropy import Entropy, SeededEntropy, below, unit
from tandem.core.kv import pack_tokens
from tandem.core.request import Sampling, Stopping


@dataclass(frozen=True)
class SimRequest:
    """One client's request. `cancel_after_s` is measured from arrival; None means it waits for the end."""

    request_id: str
    arrive_s: float
    prompt: bytes
    n: int
    seed: int
    sampling: Sampling
    stopping: Stopping
    cancel_after_s: float | None


@dataclass(frozen=True)
class TrafficProfile:
    """Ranges that a seed draws from; lengths in tokens, bounds inclusive."""

    requests: int = 40
    span_s: float = 8.0
    prompt_tokens: tuple[int, int] = (1, 160)
    long_prompt_share: float = 0.1
    long_prompt_tokens: int = 700
    output_tokens: tuple[int, int] = (1, 48)
    shared_prefixes: int = 4
    shared_prefix_tokens: int = 48
    shared_share: float = 0.5
    branches_share: float = 0.15
    cancel_share: float = 0.1
    vocab: int = 50_000


def draw_traffic(profile: TrafficProfile, seed: int) -> tuple[SimRequest, ...]:
    """The requests of one seed, in order of arrival. Lengths crowd around block edges on purpose."""
    entropy = SeededEntropy(seed, "traffic")
    prefixes = [
        tuple(_token(entropy, profile) for _ in range(profile.shared_prefix_tokens))
        for _ in range(profile.shared_prefixes)
    ]
    arrivals = sorted(unit(entropy) * profile.span_s for _ in range(profile.requests))
    return tuple(
        _draw_request(entropy, profile, prefixes, index, arrive_s) for index, arrive_s in enumerate(arrivals)
    )


def _draw_request(
    entropy: Entropy, profile: TrafficProfile, prefixes: list[tuple[int, ...]], index: int, arrive_s: float
) -> SimRequest:
    tokens = _draw_prompt(entropy, profile, prefixes)
    max_tokens = _between(entropy, profile.output_tokens)
    greedy = unit(entropy) < 0.3
    return SimRequest(
        request_id=f"req-{index}",
        arrive_s=arrive_s,
        prompt=pack_tokens(tokens),
        n=2 + below(entropy, 2) if unit(entropy) < profile.branches_share else 1,
        seed=entropy.u64() >> 1,
        sampling=Sampling(temperature=0.0 if greedy else 1.0),
        stopping=Stopping(max_tokens=max_tokens, min_tokens=min(max_tokens, below(entropy, 4))),
        cancel_after_s=unit(entropy) * 2.0 if unit(entropy) < profile.cancel_share else None,
    )


def _draw_prompt(entropy: Entropy, profile: TrafficProfile, prefixes: list[tuple[int, ...]]) -> tuple[int, ...]:
    count = _between(entropy, profile.prompt_tokens)
    if unit(entropy) < profile.long_prompt_share:
        count = profile.long_prompt_tokens
    elif unit(entropy) < 0.4:
        count = max(1, count // 16 * 16 + below(entropy, 3) - 1)
    start: tuple[int, ...] = ()
    if unit(entropy) < profile.shared_share:
        start = prefixes[below(entropy, len(prefixes))]
    return start + tuple(_token(entropy, profile) for _ in range(count))


def _token(entropy: Entropy, profile: TrafficProfile) -> int:
    return below(entropy, profile.vocab)


def _between(entropy: Entropy, bounds: tuple[int, int]) -> int:
    return bounds[0] + below(entropy, bounds[1] - bounds[0] + 1)
