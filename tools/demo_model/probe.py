"""Release probe: asks a written demo model for everything it should know and copy.

`python -m tools.demo_model.probe DIR` prints a table of pass rates beside their thresholds; the last line
is the verdict, and a rate under its threshold makes the exit status 1. Questions come from seeds never
trained on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from tools.demo_model import words
from tools.demo_model.grammar import Chat, DialogTurn, Grammar, Hero, fill_unknown, with_article
from tools.demo_model.text import END, PAD, prompt_of, render, token_id

SEED = 2**30
ANSWER_TOKENS_MAX = 400
ANSWER_LOSS_MAX = 0.1
ROWS = 48


@dataclass(frozen=True)
class Question:
    """A chat that ends with the user, and what its answer has to be like."""

    chat: Chat
    accepts: Callable[[str], bool]


@dataclass(frozen=True)
class Answer:
    """What the model said, and whether it ended its turn by itself."""

    text: str
    ended: bool


@dataclass(frozen=True)
class Check:
    """One row of the table: questions of a kind and the share that must pass.

    A row without a threshold is a known limit of so small a model: its rate is shown and decides nothing.
    """

    name: str
    threshold: float | None
    questions: tuple[Question, ...]
    temperature: float = 0.0


class Speaker:
    """The model under probe: answers many chats at once, in float32."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self._model.eval()  # type: ignore[no-untyped-call]
        self._end = token_id(self._tokenizer, END)
        self._pad = token_id(self._tokenizer, PAD)

    def answer(self, chats: Sequence[Chat], temperature: float) -> list[Answer]:
        """Answers in the order of `chats`, at most `ANSWER_TOKENS_MAX` tokens each."""
        prompts = [self._tokenizer.encode(render(chat, ask=True), add_special_tokens=False).ids for chat in chats]
        order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
        answers: dict[int, Answer] = {}
        for first in range(0, len(order), ROWS):
            places = order[first : first + ROWS]
            spoken = self._generate([prompts[place] for place in places], temperature)
            answers.update(zip(places, spoken, strict=True))
        return [answers[place] for place in range(len(prompts))]

    @torch.no_grad()
    def _generate(self, prompts: list[list[int]], temperature: float) -> list[Answer]:
        width = max(map(len, prompts))
        ids = torch.tensor([[self._pad] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        sampling = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}
        out = self._model.generate(  # type: ignore[misc]
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=ANSWER_TOKENS_MAX,
            eos_token_id=self._end,
            pad_token_id=self._pad,
            **(sampling if temperature else {"do_sample": False, "temperature": None, "top_p": None}),
        )
        return [self._read(row[width:].tolist()) for row in out]

    def _read(self, ids: list[int]) -> Answer:
        ended = self._end in ids
        return Answer(self._tokenizer.decode(ids[: ids.index(self._end)] if ended else ids), ended)


def exactly(*answers: str) -> Callable[[str], bool]:
    return lambda text: text in answers


def sums() -> Iterable[Question]:
    """Every addition and subtraction of 0-10, each asked once."""
    for left in range(11):
        for right in range(11):
            ask = "What is {} plus {}?" if (left + right) % 2 else "{} + {}"
            answer = f"{left} plus {right} is {left + right}."
            yield Question(prompt_of(ask.format(left, right)), exactly(answer))
            if left >= right:
                answer = f"{left} minus {right} is {left - right}."
                yield Question(prompt_of(f"What is {left} - {right}?"), exactly(answer))


def facts() -> Iterable[Question]:
    """Every way of asking for every fact, as written and in lower case without punctuation."""
    for asks, answers in (*words.TOWN_FACTS.values(), *words.TANDEM_FACTS.values()):
        for ask in asks:
            yield Question(prompt_of(ask), exactly(*answers))
            yield Question(prompt_of(ask.lower().rstrip(".?!")), exactly(*answers))


def lists() -> Iterable[Question]:
    for category, options in words.LISTS.items():
        for count in range(2, min(5, len(options)) + 1):
            ask = f"List {words.COUNT_WORDS[count]} {category}."
            yield Question(prompt_of(ask), _is_list(count, category, options))


def _is_list(count: int, category: str, options: tuple[str, ...]) -> Callable[[str], bool]:
    def accepts(text: str) -> bool:
        head, *lines = text.split("\n")
        items = [line.split(". ", 1)[-1].lower() for line in lines]
        numbered = all(line.startswith(f"{place}. ") for place, line in enumerate(lines, 1))
        known = set(items) <= {option.lower() for option in options}
        right_count = len(items) == count == len(set(items))
        return head == f"Here are {words.COUNT_WORDS[count]} {category}:" and numbered and known and right_count

    return accepts


def refusals() -> Iterable[Question]:
    for ask, _ in words.REFUSALS:
        yield Question(prompt_of(ask), lambda text: text.startswith("I am sorry"))
    for ask in words.UNKNOWN:
        filled = fill_unknown(ask, noun="lantern", other="boat", adjective="green", place="village")
        yield Question(prompt_of(filled), lambda text: text.startswith("I am sorry"))


def is_story_of(hero: Hero, thing: str) -> Callable[[str], bool]:
    """The story keeps the name, the whole object and the pronouns, and names no second hero."""
    noun = thing.split()[-1]
    wrong_pronoun = "he" if hero.subject == "she" else "she"

    def accepts(text: str) -> bool:
        spoken = re.findall(r"[A-Za-z-]+", text)
        return (
            spoken.count(hero.name) >= 2
            and with_article(thing) in text
            and spoken.count(noun) >= 2
            and wrong_pronoun not in spoken
        )

    return accepts


def stories(count: int, invented: bool, casual: bool = False) -> Iterable[Question]:
    """Stories about a person and an object; `invented` names were made up and mostly never seen."""
    grammar = Grammar(SEED + invented + 2 * casual)
    known = {*words.SHE_NAMES, *words.HE_NAMES}
    made = 0
    while made < count:
        hero, thing = grammar.hero(), grammar.thing()
        if (hero.name in known) == invented:
            continue
        made += 1
        ask = f"Tell me a story about {hero.name} and {with_article(thing.full)}."
        ask = ask.lower().rstrip(".") if casual else ask
        yield Question(prompt_of(ask), is_story_of(hero, thing.full))


def recalls(count: int) -> Iterable[Question]:
    """Names and possessions told one to four turns before."""
    grammar = Grammar(SEED + 7)
    told = (
        "My name is {}.",
        "Nice to meet you, {}. What can I do for you?",
        "What is my name?",
        "Your name is {}.",
    )
    between: tuple[tuple[str, str], ...] = (
        ("What is 2 plus 3?", "2 plus 3 is 5."),
        ("What is prefill?", words.TANDEM_FACTS["prefill"][1][0]),
        ("Who is the mayor of Brindlemouth?", words.TOWN_FACTS["mayor"][1][0]),
    )
    for place in range(count):
        name = grammar.hero().name
        middle = [text for exchange in between[: place % 4] for text in exchange]
        chat = prompt_of(told[0].format(name), told[1].format(name), *middle, told[2])
        yield Question(chat, exactly(told[3].format(name)))


def notes(count: int, owners: int) -> Iterable[Question]:
    """`owners` people have one thing each; the model is asked for one of them."""
    grammar = Grammar(SEED + 8 + owners)
    for place in range(count):
        things: dict[str, str] = {}
        while len(things) < owners:
            things[grammar.hero().name] = with_article(grammar.thing().full)
        asked = list(things)[place * 7 % owners]
        lines = " ".join(f"{name} has {thing}." for name, thing in things.items())
        yield Question(prompt_of(f"{lines} What does {asked} have?"), exactly(f"{asked} has {things[asked]}."))


def repeats(count: int) -> Iterable[Question]:
    grammar = Grammar(SEED + 9)
    for _ in range(count):
        text = f"{grammar.hero().name} has {with_article(grammar.thing().full)}."
        yield Question(prompt_of(f"Repeat after me: {text}"), exactly(text))


def follow_ups(count: int) -> Iterable[Question]:
    """What the grammar asks after a story, the story itself being the grammar's."""
    grammar = Grammar(SEED + 10)
    made = 0
    while made < count:
        chat = grammar.chat()
        for place in range(3, len(chat)):
            short = len(chat[place].content) < 60 and chat[place].content.startswith(("The hero", "She f", "He f"))
            if short and len(chat[place - 2].content) > 200 and made < count:
                made += 1
                yield Question(chat[:place], exactly(chat[place].content))


def sampled() -> Iterable[Question]:
    """Any topic at temperature 0.7: only words of the grammar or of the question, and no stutter."""
    grammar = Grammar(SEED + 11)
    written = {word for _ in range(4000) for turn in grammar.chat() for word in _words(turn.content)}
    for _ in range(ROWS * 2):
        chat = grammar.chat()
        asked = chat[: 2 if chat[0].role == "system" else 1]
        yield Question(asked, _is_readable(written | set(_words(asked[-1].content))))


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", text.lower())


def _is_readable(known: set[str]) -> Callable[[str], bool]:
    def accepts(text: str) -> bool:
        spoken = text.split()
        stutter = any(spoken[place : place + 3] == spoken[place + 3 : place + 6] for place in range(len(spoken) - 5))
        return bool(spoken) and not stutter and "\ufffd" not in text and set(_words(text)) <= known

    return accepts


def checks() -> list[Check]:
    return [
        Check("story, everyday name", 0.90, tuple(stories(48, invented=False))),
        Check("story, lower case", 0.80, tuple(stories(48, invented=False, casual=True))),
        Check("story, invented name", 0.75, tuple(stories(48, invented=True))),
        Check("story, temperature 0.7", 0.85, tuple(stories(48, invented=False)), temperature=0.7),
        Check("after a story", 0.80, tuple(follow_ups(48))),
        Check("facts", 0.95, tuple(facts())),
        Check("sums 0-10", 0.90, tuple(sums())),
        Check("lists", 0.90, tuple(lists())),
        Check("refusals", 0.95, tuple(refusals())),
        Check("name recalled", 0.85, tuple(recalls(48))),
        Check("notes, 4 owners", None, tuple(notes(48, 4))),
        Check("notes, 20 owners", None, tuple(notes(48, 20))),
        Check("repeat a sentence", 0.85, tuple(repeats(48))),
        Check("readable at 0.7", 0.97, tuple(sampled()), temperature=0.7),
    ]


def pass_rate(speaker: Speaker, check: Check) -> tuple[float, str | None]:
    """Share of questions passed, and one failed answer to look at."""
    chats = [question.chat for question in check.questions]
    answers = speaker.answer(chats, check.temperature)
    failed: list[str] = []
    for question, answer in zip(check.questions, answers, strict=True):
        if not (answer.ended and question.accepts(answer.text)):
            failed.append(f"{_last_words(question.chat)} -> {answer.text}")
    return 1 - len(failed) / len(chats), failed[0].replace("\n", " / ") if failed else None


def _last_words(chat: Sequence[DialogTurn]) -> str:
    return chat[-1].content[-60:]


def run(directory: Path, answer_loss: float | None = None) -> int:
    """Asks everything, prints the table and the verdict; the number of rows under their threshold."""
    torch.manual_seed(0)
    speaker = Speaker(directory)
    failures = 0
    print(f"{'probe':<24}{'questions':>10}{'passed':>9}{'at least':>10}")
    for check in checks():
        rate, failed = pass_rate(speaker, check)
        is_under = check.threshold is not None and rate < check.threshold
        failures += is_under
        least = "shown" if check.threshold is None else f"{check.threshold:.0%}"
        verdict = "  UNDER" if is_under else ""
        row = f"{check.name:<24}{len(check.questions):>10}{rate:>9.1%}{least:>10}{verdict}"
        print(row + (f"   e.g. {failed[:150]}" if failed else ""), flush=True)
    if answer_loss is not None:
        is_over = answer_loss > ANSWER_LOSS_MAX
        failures += is_over
        verdict = "  OVER" if is_over else ""
        print(f"{'validation loss':<34}{answer_loss:>9.3f}{f'<= {ANSWER_LOSS_MAX}':>10}{verdict}")
    print(f"{'FAIL' if failures else 'PASS'}: {failures} rows of the release probe miss their threshold")
    return failures


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m tools.demo_model.probe DIR")
        return 2
    return 1 if run(Path(arguments[0])) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
