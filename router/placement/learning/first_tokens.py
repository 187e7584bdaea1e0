"""Learns from placements of this router how far off the expected times of first tokens are. Pure.

A placement expects its first token after some time, but the token comes sooner or later. The size of this error
decides how sharp the price of a miss may be: where expectations are good, 10 % below the bound is safe, and where
they are not, it is as good as over it. An error is the logarithm of actual over expected time, weighted by the larger
of the two: how far off a first token of some milliseconds was says nothing of one near a bound. One stall says
little: an error is bounded, a prompt counts at most a few times the mean, and what is known is drawn to a prior until
there have been many prompts. So no prompts can make the price a cliff, or flat.
"""

from math import log
from typing import Final

_TWICE_LN2: Final = 2.0 * log(2.0)
"""Mean error times sharpness of the logistic distribution."""
SHARPNESS: Final = 5.0
"""The sharpness before anything is known: first tokens come 28 % sooner or later than expected."""
SHARPNESS_MIN: Final = 2.5
SHARPNESS_MAX: Final = 10.0
_PRIOR: Final = _TWICE_LN2 / SHARPNESS
_DOUBT: Final = 50.0
"""Number of prompts at which half of what they say is believed."""
_KEEP: Final = 1.0 - 1.0 / 200.0
"""A prompt counts that much less than the next."""
_ERROR_MAX: Final = log(4.0)
_SIZE_MAX: Final = 4.0
"""A prompt counts at most so many times as much as the mean one."""


class FirstTokens:
    """The errors of one model's first tokens; its owner changes it in place. `sharpness` is that of a log-logistic
    distribution with as large a mean error, within `SHARPNESS_MIN` and `SHARPNESS_MAX`."""

    __slots__ = ("_errors", "_prompts", "_sizes", "sharpness")

    def __init__(self) -> None:
        self._errors = self._sizes = self._prompts = 0.0
        self.sharpness = SHARPNESS

    def observe(self, expected_ms: float, actual_ms: float) -> None:
        """The first token of a placement came; times that are not positive say nothing."""
        if expected_ms <= 0.0 or actual_ms <= 0.0:
            return
        size = max(expected_ms, actual_ms)
        if self._prompts > 0.0:
            size = min(size, _SIZE_MAX * self._sizes / self._prompts)
        error = min(_ERROR_MAX, abs(log(actual_ms) - log(expected_ms)))
        self._errors = _KEEP * self._errors + size * error
        self._sizes = _KEEP * self._sizes + size
        self._prompts = _KEEP * self._prompts + 1.0
        mean = (self._prompts * self._errors / self._sizes + _DOUBT * _PRIOR) / (self._prompts + _DOUBT)
        self.sharpness = min(SHARPNESS_MAX, max(SHARPNESS_MIN, _TWICE_LN2 / mean))
