"""What is asked: prompts around every edge, shared and repeated prefixes, and every way to sample and to stop.

A *wave* is asked at once; the next one starts when it has been answered. So a later wave finds the blocks of the
earlier ones, and the requests of one wave meet each other in flight.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from tandem.core.request import Sampling, Stopping
from tests.worlds.asking import GREEDY, Answer, Ask

Prompt = Callable[[int, int], tuple[int, ...]]
Wave = tuple[Ask, ...]

SEEDED = Sampling(temperature=1.0)
_WAYS = (
    ("top-p", Sampling(temperature=0.9, top_p=0.8)),
    ("top-k", Sampling(temperature=1.2, top_k=20)),
    ("min-p", Sampling(temperature=1.1, min_p=0.05)),
    ("presence and frequency penalty", Sampling(temperature=0.7, presence_penalty=0.6, frequency_penalty=0.4)),
    ("repetition penalty, greedy", Sampling(temperature=0.0, repetition_penalty=1.3)),
    ("logit bias", Sampling(temperature=0.8, logit_bias=((20, 4.0), (31, -3.0)))),
    ("log-probabilities", Sampling(temperature=1.0, logprobs=3)),
)


def all_waves(prompt: Prompt, block: int, chunk: int) -> tuple[Wave, ...]:
    """The full set: more than 200 prompts."""
    return tuple(
        wave
        for wave in (
            *_edges(prompt, "block edge", [block * k for k in (1, 2, 3, 5, 7, 9, 12)], (GREEDY, SEEDED)),
            *_edges(prompt, "chunk edge", [chunk * k for k in (1, 2, 3, 4)], (GREEDY, SEEDED)),
            *_tails(prompt, block),
            *_repeats(prompt, block, chunk, 14),
            *(_shared(prompt, block * k + extra, group) for group, (k, extra) in enumerate(_SHARED)),
            *_branches(prompt, block, chunk, (2, 3, 4)),
            *_ways(prompt, block, 3),
            *_endings(prompt, block),
        )
    )


_SHARED = ((2, 0), (2, 5), (4, 0), (5, 9), (8, 0), (8, 15))


def few_waves(prompt: Prompt, block: int, chunk: int) -> tuple[Wave, ...]:
    """About a fifth of it, with something of every kind."""
    return tuple(
        wave
        for wave in (
            *_edges(prompt, "block edge", [block, 3 * block], (GREEDY,)),
            *_edges(prompt, "chunk edge", [chunk, 2 * chunk], (SEEDED,)),
            *_repeats(prompt, block, chunk, 3),
            _shared(prompt, 4 * block + 3, 0),
            *_branches(prompt, block, chunk, (3,)),
            *_ways(prompt, block, 1),
            *_endings(prompt, block),
        )
    )


def unmixed(waves: Sequence[Wave]) -> tuple[Wave, ...]:
    """One request at a time and one sequence each: what leaves no choice of chunks and batches."""
    return tuple((ask,) for wave in waves for ask in wave if ask.n == 1)


def greedy(waves: Sequence[Wave]) -> tuple[Wave, ...]:
    """Every request decided by the greatest logit alone, with the gap to the next one reported."""
    plain = Sampling(temperature=0.0, logprobs=2)
    return tuple(tuple(replace(ask, sampling=plain) for ask in wave) for wave in waves)


def with_stops(waves: Sequence[Wave], answers: Sequence[Sequence[Answer]], every: int) -> Wave:
    """Some of the requests again, with a stop string that is known to come up: a piece from the middle of the text,
    cut without regard to tokens."""
    found = []
    for number, (ask, answer) in enumerate(_pairs(waves, answers)):
        text = answer.sequences[0].text
        if number % every == 0 and ask.n == 1 and len(text) >= 12:
            stop = text[len(text) // 2 - 2 : len(text) // 2 + 3]
            stopping = structs.replace(ask.stopping, stop=("nowhere to be found", stop))
            found.append(replace(ask, about="stop string", stopping=stopping))
    return tuple(found)


def _pairs(waves: Sequence[Wave], answers: Sequence[Sequence[Answer]]) -> Iterator[tuple[Ask, Answer]]:
    for wave, answered in zip(waves, answers, strict=True):
        yield from zip(wave, answered, strict=True)


def _edges(prompt: Prompt, about: str, edges: Sequence[int], samplings: Sequence[Sampling]) -> Iterator[Wave]:
    for edge in edges:
        yield tuple(
            Ask(f"{about}", prompt(edge + off, 11 * edge + off), Stopping(max_tokens=12), sampling, seed=edge + off)
            for off in (-1, 0, 1)
            for sampling in samplings
        )


def _tails(prompt: Prompt, block: int) -> Iterator[Wave]:
    for blocks in (0, 2):
        yield tuple(
            Ask("partial tail", prompt(blocks * block + rest, 500 + rest), Stopping(max_tokens=6), GREEDY)
            for rest in range(1, block)
        )


def _repeats(prompt: Prompt, block: int, chunk: int, count: int) -> Iterator[Wave]:
    """The same prompt twice, then continued, then cut short."""
    for number in range(count):
        whole = prompt(chunk + 3 * block + number, 900 + number)
        lengths = (len(whole) - block, len(whole) - block, len(whole), (len(whole) - block) // block * block)
        for length in lengths:
            yield (Ask("repeated prefix", whole[:length], Stopping(max_tokens=8), seed=number),)


def _shared(prompt: Prompt, length: int, group: int) -> Wave:
    """Requests in flight together that begin alike."""
    start = prompt(length, 1300 + group)
    return tuple(
        Ask("shared in flight", start + prompt(tail, 1400 + tail), Stopping(max_tokens=10), sampling, seed=tail)
        for tail in (1, 4, 16, 30)
        for sampling in (GREEDY, SEEDED)
    )


def _branches(prompt: Prompt, block: int, chunk: int, counts: Sequence[int]) -> Iterator[Wave]:
    for n in counts:
        yield tuple(
            Ask(f"n={n}", prompt(length, 1700 + length), Stopping(max_tokens=10), SEEDED, n=n, seed=length)
            for length in (block - 1, block, 2 * block + 5, chunk, chunk + 1)
        )


def _ways(prompt: Prompt, block: int, times: int) -> Iterator[Wave]:
    for number in range(times):
        yield tuple(
            Ask(about, prompt(2 * block + 3 * number, 2100 + 7 * number), Stopping(max_tokens=16), sampling, seed=at)
            for at, (about, sampling) in enumerate(_WAYS)
        )


def _endings(prompt: Prompt, block: int) -> Iterator[Wave]:
    whole = prompt(3 * block + 2, 2500)
    yield (
        Ask("one token", whole, Stopping(max_tokens=1)),
        Ask("one token", whole[: 2 * block], Stopping(max_tokens=1), SEEDED, n=2),
        Ask("two tokens", whole[: block + 1], Stopping(max_tokens=2)),
        Ask("min_tokens", whole[:block], Stopping(max_tokens=24, min_tokens=20), SEEDED),
        Ask("ignore_eos", whole[: block - 1], Stopping(max_tokens=20, ignore_eos=True), SEEDED),
        Ask("stop token", whole, Stopping(max_tokens=30, stop_token_ids=tuple(range(20, 60))), SEEDED),
    )
