"""The requests of a drill: each has a fixed prompt and seed, so that its right answer can be known beforehand."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import Final

from tandem.apps.bench.content import prompt_text
from tandem.apps.bench.workload import Piece
from tandem.apps.chaos.request import ChaosRequest

_SEED: Final = 20_000
_FILL_N: Final = 8
_LONG_TOKENS: Final = 4000
_MIDDLE_TOKENS: Final = 1200
_ORPHAN_TOKENS: Final = 250
_CONTEXT_SHARE: Final = 0.8


@dataclass(frozen=True)
class RequestShapes:
    """All requests a drill asks, sized for a model with `context_tokens`."""

    load: tuple[ChaosRequest, ...]
    targets: dict[str, ChaosRequest]
    """Requests by the stage in which they are to be struck; each stays in that stage for long."""
    fill: ChaosRequest
    """Many sequences, so that a few of them leave no place for another request."""
    probe: ChaosRequest
    orphan: ChaosRequest
    """A request that is still far from its end after a few seconds, so that a drill can see that what it held is
    freed once its client is gone."""

    def all(self) -> tuple[ChaosRequest, ...]:
        return (self.orphan, *self.load, *dict.fromkeys(self.targets.values()), self.fill, self.probe)


def shapes(context_tokens: int, tokens_per_word: float) -> RequestShapes:
    """The requests for a model."""
    most = int(_CONTEXT_SHARE * context_tokens)
    prompts = _Prompts(tokens_per_word, most)
    long = ChaosRequest("target-long", False, prompts.text(_LONG_TOKENS), 24, 1, _SEED, 0.7)
    targets = {
        "queue": ChaosRequest("target-queue", False, prompts.text(200), 24, 1, _SEED + 1, 0.7),
        "prefill": long,
        "transfer": long,
        "first-token": ChaosRequest("target-first", False, prompts.text(_MIDDLE_TOKENS), 24, 1, _SEED + 2, 0.7),
        "decode": ChaosRequest("target-decode", True, prompts.text(300), 64, 1, _SEED + 3, 0.7),
    }
    return RequestShapes(
        load=tuple(_load(prompts)),
        targets=targets,
        fill=ChaosRequest("fill", False, prompts.text(40), 40, _FILL_N, _SEED + 4, 0.7),
        probe=ChaosRequest("probe", True, prompts.text(60), 8, 1, _SEED + 5, 0.0),
        orphan=ChaosRequest(
            "orphan", False, prompts.text(300), min(_ORPHAN_TOKENS, context_tokens - most), 2, _SEED + 6, 0.7
        ),
    )


def _load(prompts: "_Prompts") -> Iterator[ChaosRequest]:
    """Chat and completions, greedy and not, some with several sequences, some with long prompts."""
    sizes = cycle((80, 300, 30, 600, 150, _MIDDLE_TOKENS))
    for number in range(12):
        yield ChaosRequest(
            name=f"load-{number}",
            chat=number % 2 == 0,
            prompt=prompts.text(next(sizes)),
            max_tokens=24 + 4 * (number % 5),
            n=(1, 1, 3, 1, 2)[number % 5],
            seed=_SEED + 100 + number,
            temperature=(0.0, 0.8, 1.0)[number % 3],
        )


@dataclass
class _Prompts:
    """Texts that share no beginning. `most` bounds their tokens."""

    tokens_per_word: float
    most: int
    _content: Iterator[int] = field(default_factory=count)

    def text(self, tokens: int) -> str:
        return prompt_text((Piece(next(self._content), min(tokens, self.most)),), self.tokens_per_word, _SEED)
