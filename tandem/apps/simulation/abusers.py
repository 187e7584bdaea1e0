"""Clients that misuse a platform beside honest clients: what they ask for is legal, but how they ask for it is not.

Each abuser is drawn from the seed: one manner, and a train of requests that arrive all at once or one right after the
other. Abusers have a tenant of their own. Whatever they do, other clients must notice no more than the load.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tandem.apps.simulation.traffic import SimRequest, TrafficProfile
from tandem.core.entropy import SeededEntropy, below, unit
from tandem.core.kv import pack_tokens
from tandem.core.request import Sampling, Stopping
from tandem.core.simple_tokenizer import VOCAB_SIZE

TENANT: Final = "abuser"
_NEVER_READS_S: Final = 6.0
"""Longer than the router waits for a client that does not read."""
_AT_ONCE_S: Final = 1e-6
_WAIT_S: Final = 0.1

Manner = Callable[[SimRequest, SeededEntropy, TrafficProfile, Sequence[SimRequest]], SimRequest]


def draw_abuse(profile: TrafficProfile, seed: int, honest: Sequence[SimRequest]) -> tuple[SimRequest, ...]:
    """The requests of `profile.abusers` abusers among these honest ones, in no order."""
    entropy = SeededEntropy(seed, "abusers")
    return tuple(
        request
        for number in range(profile.abusers)
        for request in _train(entropy.fork(str(number)), profile, honest, f"abuse-{number}")
    )


def _train(
    entropy: SeededEntropy, profile: TrafficProfile, honest: Sequence[SimRequest], name: str
) -> list[SimRequest]:
    """One abuser: its manner, when it begins, and how soon it asks again."""
    manner = MANNERS[below(entropy, len(MANNERS))]
    began_s = unit(entropy) * profile.span_s
    wait_s = unit(entropy) * _WAIT_S if below(entropy, 2) else 0.0
    count = 4 + below(entropy, 9)
    plain = (_plain(entropy, f"{name}-{index}", began_s + index * wait_s) for index in range(count))
    return [manner(request, entropy.fork(request.request_id), profile, honest) for request in plain]


def _plain(entropy: SeededEntropy, request_id: str, arrive_s: float) -> SimRequest:
    return SimRequest(
        request_id=request_id,
        arrive_s=arrive_s,
        prompt=_prompt(entropy, 1 + below(entropy, 64)),
        n=1,
        seed=entropy.u64() >> 1,
        sampling=Sampling(temperature=1.0),
        stopping=Stopping(max_tokens=1 + below(entropy, 32)),
        cancel_after_s=None,
        tenant=TENANT,
    )


def _prompt(entropy: SeededEntropy, tokens: int) -> bytes:
    return pack_tokens(tuple([word % VOCAB_SIZE for word in entropy.u64s(tokens)]))


def _hangs_up(
    request: SimRequest, entropy: SeededEntropy, profile: TrafficProfile, honest: Sequence[SimRequest]
) -> SimRequest:
    """Gone before, while or soon after it is placed."""
    return replace(request, cancel_after_s=_AT_ONCE_S + unit(entropy) * (0.05 if below(entropy, 2) else 0.0))


def _has_no_time(
    request: SimRequest, entropy: SeededEntropy, profile: TrafficProfile, honest: Sequence[SimRequest]
) -> SimRequest:
    return replace(request, timeout_s=0.001 + unit(entropy) * 0.03)


def _never_reads(
    request: SimRequest, entropy: SeededEntropy, profile: TrafficProfile, honest: Sequence[SimRequest]
) -> SimRequest:
    return replace(request, stalls_after=1, stalls_s=_NEVER_READS_S)


def _wants_all(
    request: SimRequest, entropy: SeededEntropy, profile: TrafficProfile, honest: Sequence[SimRequest]
) -> SimRequest:
    """The longest prompt, several answers of full length, before everybody else; most of them are not waited for."""
    return replace(
        request,
        prompt=_prompt(entropy, profile.long_prompt_tokens),
        n=3,
        stopping=Stopping(max_tokens=profile.output_tokens[1]),
        priority=1,
        cancel_after_s=unit(entropy) * 0.5 if below(entropy, 4) else None,
    )


def _steals(
    request: SimRequest, entropy: SeededEntropy, profile: TrafficProfile, honest: Sequence[SimRequest]
) -> SimRequest:
    """Asks for the rest of an answer that is another tenant's, by its id, while it is being made."""
    resumable = [each for each in honest if each.resumable] or list(honest)
    if not resumable:
        return request
    theirs = resumable[below(entropy, len(resumable))]
    return replace(request, steals=theirs.request_id, arrive_s=theirs.arrive_s + unit(entropy) * 0.5)


MANNERS: Final[tuple[Manner, ...]] = (_hangs_up, _has_no_time, _never_reads, _wants_all, _steals)
