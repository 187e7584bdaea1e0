"""How long a prompt takes to compute: a·steps + pace · (b·n + c·n·(k + n/2)) for n tokens after k known ones.

The last term is attention: every token attends to all before it. The first is the time that the steps which compute
the prompt take without it: that of the decode batch beside, or of a step with nothing in it, as many times as the
prompt has pieces. It delays the prompt, but costs the sequences of that batch nothing, and it says nothing of how
fast the worker computes: counted as pace it would make workers that have had short prompts look slow.

Workers that report how long their steps take are believed. For the others the shape a, b, c is the same for all,
which run the same model; each worker has its own pace. Both are inferred from prompts that had a worker to
themselves: only their time is their own. Before a worker has had such a prompt, its pace follows the best rate that
it has reported, that of steps full of prompts.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from router.placement.learning.fit import Fit
from router.placement.learning.lazy import LazyDict
from router.placement.learning.pace import Faded, Judged, Paces

_SHARE: Final = 0.1
"""Weight of a prompt in what follows all of them: positions attended to, tokens per piece."""
_WINDOW: Final = 16.0
"""Prompts that say a worker's pace,"""
_DOUBT: Final = 2.0
"""and as many with which half of what they say is believed."""
_FADE: Final = 0.99
"""Share of itself that a rate keeps when it is no longer reached."""
_KEEP: Final = 0.99
_OUTLIER: Final = 4.0
"""A prompt counts as at most so many times slower than what is known predicts."""
_TOKENS_MIN: Final = 64
"""Fewer tokens say what a step takes, and not what a token does, as long as nothing longer has been measured."""
_PULLS: Final = (0.05, 0.001, 0.05)
"""Pulls to the priors. Until prompts have varied in length, their time is attributed to their tokens."""


class PrefillTerms(NamedTuple):
    """Steps that a piece of a prompt takes part in, and milliseconds per token and per token and attended
    position."""

    steps: float
    token: float
    position: float
    pieces_token: float = 0.0
    """Pieces that a long prompt is computed in, per token. 0 while prompts have taken a single one."""
    piece: float = 0.0
    """Milliseconds that a piece adds to its step, whatever its length."""

    def ms(self, uncached: int, cached: int) -> float:
        """Milliseconds that `uncached` tokens after `cached` ones add to steps."""
        return uncached * (self.token + self.position * (cached + uncached / 2))


