"""Seeded traffic: the requests that clients send and the times at which they lose patience. Values only."""

from dataclasses import dataclass, replace

from tandem.core.entropy import Entropy, SeededEntropy, below, unit
from tandem.core.kv import pack_tokens
from tandem.core.request import Sampling, Stopping
from tandem.core.simple_tokenizer import VOCAB_SIZE


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
    timeout_s: float | None = None
    """The client's own deadline, so short that passing it is a right end; None leaves the world's."""
    priority: int = 0
    stalls_after: int = 0
    """The number of outputs after which the client reads nothing for `stalls_s`; 0 for never."""
    stalls_s: float = 0.0
    resumable: bool = False
    """Whether the request is resumable: when its connection breaks, the client comes back `back_after_s` later, or
    never when that is None."""
    back_after_s: float | None = None
    drops_after_s: float | None = None
    """Seconds from arrival until the connection breaks by itself."""
    tenant: str = "tenant"
    steals: str = ""
    """Asks for nothing of its own but for the rest of this request's answer, which is another tenant's."""


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
    stop_share: float = 0.1
    """Requests that end at a stop string, if it comes."""
    urgent_share: float = 0.1
    """Requests with a priority above the others'."""
    deadline_share: float = 0.0
    deadline_s: tuple[float, float] = (0.05, 2.0)
    """Short deadlines, and the share of requests that has one."""
    slow_share: float = 0.0
    stall_s: tuple[float, float] = (0.2, 3.0)
    """Clients that stop reading for a while."""
    resumable_share: float = 0.0
    """Clients that come back when their connection breaks, but for every fifth of them."""
    bursts: int = 0
    """The number of moments that attract half of all arrivals."""
    abusers: int = 0
    """Clients beside these that misuse the platform (`abusers`), each with several requests."""
    vocab: int = VOCAB_SIZE


def draw_traffic(profile: TrafficProfile, seed: int, label: str = "req") -> tuple[SimRequest, ...]:
    """The requests of one seed, in order of arrival, called by `label` and number. Lengths crowd around block
    edges on purpose."""
    entropy = SeededEntropy(seed, "traffic" if label == "req" else f"traffic {label}")
    prefixes = [_tokens(entropy, profile, profile.shared_prefix_tokens) for _ in range(profile.shared_prefixes)]
    arrivals = _arrivals(profile, entropy)
    return tuple(
        _draw_request(entropy, profile, prefixes, f"{label}-{index}", arrive_s)
        for index, arrive_s in enumerate(arrivals)
    )


def _arrivals(profile: TrafficProfile, entropy: SeededEntropy) -> list[float]:
    own = entropy.fork("bursts")
    moments = [unit(own) * profile.span_s for _ in range(profile.bursts)]
    arrivals = []
    for _ in range(profile.requests):
        arrive_s = unit(entropy) * profile.span_s
        if moments and below(own, 2):
            arrive_s = moments[below(own, len(moments))] + unit(own) * 0.05
        arrivals.append(arrive_s)
    return sorted(arrivals)


def _draw_request(
    entropy: SeededEntropy,
    profile: TrafficProfile,
    prefixes: list[tuple[int, ...]],
    request_id: str,
    arrive_s: float,
) -> SimRequest:
    tokens = _draw_prompt(entropy, profile, prefixes)
    max_tokens = _between(entropy, profile.output_tokens)
    greedy = unit(entropy) < 0.3
    own = entropy.fork(request_id)
    slow = own.fork("slow")
    stalls = unit(slow) < profile.slow_share
    request = SimRequest(
        request_id=request_id,
        arrive_s=arrive_s,
        prompt=pack_tokens(tokens),
        n=2 + below(entropy, 2) if unit(entropy) < profile.branches_share else 1,
        seed=entropy.u64() >> 1,
        sampling=Sampling(temperature=0.0 if greedy else 1.0),
        stopping=Stopping(
            max_tokens=max_tokens,
            min_tokens=min(max_tokens, below(entropy, 4)),
            stop=_stops(own) if unit(own) < profile.stop_share else (),
        ),
        cancel_after_s=unit(entropy) * 2.0 if unit(entropy) < profile.cancel_share else None,
        timeout_s=_within(own, profile.deadline_s) if unit(own) < profile.deadline_share else None,
        priority=1 if unit(own) < profile.urgent_share else 0,
    )
    if not stalls or request.timeout_s is not None or request.cancel_after_s is not None:
        return _returning(request, own.fork("returns"), profile)
    return replace(request, stalls_after=1 + below(slow, max_tokens), stalls_s=_within(slow, profile.stall_s))


def _returning(request: SimRequest, entropy: Entropy, profile: TrafficProfile) -> SimRequest:
    """Perhaps a client that comes back; one that cancels does not."""
    if unit(entropy) >= profile.resumable_share or request.cancel_after_s is not None:
        return request
    back_after_s = 0.01 + unit(entropy) * 1.5
    drops_after_s = unit(entropy) * 1.0
    return replace(
        request,
        resumable=True,
        back_after_s=None if below(entropy, 5) == 0 else back_after_s,
        drops_after_s=drops_after_s if below(entropy, 3) == 0 else None,
    )


def _stops(entropy: Entropy) -> tuple[str, ...]:
    """Pieces of the words that a simulated model speaks: some inside of one, some across two."""
    pieces = ("ba", "ko mi", "tu l", "re", "na b")
    return tuple(pieces[below(entropy, len(pieces))] for _ in range(1 + below(entropy, 2)))


def _draw_prompt(entropy: SeededEntropy, profile: TrafficProfile, prefixes: list[tuple[int, ...]]) -> tuple[int, ...]:
    count = _between(entropy, profile.prompt_tokens)
    if unit(entropy) < profile.long_prompt_share:
        count = profile.long_prompt_tokens
    elif unit(entropy) < 0.4:
        count = max(1, count // 16 * 16 + below(entropy, 3) - 1)
    start: tuple[int, ...] = ()
    if unit(entropy) < profile.shared_share:
        start = prefixes[below(entropy, len(prefixes))]
    return start + _tokens(entropy, profile, count)


def _tokens(entropy: SeededEntropy, profile: TrafficProfile, count: int) -> tuple[int, ...]:
    """Draw `count` tokens, each as `below` draws."""
    vocab = profile.vocab
    return tuple([word * vocab >> 64 for word in entropy.u64s(count)])


def _within(entropy: Entropy, bounds: tuple[float, float]) -> float:
    return bounds[0] + unit(entropy) * (bounds[1] - bounds[0])


def _between(entropy: Entropy, bounds: tuple[int, int]) -> int:
    return bounds[0] + below(entropy, bounds[1] - bounds[0] + 1)
