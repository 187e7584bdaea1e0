"""The simulated model's sampling: a token from the sum of what was attended to.

A draw hashes E, the last token and the output position. Above temperature 0 it also hashes seed and sequence; with
penalties, also the output so far. So any wrong byte, token, position or history gives another token.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import numpy as np

from tandem.core.messages import Alternative, TokenLogprob
from tandem.core.request import Sampling
from tandem.core.simple_tokenizer import BYTE_IDS
from tandem.engine.scheduler.plan import Columns, Draw, Drawn, Lane
from tandem.engine.simulated.content import GOLDEN, U64, Words, scramble, scramble_one
from tandem.engine.simulated.model import SimulatedModel

_TOKEN: Final = 0xA0761D6478BD642F
_POSITION: Final = 0xE7037ED1A0B428DB
_SEED: Final = 0x8EBC6AF09C88C6E3
_SEQUENCE: Final = 0x589965CC75374CC3
_BIAS_MAX: Final = 100.0
_TOKEN_WORD: Final = np.uint64(_TOKEN)
_POSITION_WORD: Final = np.uint64(_POSITION)
_FIRST_WORD: Final = np.uint64(BYTE_IDS)
_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)


class TokenSampler:
    """Draws for one model. Pure."""

    def __init__(self, model: SimulatedModel) -> None:
        self._eos = model.eos_token_id
        self._words = model.vocab - BYTE_IDS
        self._eos_below = int(model.eos_rate * (1 << 32))

    def draw(self, states: Words, tokens: Words, draws: Sequence[Draw]) -> list[Drawn]:
        """One token per draw, from E and the last token of its row."""
        salts = np.array([draw.position for draw in draws], dtype=np.uint64) * _POSITION_WORD
        sampling, plain = draws[0].sampling, _plain(draws[0].sampling)
        if not plain or sampling.temperature != 0 or any(draw.sampling is not sampling for draw in draws):
            plain = all(_plain(draw.sampling) for draw in draws)
            salts += np.array([_seeded(draw) for draw in draws], dtype=np.uint64)
        units = scramble(states ^ (tokens * _TOKEN_WORD + salts))
        words = self._words_of(units)
        if plain and not any(draw.forbidden for draw in draws):
            return [
                Drawn(draw.work_id, draw.sequence, draw.position, token)
                for draw, token in zip(draws, words.tolist(), strict=True)
            ]
        return [self._drawn(unit, draw) for unit, draw in zip(units.tolist(), draws, strict=True)]

    def tokens(self, states: Words, tokens: Words, columns: Columns) -> list[int]:
        """A token for every row of columns, from E and the last token of each."""
        salts = np.array(columns.positions, dtype=np.uint64) * _POSITION_WORD
        temperatures = [lane.sampling.temperature for lane in columns.lanes]
        if any(temperatures):
            salts += np.array([_seeded(lane) for lane in columns.lanes], dtype=np.uint64)
        found: list[int] = self._words_of(scramble(states ^ (tokens * _TOKEN_WORD + salts))).tolist()
        return found

    def token_one(self, state: int, token: int, lane: Lane, position: int) -> int:
        """The token for one row of columns, from E and the row's last token, without arrays."""
        salt = position * _POSITION + _seeded(lane)
        return self.token(scramble_one(state ^ (token * _TOKEN + salt) & U64))

    def _words_of(self, units: Words) -> Words:
        """`token` of many."""
        words: Words = _FIRST_WORD + (units & _LOW) % np.uint64(self._words)
        words[units >> _HALF < np.uint64(self._eos_below)] = self._eos
        return words

    def draw_one(self, state: int, token: int, draw: Draw) -> Drawn:
        """The token of one draw, from E and the last token of its row, without arrays."""
        salt = draw.position * _POSITION + _seeded(draw)
        unit = scramble_one(state ^ (token * _TOKEN + salt) & U64)
        if not draw.forbidden and _plain(draw.sampling):
            return Drawn(draw.work_id, draw.sequence, draw.position, self.token(unit))
        return self._drawn(unit, draw)

    def _drawn(self, unit: int, draw: Draw) -> Drawn:
        sampling = draw.sampling
        token = self.token(unit) if _unconstrained(draw) else self._constrained(unit, draw)
        logprob = None if sampling.logprobs is None else self._logprob(unit, token, sampling.logprobs)
        return Drawn(draw.work_id, draw.sequence, draw.position, token, logprob)

    def token(self, unit: int) -> int:
        """A word of the vocabulary, or now and then the end token."""
        if unit >> 32 < self._eos_below:
            return self._eos
        return BYTE_IDS + (unit & 0xFFFFFFFF) % self._words

    def _constrained(self, unit: int, draw: Draw) -> int:
        """Tokens with a bias of 100 win, forbidden ones and those with -100 cannot be drawn."""
        sampling = draw.sampling
        if sampling.needs_history:
            unit ^= _history(draw, sampling)
        forced = [token for token, bias in sampling.logit_bias if bias >= _BIAS_MAX and token not in draw.forbidden]
        if forced:
            return min(forced)
        banned = {token for token, bias in sampling.logit_bias if bias <= -_BIAS_MAX}.union(draw.forbidden)
        token = self.token(unit)
        while token in banned:
            unit = (unit * GOLDEN + 1) & U64
            token = self.token(unit)
        return token

    def _logprob(self, unit: int, token: int, count: int) -> TokenLogprob:
        """Made up, but a function of the draw: the chosen token first, each alternative half as likely."""
        chosen = -((unit >> 44) + 1) / (1 << 20)
        others = [Alternative(token, chosen)]
        step = 1
        while len(others) < count:
            candidate = BYTE_IDS + (unit + step) % self._words
            step += 1
            if candidate != token:
                others.append(Alternative(candidate, chosen - 0.6931471805599453 * len(others)))
        return TokenLogprob(chosen, tuple(others[:count]))


def _seeded(draw: Draw | Lane) -> int:
    """The part that seed and sequence add to the hash of a draw."""
    if draw.sampling.temperature == 0:
        return 0
    return draw.seed * _SEED + draw.sequence * _SEQUENCE & U64


def _plain(sampling: Sampling) -> bool:
    """Whether the hash alone decides, unless tokens are forbidden."""
    return sampling.logprobs is None and not sampling.logit_bias and not sampling.needs_history


def _unconstrained(draw: Draw) -> bool:
    sampling = draw.sampling
    return not (draw.forbidden or sampling.logit_bias or sampling.needs_history)


def _history(draw: Draw, sampling: Sampling) -> int:
    penalties = f"{sampling.presence_penalty}/{sampling.frequency_penalty}/{sampling.repetition_penalty}".encode()
    raw = blake2b(draw.output + b"/" + draw.prompt + penalties, digest_size=8).digest()
    return int.from_bytes(raw, "little")
