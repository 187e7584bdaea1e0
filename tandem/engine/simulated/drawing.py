"""From the sum of what was attended to a token: the simulated model's sampling.

The draw hashes E, the last token, the output position and, above temperature 0, seed and sequence; with
penalties also the output so far. So any wrong byte, token, position or history gives another token.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import numpy as np

from tandem.core.messages import Alternative, TokenLogprob
from tandem.core.request import Sampling
from tandem.core.simple_tokenizer import BYTE_IDS
from tandem.engine.plan import Draw, Drawn
from tandem.engine.simulated.content import GOLDEN, U64, Words, scramble, scramble_one
from tandem.engine.simulated.model import SimulatedModel

_TOKEN: Final = 0xA0761D6478BD642F
_POSITION: Final = 0xE7037ED1A0B428DB
_SEED: Final = 0x8EBC6AF09C88C6E3
_SEQUENCE: Final = 0x589965CC75374CC3
_BIAS_MAX: Final = 100.0


class Drawing:
    """Draws for one model. Pure."""

    def __init__(self, model: SimulatedModel) -> None:
        self._eos = model.eos_token_id
        self._words = model.vocab - BYTE_IDS
        self._eos_below = int(model.eos_rate * (1 << 32))

    def draw(self, states: Words, tokens: Words, draws: Sequence[Draw]) -> list[Drawn]:
        """One token per draw, from E and the last token of its row."""
        salts = np.array(
            [
                draw.position * _POSITION & U64
                if draw.sampling.temperature == 0
                else (draw.position * _POSITION + draw.seed * _SEED + draw.sequence * _SEQUENCE) & U64
                for draw in draws
            ],
            dtype=np.uint64,
        )
        units = scramble(states ^ (tokens * np.uint64(_TOKEN) + salts))
        words = np.uint64(BYTE_IDS) + (units & np.uint64(0xFFFFFFFF)) % np.uint64(self._words)
        words[units >> np.uint64(32) < np.uint64(self._eos_below)] = self._eos
        drawn = []
        for index, (token, draw) in enumerate(zip(words.tolist(), draws, strict=True)):
            sampling = draw.sampling
            # A draw carries its prompt when, and only when, it depends on its history.
            bound = draw.forbidden or draw.prompt or draw.output or sampling.logit_bias
            if sampling.logprobs is None and not bound:
                drawn.append(Drawn(draw.work_id, draw.sequence, draw.position, token))
            else:
                drawn.append(self._drawn(int(units[index]), draw))
        return drawn

    def draw_one(self, state: int, token: int, draw: Draw) -> Drawn:
        """The same for one draw, without arrays."""
        return self._drawn(scramble_one(state ^ (token * _TOKEN + _salt(draw)) & U64), draw)

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


def _salt(draw: Draw) -> int:
    """What of the draw itself goes into the hash."""
    salt = draw.position * _POSITION
    if draw.sampling.temperature != 0:
        salt += draw.seed * _SEED + draw.sequence * _SEQUENCE
    return salt & U64


def _unconstrained(draw: Draw) -> bool:
    sampling = draw.sampling
    return not (draw.forbidden or sampling.logit_bias or sampling.needs_history)


def _history(draw: Draw, sampling: Sampling) -> int:
    penalties = f"{sampling.presence_penalty}/{sampling.frequency_penalty}/{sampling.repetition_penalty}".encode()
    raw = blake2b(draw.output + b"/" + draw.prompt + penalties, digest_size=8).digest()
    return int.from_bytes(raw, "little")
