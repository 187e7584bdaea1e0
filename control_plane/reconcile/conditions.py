"""Conditions as kstatus reads them, Ready, Reconciling and Stalled, and those of our own.

`lastTransitionTime` moves only when the status of a condition does. A message that differs only in a longer time is
not written again: an unchanged state causes no write.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from tandem.kube.times import timestamp
from tandem.spec.status import Condition

_SECONDS: Final = re.compile(r"\b\d+ s\b")
_MESSAGE_MAX: Final = 4096


@dataclass(frozen=True)
class ConditionUpdate:
    """A condition to be written: `reason` is one word, `message` a sentence."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


def condition_update(type_: str, holds: bool, reason: str, message: str = "") -> ConditionUpdate:
    return ConditionUpdate(type_, "True" if holds else "False", reason, message)


def conditions(
    before: Iterable[Condition], sayings: Iterable[ConditionUpdate], generation: int, now: float
) -> tuple[Condition, ...]:
    """The updated conditions, in the order of their types."""
    known = {each.type: each for each in before}
    ordered = sorted(sayings, key=lambda each: each.type)
    return tuple(_condition(known.get(each.type), each, generation, now) for each in ordered)


def changed(before: Iterable[Condition], type_: str, reason: str) -> bool:
    """Whether `reason` is not the one that the condition of this type had before."""
    return all(each.reason != reason for each in before if each.type == type_)


def _condition(before: Condition | None, said: ConditionUpdate, generation: int, now: float) -> Condition:
    message = said.message[:_MESSAGE_MAX]
    since = timestamp(now)
    if before is not None and before.status == said.status:
        since = before.last_transition_time
        if before.reason == said.reason and _SECONDS.sub("", before.message) == _SECONDS.sub("", message):
            message = before.message
    return Condition(said.type, said.status, said.reason, message, since, generation)
