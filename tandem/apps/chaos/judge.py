"""Judges whether a client received the right answer, and if not, what was wrong with it. Pure.

Texts are compared in words: with the simulated engine a word is a token, with a real engine it is about one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from tandem.apps.chaos.response import BROKEN, DONE, REFUSED, RUNNING, WITHOUT_END, ReceivedAnswer


@dataclass(frozen=True)
class ExpectedAnswer:
    """The right answer: texts and finish reasons by choice, and the output tokens of all choices."""

    texts: Mapping[int, str]
    finishes: Mapping[int, str]
    tokens: int


@dataclass(frozen=True)
class Discrepancies:
    """Faults of answers, counted: lost, duplicated and wrong tokens, and requests without an end. `why` is a
    sentence, empty when all was right."""

    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    without_end: int = 0
    why: str = ""

    def __add__(self, other: "Discrepancies") -> "Discrepancies":
        return Discrepancies(
            self.lost + other.lost,
            self.duplicated + other.duplicated,
            self.wrong + other.wrong,
            self.without_end + other.without_end,
            "; ".join(filter(None, (self.why, other.why))),
        )


def expected(heard: ReceivedAnswer) -> ExpectedAnswer:
    """What an undisturbed answer says of every later one to the same request."""
    return ExpectedAnswer(heard.texts, heard.finishes, heard.tokens)


def judge(heard: ReceivedAnswer, right: ExpectedAnswer, may_break: bool) -> Discrepancies:
    """Compare an answer with the right one. With `may_break` a connection that broke is an end like any other, and
    what came before has to be a beginning of the right answer."""
    if heard.end in (WITHOUT_END, RUNNING):
        return Discrepancies(without_end=1, why=f"{_name(heard)} has no end: {heard.reason or 'still running'}")
    broken = may_break and heard.end in (BROKEN, REFUSED)
    faults = Discrepancies()
    for index in range(heard.ask.n):
        faults += compare(right.texts.get(index, ""), heard.texts.get(index, ""), ends=not broken)
    if broken:
        return _explained(faults, heard)
    if heard.end == DONE and faults == Discrepancies():
        faults = _figures(heard, right)
    if heard.end != DONE:
        faults += Discrepancies(lost=0 if faults.lost else 1)
    return _explained(faults, heard)


def _figures(heard: ReceivedAnswer, right: ExpectedAnswer) -> Discrepancies:
    """Texts are right: so must be the counts and the reasons for which they end."""
    more = heard.tokens - right.tokens
    reasons = sum(heard.finishes.get(index) != reason for index, reason in right.finishes.items())
    return Discrepancies(lost=max(0, -more), duplicated=max(0, more), wrong=reasons)


def _explained(faults: Discrepancies, heard: ReceivedAnswer) -> Discrepancies:
    if faults == Discrepancies():
        return faults
    how = heard.end + (f" ({heard.reason})" if heard.reason else "")
    counts = f"{faults.lost} lost, {faults.duplicated} duplicated, {faults.wrong} wrong"
    return Discrepancies(faults.lost, faults.duplicated, faults.wrong, 0, f"{_name(heard)}: {counts}; it is {how}")


def _name(heard: ReceivedAnswer) -> str:
    return f"{heard.request_id} ({heard.ask.name}, n={heard.ask.n})"


def compare(right: str, heard: str, *, ends: bool) -> Discrepancies:
    """Two texts. Unless the answer `ends`, a beginning of the right text is right."""
    if heard == right or (not ends and right.startswith(heard)):
        return Discrepancies()
    expected, came = right.split(), heard.split()
    if right.startswith(heard):
        return Discrepancies(lost=max(1, len(expected) - len(came)))
    before = _common(expected, came)
    after = _common(expected[before:][::-1], came[before:][::-1])
    lost = duplicated = wrong = 0
    matcher = SequenceMatcher(
        None, expected[before : len(expected) - after], came[before : len(came) - after], autojunk=False
    )
    for change, start, end, begin, stop in matcher.get_opcodes():
        if change == "delete":
            lost += end - start if ends or before + end < len(expected) else 0
        elif change == "replace":
            wrong += max(end - start, stop - begin)
        elif change == "insert" and _repeats(came, before + begin, before + stop):
            duplicated += stop - begin
        elif change == "insert":
            wrong += stop - begin
    return Discrepancies(lost, duplicated, wrong if lost or duplicated or wrong else 1)


def _common(one: list[str], other: list[str]) -> int:
    """The number of leading words that both lists share."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _repeats(words: list[str], begin: int, stop: int) -> bool:
    """Whether these words say once more what stands right before or right after them."""
    size = stop - begin
    return words[begin:stop] in (words[max(0, begin - size) : begin], words[stop : stop + size])