class PrefillCosts:
    """Learns for all workers of a router."""

    def __init__(self, tokens_per_s: float) -> None:
        """`tokens_per_s` is what is assumed before anything has been measured."""
        self._shape = Fit((1.0, 1e3 / tokens_per_s, 0.0), _PULLS, _KEEP)
        self._rates: dict[str, float] = {}
        """The best of late, of workers that have had no prompt alone."""
        self._told: dict[str, float] = {}
        """The rate that each worker reported last, in tokens per second."""
        self._measured = False
        self._paces = Paces(_DOUBT)
        self._faded: dict[str, Faded] = {}
        self._version = 0
        self._fitted: dict[str, PrefillTerms] = {}
        """Terms of the workers that report their steps, or whose kind does."""
        self._guessed: dict[str, Judged[PrefillTerms]] = {}
        """Judgements of workers that report nothing, but are of a kind that does."""
        self._attended: dict[str, float] = {}
        """Mean position that a computed token attended to."""
        self._terms = LazyDict[PrefillTerms](self._worked_out)
        self._pieces_token = 0.0
        self._solved = self._shape.coefficients

    def terms(self, worker_id: str) -> PrefillTerms:
        return self.all_terms()[worker_id]

    def all_terms(self) -> Mapping[str, PrefillTerms]:
        """The terms of any worker, by its id, valid until something is learned."""
        if self._solved is not self._shape.coefficients or self._version != self._paces.version:
            self._solved, self._version = self._shape.coefficients, self._paces.version
            self._terms.clear()
        return self._terms

    def _worked_out(self, worker_id: str) -> PrefillTerms:
        fitted = self._fitted.get(worker_id)
        if fitted is not None:
            return fitted
        pace = self._paces.beside(worker_id) if worker_id in self._paces else self._told_pace(worker_id)
        steps, token, position = self._solved
        return PrefillTerms(steps, pace * token, pace * position, self._pieces_token)

    def tell(self, worker_id: str, token: float, position: float, piece: float, *, guessed: bool = False) -> None:
        """Record what prompts cost in a worker's steps: milliseconds per token, per token and attended position, and
        per piece. `guessed`: the worker reports nothing itself, but others of its kind do."""
        terms = PrefillTerms(1.0, token, position, self._pieces_token, piece)
        if guessed:
            guess = self._guessed.setdefault(worker_id, Judged(terms, _WINDOW, _DOUBT))
            guess.told = terms
            terms = _scaled(terms, guess.pace)
        else:
            self._guessed.pop(worker_id, None)
        self._fitted[worker_id] = terms
        self._terms.pop(worker_id, None)

    def observe_rate(self, worker_id: str, tokens_per_s: float) -> None:
        """Record the rate that a worker reports for its steps that had prompts in them."""
        if tokens_per_s > 0.0:
            self._told[worker_id] = tokens_per_s
        if tokens_per_s > 0.0 and worker_id not in self._paces:
            self._rates[worker_id] = max(tokens_per_s, _FADE * self._rates.get(worker_id, 0.0))
            self._terms.pop(worker_id, None)

    def observe_prompt(
        self, worker_id: str, computed: int, cached: int, ms: float, *, alone: bool, steps_ms: float, steps: int = 1
    ) -> None:
        """Learn from a prompt that was computed in `steps` steps, which would have taken `steps_ms` together without
        it. Only when the prompt was `alone`, with no other one before or beside it, does `ms` show what it takes."""
        if computed <= 0:
            return
        self._observe_pieces(computed, steps)
        attended = cached + computed / 2
        known = self._attended.get(worker_id, attended)
        self._attended[worker_id] = known + _SHARE * (attended - known)
        if not alone or ms <= 0.0:
            return
        if (guess := self._guessed.get(worker_id)) is not None:
            told = guess.told
            added_ms = told.token * computed + told.position * computed * attended + told.piece * steps
            guess.observe(ms, steps_ms + added_ms, _OUTLIER)
            self._fitted[worker_id] = _scaled(told, guess.pace)._replace(pieces_token=self._pieces_token)
            self._terms.pop(worker_id, None)
        elif worker_id not in self._fitted:
            self._observe_alone(worker_id, (steps_ms, computed, computed * attended), ms)

    def forget(self, worker_id: str) -> None:
        self._paces.forget(worker_id)
        for known in (self._rates, self._told, self._attended, self._terms, self._faded, self._fitted, self._guessed):
            known.pop(worker_id, None)

    def _observe_pieces(self, computed: int, steps: int) -> None:
        """A piece had at least `computed` over `steps` tokens, and all but the last had at most those over one step
        less. What is known moves into these bounds, by a share: pieces are shorter beside more sequences."""
        known = 1.0 / self._pieces_token if self._pieces_token > 0.0 else float("inf")
        least, most = computed / steps, computed / (steps - 1) if steps > 1 else float("inf")
        piece = most if known == float("inf") else known + _SHARE * (min(max(known, least), most) - known)
        if piece != known:
            self._pieces_token = 1.0 / piece
            self._terms.clear()
            for worker_id, terms in self._fitted.items():
                self._fitted[worker_id] = terms._replace(pieces_token=self._pieces_token)

    def _observe_alone(self, worker_id: str, features: tuple[float, float, float], ms: float) -> None:
        """Learn from a prompt that had the worker to itself. The pace is the time of the last prompts over what the
        shape predicts for all of them: a long prompt weighs as much as it takes."""
        pace = self._paces.beside(worker_id)
        steps, token, position = self._shape.coefficients
        beside_ms = pace * steps * features[0]
        known_ms = self._known_ms(worker_id, features, pace)
        if known_ms is None and features[1] < _TOKENS_MIN:
            return
        ms = ms if known_ms is None else min(ms, beside_ms + _OUTLIER * known_ms)
        expected = steps * features[0] + token * features[1] + position * features[2]
        self._shape.observe((pace * features[0], pace * features[1], pace * features[2]), ms)
        faded = self._faded.setdefault(worker_id, Faded())
        faded.add(ms, expected, _WINDOW)
        self._paces.tell(worker_id, faded.measured / faded.expected if faded.expected > 0.0 else 1.0, faded.work)
        self._measured = True
        self._rates.pop(worker_id, None)
        self._terms.pop(worker_id, None)

    def _known_ms(self, worker_id: str, features: tuple[float, float, float], pace: float) -> float | None:
        """Milliseconds that a prompt takes according to evidence: prompts before it, and the rate that its worker has
        reported for its steps. None before there is any. One step that took long for its own reasons - a stall, a
        page fault - is no measure of what a token costs."""
        _, token, position = self._shape.coefficients
        found = [pace * (token * features[1] + position * features[2])] if self._measured else []
        if (rate := self._told.get(worker_id)) is not None:
            found.append(1e3 * features[1] / rate)
        return max(found, default=None)

    def _told_pace(self, worker_id: str) -> float:
        """The pace that follows from the worker's best reported rate, compared to the formula."""
        rate = self._rates.get(worker_id)
        _, token, position = self._shape.coefficients
        expected = token + position * self._attended.get(worker_id, 0.0)
        return 1e3 / (rate * expected) if rate is not None and expected > 0.0 else 1.0


def _scaled(terms: PrefillTerms, pace: float) -> PrefillTerms:
    return terms._replace(token=pace * terms.token, position=pace * terms.position, piece=pace * terms.piece)
