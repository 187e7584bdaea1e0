"""Decides which streams of a draining worker move, and when: those that would not end in time, a few at once. Pure.

A stream that may still end in time stays, as nothing is as cheap as finishing. A stream that will not is resumed
elsewhere while the worker still runs, so that a scale-down does not fail over every stream at once at the end of the
bound.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.settings import MigrationSettings

_SHARE_OF_BOUND: Final = 0.5
"""Moves are spread over at most this share of the time that is left; the rest is for those that move late."""


@dataclass(frozen=True)
class Stream:
    """A request on the draining worker. `tokens_left` is the most that its longest sequence may still generate."""

    key: int
    tokens_left: int


@dataclass(frozen=True)
class Leaving:
    """The draining worker: what a step takes there, and how long it stays (seconds)."""

    worker_id: str
    step_s: float
    left_s: float


def moves(streams: Sequence[Stream], moving: int, leaving: Leaving, settings: MigrationSettings) -> dict[int, str]:
    """The streams to move now, by key, the longest first, each with the reason. `moving` streams are under way and
    have delivered no token yet."""
    needed_s = {stream.key: stream.tokens_left * leaving.step_s * settings.margin for stream in streams}
    late = sorted((stream for stream in streams if needed_s[stream.key] > leaving.left_s), key=_longest_first)
    room = max(0, at_once(len(late), leaving.left_s, settings) - moving)
    return {stream.key: _reason(stream, needed_s[stream.key], leaving) for stream in late[:room]}


def at_once(late: int, left_s: float, settings: MigrationSettings) -> int:
    """The number of streams that may be under way together: few, unless the time left requires more with every
    look."""
    looks = max(1.0, left_s * _SHARE_OF_BOUND / settings.every_s)
    return max(settings.at_once, math.ceil(late / looks))


def _longest_first(stream: Stream) -> tuple[int, int]:
    return -stream.tokens_left, stream.key


def _reason(stream: Stream, needed_s: float, leaving: Leaving) -> str:
    up_to = f"up to {stream.tokens_left} tokens of {leaving.step_s * 1e3:.1f} ms would take {needed_s:.1f} s"
    return f"moved: {leaving.worker_id} leaves in {leaving.left_s:.1f} s, and {up_to}"
