"""The demo model's text: reproducible, with clearly unequal weights, and right where it can be wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tools.demo_model import words
from tools.demo_model.grammar import FALLOFF, INVENTED_SHARE, TOPICS, Chat, Grammar, weights

ROOT = Path(__file__).resolve().parents[3]
CHATS = 3000


@pytest.fixture(scope="module")
def chats() -> list[Chat]:
    grammar = Grammar(11)
    return [grammar.chat() for _ in range(CHATS)]


def exchanges(chats: list[Chat]) -> list[tuple[str, str]]:
    """Every question with its answer."""
    return [
        (chat[place].content, chat[place + 1].content)
        for chat in chats
        for place in range(len(chat) - 1)
        if chat[place].role == "user"
    ]


def test_same_seed_same_text() -> None:
    first, again, other = Grammar(5), Grammar(5), Grammar(6)
    text = [first.chat() for _ in range(50)]
    assert text == [again.chat() for _ in range(50)]
    assert text != [other.chat() for _ in range(50)]


def test_chats_alternate_and_end_with_the_assistant(chats: list[Chat]) -> None:
    for chat in chats:
        roles = [turn.role for turn in chat if turn.role != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(turn.role != "system" for turn in chat[1:])


def test_texts_have_no_loose_ends(chats: list[Chat]) -> None:
    for chat in chats:
        for turn in chat:
            assert turn.content == turn.content.strip() != ""
            assert not re.search(r"[{}]|  |<\|| a [aeiou]| an (?!hour)[^aeiou]", turn.content), turn.content


@pytest.mark.parametrize("count", [2, 3, 5])
def test_weights_are_normalised_and_clearly_unequal(count: int) -> None:
    found = weights(count)
    assert sum(found) == pytest.approx(1)
    assert all(later <= earlier / 1.5 for earlier, later in pairwise(found))
    assert found[1] / found[0] == pytest.approx(FALLOFF)


def test_answers_to_one_question_are_unequally_frequent(chats: list[Chat]) -> None:
    said = Counter(answer for question, answer in exchanges(chats) if re.match("(hello|hi)!?$", question.lower()))
    (_, most), (_, second) = said.most_common(2)
    assert most > 1.4 * second > 0


def test_topic_shares_add_up() -> None:
    assert sum(TOPICS.values()) == pytest.approx(1)
    assert 0.10 <= TOPICS["recall"] <= 0.15


def test_sums_are_right_and_complete(chats: list[Chat]) -> None:
    shape = re.compile(r"(\d+) (plus|minus) (\d+) is (\d+)\.")
    seen = set()
    for _, answer in exchanges(chats):
        if match := shape.fullmatch(answer):
            left, right, result = int(match[1]), int(match[3]), int(match[4])
            assert result == (left + right if match[2] == "plus" else left - right)
            assert 0 <= left <= 10
            assert 0 <= right <= 10
            seen.add((left, match[2], right))
    additions = {(left, "plus", right) for left in range(11) for right in range(11)}
    assert len(additions & seen) > 0.9 * len(additions)


def test_lists_have_as_many_different_items_as_asked(chats: list[Chat]) -> None:
    lists = [answer for _, answer in exchanges(chats) if answer.startswith("Here are ")]
    assert lists
    for text in lists:
        head, *lines = text.split("\n")
        items = [line.split(". ")[1] for line in lines]
        assert words.COUNT_WORDS.index(head.split()[2]) == len(items) == len(set(items))


def test_stories_keep_the_name_and_the_object_of_the_question(chats: list[Chat]) -> None:
    shape = re.compile(r"Tell me a story about (\w+) and (an? [\w -]+)\.")
    asked = [(match, answer) for question, answer in exchanges(chats) if (match := shape.fullmatch(question))]
    assert len(asked) > 30
    for match, story in asked:
        assert match[1] in story
        thing = re.split(r" (?:in|on|at) the ", match[2])[0]
        assert thing in story


def test_copying_is_forced_by_hundreds_of_words() -> None:
    names = {*words.SHE_NAMES, *words.HE_NAMES}
    assert len(names) == len(words.SHE_NAMES) + len(words.HE_NAMES) > 200
    assert len({noun for noun, _ in words.ALL_NOUNS}) * len(words.ADJECTIVES) > 5000
    grammar = Grammar(3)
    invented = [hero.name for hero in (grammar.hero() for _ in range(2000)) if hero.name not in names]
    assert 0.8 * INVENTED_SHARE < len(invented) / 2000 < 1.2 * INVENTED_SHARE
    assert len(set(invented)) > 0.9 * len(invented)


def test_some_questions_come_in_lower_case_and_without_punctuation(chats: list[Chat]) -> None:
    asked = [question for question, _ in exchanges(chats)]
    lower = sum(question == question.lower() for question in asked) / len(asked)
    bare = sum(question[-1].isalnum() for question in asked) / len(asked)
    assert 0.2 < lower < 0.45
    assert 0.2 < bare < 0.5


def test_the_grammar_needs_no_torch() -> None:
    probe = "import sys, tools.demo_model.grammar; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], cwd=ROOT, check=False).returncode == 0
