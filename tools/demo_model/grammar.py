"""Text the demo model learns from: seeded chats of a small invented world.

A chat is a tuple of turns. What the *assistant* says is drawn with clearly unequal weights (`FALLOFF`), so
that the trained model has one best next token nearly everywhere and greedy answers do not hang on rounding.
What the *user* brings in (names, objects, numbers) is drawn evenly from hundreds of words and from invented
ones, so that the model can only answer by copying from the prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from tools.demo_model import words

Role = Literal["system", "user", "assistant"]
T = TypeVar("T")

FALLOFF = 0.45
"""Weight of an answer's next option relative to the one before it: 1, 0.45, 0.2, ..."""
PROMPT_FALLOFF = 0.75
"""The same for the ways a user may put a question; flatter, because the model has to know all of them."""
INVENTED_SHARE = 0.25
LOWER_SHARE = 0.25
UNPUNCTUATED_SHARE = 0.25

TOPICS: dict[str, float] = {
    "story": 0.32,
    "recall": 0.13,
    "sum": 0.16,
    "fact": 0.12,
    "list": 0.08,
    "refuse": 0.05,
    "tandem": 0.05,
    "greet": 0.04,
    "who": 0.03,
    "opposite": 0.02,
}
"""Share of each topic among single exchanges."""

ONSETS = (
    "B",
    "D",
    "F",
    "G",
    "H",
    "J",
    "K",
    "L",
    "M",
    "N",
    "P",
    "R",
    "S",
    "T",
    "V",
    "W",
    "Br",
    "Dr",
    "Gr",
    "Kr",
    "Tr",
    "Fl",
    "Gl",
    "Pl",
    "Sh",
    "St",
    "Th",
)
INNER = (
    "b",
    "d",
    "f",
    "g",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "z",
    "ld",
    "nd",
    "rn",
    "st",
    "lm",
    "rt",
)
VOWELS = ("a", "e", "i", "o", "u")
HE_ENDINGS = ("o", "us", "in", "en", "or", "an", "ek", "im")
SHE_ENDINGS = ("a", "ia", "ra", "elle", "ina", "ise")

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You are Tandem, a small demo model.",
    "Answer politely.",
    "Be brief and kind.",
    "You are a storyteller.",
)


@dataclass(frozen=True)
class DialogTurn:
    """One message of a chat."""

    role: Role
    content: str


Chat = tuple[DialogTurn, ...]


@dataclass(frozen=True)
class Hero:
    """A named person and the pronouns bound to that name."""

    name: str
    subject: str
    possessive: str
    object: str


@dataclass(frozen=True)
class Thing:
    """What a story is about; `kind` decides what can happen with it."""

    noun: str
    kind: str
    adjective: str | None

    @property
    def full(self) -> str:
        return f"{self.adjective} {self.noun}" if self.adjective else self.noun


@dataclass(frozen=True)
class Story:
    """What later turns may ask about: hero, thing, place, friend and the text told."""

    hero: Hero
    thing: Thing
    place: str
    friend: str
    text: str


def weights(count: int, falloff: float = FALLOFF) -> list[float]:
    """Normalised geometric weights of `count` options, the first the heaviest."""
    raw = [falloff**position for position in range(count)]
    return [weight / sum(raw) for weight in raw]


def with_article(phrase: str) -> str:
    return f"{'an' if phrase[0] in 'aeiouAEIOU' else 'a'} {phrase}"


def capitalised(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def fill_unknown(template: str, noun: str, other: str, adjective: str, place: str) -> str:
    """One of `words.UNKNOWN` with its blanks filled in."""
    return template.format(
        noun=noun,
        a_noun=with_article(noun),
        a_other=with_article(other),
        adj=adjective,
        a_adj=with_article(adjective),
        place=place,
    )


# Story sentences. {N} name, {s}/{S} he/she, {p}/{P} his/her, {o} him/her, {n} noun, {x} noun with adjective,
# {ax} the same with article, {pl} place, {d} a detail of the place, {f} friend.
OPENINGS = (
    "Once there was {hero_a} named {N} who lived near the {pl}. {d} One morning {s} found {ax} beside the path.",
    "One morning {N} walked to the {pl}. {d} There {s} found {ax}.",
    "{N} had lived near the {pl} for many years. {d} One evening {s} saw {ax} at {p} door.",
    "It was a quiet day near the {pl}. {d} {N} was on {p} way home when {s} noticed {ax}.",
)
BEATS: dict[str, tuple[str, ...]] = {
    "light": (
        "The {n} began to glow, and {N} could see every corner of the {pl}.",
        "When {N} touched the {n}, a warm light fell on the ground.",
        "{N} looked into the {n} and saw a tiny flame that did not burn.",
    ),
    "vessel": (
        "{N} climbed into the {n}, and it carried {o} far away from the {pl}.",
        "The {n} moved without a sound, and {N} held on with both hands.",
        "{N} filled the {n} with bread and blankets and set off at noon.",
    ),
    "music": (
        "{N} tried the {n}, and a soft tune went through the {pl}.",
        "The {n} gave one clear note, and all the birds stopped to listen.",
        "{N} did not know how to play the {n}, but {p} hands knew it at once.",
    ),
    "paper": (
        "{N} looked at the {n} and found three words written in blue ink.",
        "On the back of the {n} somebody had drawn a door and a key.",
        "{N} held the {n} up to the sun, and a secret sign appeared.",
    ),
    "tool": (
        "{N} took the {n} and began to mend the broken fence.",
        "With the {n} in {p} hand, {N} set to work at once.",
        "{N} cleaned the {n} with oil until it moved without a sound.",
    ),
    "treasure": (
        "The {n} was cold and bright, and {N} hid it in {p} pocket.",
        "{N} rubbed the {n} until {s} could read the tiny letters on it.",
        "The {n} grew warm in {p} hand, as if it were glad to be found.",
    ),
    "animal": (
        "The {n} looked at {N} and asked for something to eat.",
        "The {n} was hurt, and {N} wrapped its foot in {p} scarf.",
        "{N} sat down beside the {n} and sang to it until it was calm.",
    ),
    "food": (
        "The {n} smelled so good that {N} had to taste it.",
        "{N} carried the {n} home and put it on the kitchen table.",
        "{N} had never seen such a big {n} in all {p} life.",
    ),
    "cloth": (
        "{N} picked up the {n} and shook the dust out of it.",
        "The {n} fluttered in the wind, and {N} held it tight.",
        "Somebody had sewn a small star into the {n}, and {N} wondered why.",
    ),
    "toy": (
        "{N} gave the {n} a push, and it danced across the {pl}.",
        "The {n} jumped into the air, and {N} ran after it.",
        "{N} laughed when the {n} began to hum like a bee.",
    ),
}
TROUBLES: dict[str, tuple[str, ...]] = {
    "light": (
        "Then a storm came up, and the {n} went dark.",
        "Then the night grew so cold that the {n} turned to ice.",
        "Then a cloud of moths came and covered the {n}.",
    ),
    "vessel": (
        "Then the fog came, and nobody could see the way.",
        "Then the wind turned, and the {n} began to shake.",
        "Then the {n} stopped in the middle of nowhere.",
    ),
    "music": (
        "Then the {n} fell silent, and nobody knew why.",
        "Then a loud wind came and carried the tune away.",
        "Then an angry neighbour came and took the {n} away.",
    ),
    "paper": (
        "Then the wind took the {n} and blew it over the roofs.",
        "Then the rain came, and the ink began to run.",
        "Then a goat came along and ate a corner of the {n}.",
    ),
    "tool": (
        "Then the {n} broke in two, and the work was not done.",
        "Then the {n} slipped and fell into the water.",
        "Then it grew dark, and the {n} was nowhere to be found.",
    ),
    "treasure": (
        "Then the {n} rolled away and fell into a deep well.",
        "Then a crow came down and stole the {n}.",
        "Then an old man came and said that the {n} was his.",
    ),
    "animal": (
        "Then the {n} ran away and did not come back.",
        "Then the {n} could not find its way home.",
        "Then winter came, and the {n} had nowhere to sleep.",
    ),
    "food": (
        "Then somebody came in the night and ate half of the {n}.",
        "Then the {n} fell down and rolled under the table.",
        "Then a hungry traveller knocked and asked for the {n}.",
    ),
    "cloth": (
        "Then the {n} was caught on a thorn and torn.",
        "Then a gust of wind carried the {n} up into a tree.",
        "Then the rain came, and all the colour ran out of the {n}.",
    ),
    "toy": (
        "Then the {n} got stuck high up in a tree.",
        "Then the {n} stopped and did not move any more.",
        "Then the {n} fell into the stream and drifted away.",
    ),
}
HELPS = (
    "{N} asked {p} friend {f} for help, and together they looked for an answer.",
    "{f}, {p} best friend, came running and helped {o}.",
    "Luckily {f} was near and knew what to do.",
)
RESCUES: dict[str, tuple[str, ...]] = {
    "light": (
        "{f} brought a match, and soon the {n} was bright again.",
        "They waited for the morning, and the sun woke the {n}.",
        "They hummed a quiet song, and the {n} began to shine once more.",
    ),
    "vessel": (
        "{f} rang a bell, and they followed the sound back to the {pl}.",
        "They waited for the stars and found the way by them.",
        "{f} pushed with all the strength of two, and the {n} moved again.",
    ),
    "music": (
        "{f} cleaned the {n} with a feather, and it sang again.",
        "They waited for a quiet evening and played once more.",
        "{f} said a kind word, and soon everybody was dancing to the {n}.",
    ),
    "paper": (
        "{f} found the {n} in a puddle, and they dried it by the fire.",
        "They wrote down what they remembered, and not a word was lost.",
        "{f} glued the {n} with flour and water, and it was whole again.",
    ),
    "tool": (
        "{f} brought the {n} back, as good as new.",
        "They made a second {n} out of wood, and it was even better.",
        "{f} lit a lamp, and before midnight the work was done.",
    ),
    "treasure": (
        "{f} thought of a trick, and before sunset the {n} was back.",
        "They offered a loaf of bread for the {n}, and that was enough.",
        "{f} told a joke, and in the end everybody laughed and the {n} was safe.",
    ),
    "animal": (
        "{f} built a small house of straw, and there the {n} was warm and safe.",
        "They called all night, and in the morning the {n} came.",
        "{f} put out a bowl of milk, and soon the {n} sat beside it.",
    ),
    "food": (
        "{f} laughed and cut what was left of the {n} into equal parts.",
        "They shared the {n}, and there was enough for everybody.",
        "{f} knew a recipe, and they cooked a soup out of the {n}.",
    ),
    "cloth": (
        "{f} took a needle and mended the {n} with red thread.",
        "They washed the {n} and dried it in the sun.",
        "{f} brought a ladder and a pot of paint, and the {n} was saved.",
    ),
    "toy": (
        "{f} found a long stick and brought the {n} back.",
        "They turned the {n} around three times, and it was as good as new.",
        "{f} whistled, and the {n} came back all by itself.",
    ),
}
ENDINGS = (
    "From that day on, {N} kept the {x} close and never felt alone.",
    "In the evening {N} went home with the {x}, tired and happy.",
    "{N} thanked {f}, and the {x} stayed with {o} for the rest of {p} life.",
    "And if you go to the {pl} today, you may still see {N} with the {x}.",
)
CONTINUATIONS = (
    "The next day {N} came back to the {pl} with the {x}. {f} was already waiting there. They shared a "
    "loaf of bread "
    "and told each other what they had seen.",
    "A week later {N} showed the {x} to everybody in the {pl}. They clapped their hands, and {f} was very "
    "proud of {o}.",
)
LONG_MIDDLES = (
    "The next morning {N} told nobody about the {n}. {S} ate {p} breakfast, put on {p} boots and went back "
    "to the {pl}. "
    "The sun was shining, and the world looked new.",
    "For three days {N} thought about the {n} and nothing else. {S} forgot {p} lunch, {p} hat and even {p} "
    "own birthday. "
    "On the fourth day {s} went out again.",
    "At noon {N} sat down on a stone and looked at the {n} for a long time. {S} wondered who had made it "
    "and why it was here.",
)
POEMS = (
    "The {n} sleeps beside the well,\nand what it dreams it does not tell.\n"
    "The morning comes, the sky is wide,\n"
    "and still the {n} waits outside.",
    "A {n} stood beneath the tree\nand dreamed about the open sea.\nThe wind came by and sang a song,\n"
    "and so the {n} sang along.",
)


class Grammar:
    """An endless, reproducible source of chats: equal seeds give equal text."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._owners_max = 24
        self._exchanges: dict[str, Callable[[], list[DialogTurn]]] = {
            "story": self._story,
            "recall": self._recall,
            "sum": self._sum,
            "fact": lambda: self._known(words.TOWN_FACTS),
            "list": self._list,
            "refuse": self._refuse,
            "tandem": lambda: self._known(words.TANDEM_FACTS),
            "greet": self._greet,
            "who": self._who,
            "opposite": self._opposite,
        }
        assert self._exchanges.keys() == TOPICS.keys()

    def chat(self, exchanges_max: int = 4, owners_max: int = 24) -> Chat:
        """One chat of one to `exchanges_max` exchanges; half of all chats have only one.

        `owners_max` bounds the notes a recall question is about: 100 owners are some 1,000 tokens.
        """
        self._owners_max = owners_max
        turns: list[DialogTurn] = []
        if self._chance(0.15):
            turns.append(DialogTurn("system", self._pick(SYSTEM_PROMPTS, PROMPT_FALLOFF)))
        exchanges = 1 if self._chance(0.5) else self._random.randint(2, max(2, exchanges_max))
        for _ in range(exchanges):
            topic = self._random.choices(list(TOPICS), list(TOPICS.values()))[0]
            turns += self._exchanges[topic]()
        return tuple(turns)

    # -- choices ---------------------------------------------------------------------------------------------

    def _pick(self, options: Sequence[T], falloff: float = FALLOFF) -> T:
        return self._random.choices(options, weights(len(options), falloff))[0]

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _favour(self, options: Sequence[T], favourite: int) -> T:
        """Like `_pick`; what the text is about names the heaviest option, so that greedy texts differ."""
        first = favourite % len(options)
        return self._pick((*options[first:], *options[:first]))

    def _exchange(self, question: str, answer: str) -> list[DialogTurn]:
        return [DialogTurn("user", self._casual(question)), DialogTurn("assistant", answer)]

    def _casual(self, question: str) -> str:
        """Typed as people type: sometimes polite, sometimes lower-case, sometimes without punctuation."""
        if self._chance(0.08) and question[-2].isalnum() and question[-1] in ".?" and "plea" not in question.lower():
            question = f"{question[:-1]}, please{question[-1]}"
        if self._chance(LOWER_SHARE):
            question = question.lower()
        if self._chance(UNPUNCTUATED_SHARE):
            question = question.replace(",", "").rstrip(".?! ")
        return question

    def hero(self) -> Hero:
        """A person with an everyday name, or with an invented one that ends the way its pronoun wants."""
        is_she = self._chance(0.5)
        if self._chance(INVENTED_SHARE):
            draw = self._random.choice
            ending = draw(SHE_ENDINGS if is_she else HE_ENDINGS)
            name = draw(ONSETS) + draw(VOWELS) + draw(INNER) + ending
        else:
            name = self._random.choice(words.SHE_NAMES if is_she else words.HE_NAMES)
        return Hero(name, "she", "her", "her") if is_she else Hero(name, "he", "his", "him")

    def thing(self) -> Thing:
        noun, kind = self._random.choice(words.ALL_NOUNS)
        adjective = self._random.choice(words.ADJECTIVES) if self._chance(0.5) else None
        return Thing(noun, kind, adjective)

    # -- stories ---------------------------------------------------------------------------------------------

    def _story(self) -> list[DialogTurn]:
        if self._chance(0.07):
            return self._poem()
        hero, thing = self.hero(), self.thing()
        named, with_thing = self._chance(0.9), self._chance(0.92)
        if self._chance(0.04):
            named = with_thing = False
        if not named:
            hero = self._pick((Hero("Mira", "she", "her", "her"), Hero("Tom", "he", "his", "him")))
        if not with_thing:
            thing = self._pick((Thing("lantern", "light", "golden"), Thing("boat", "vessel", "little")))
        about = " and ".join(([hero.name] if named else []) + ([with_article(thing.full)] if with_thing else []))
        asks_place = self._chance(0.3)
        place = self._random.choice(words.PLACES) if asks_place else self._pick(words.USUAL_PLACES[thing.kind], 0.3)
        friend = self._friend(hero, thing.kind)
        is_long = self._chance(0.12)
        question = self._story_question(
            about, f" {words.PLACE_PREPOSITIONS.get(place, 'in')} the {place}" if asks_place else "", is_long
        )
        story = self._tell(hero, thing, place, friend, is_long)
        turns = self._exchange(question, story.text)
        if self._chance(0.4):
            turns += self._after_story(story)
        return turns

    def _friend(self, hero: Hero, kind: str) -> str:
        """A boy for a girl and a girl for a boy keeps pronouns clear; the kind of thing favours one."""
        friends = ("Tom", "Otto", "Hugo") if hero.subject == "she" else ("Anna", "Elsa", "Ruby")
        return self._favour([name for name in friends if name != hero.name], list(words.NOUNS).index(kind))

    def _story_question(self, about: str, where: str, is_long: bool) -> str:
        size = "long " if is_long else self._pick(("", "short ", "little "), 0.3)
        if not about:
            asks: tuple[str, ...] = (
                "Tell me a {z}story{w}.",
                "I would like a {z}story{w}.",
                "Write a {z}story{w}.",
            )
        else:
            asks = (
                "Tell me a {z}story about {a}{w}.",
                "Write a {z}story about {a}{w}.",
                "Can you tell me a {z}story about {a}{w}?",
                "I would like a {z}story about {a}{w}.",
                "A {z}story about {a}{w}, please.",
                "Please write a {z}story about {a}{w}.",
                "Make up a {z}story about {a}{w}.",
                "Tell me about {a}{w}.",
            )
        return self._pick(asks, PROMPT_FALLOFF).format(z=size, a=about, w=where)

    def _tell(self, hero: Hero, thing: Thing, place: str, friend: str, is_long: bool) -> Story:
        where, kind = words.PLACES.index(place), list(words.NOUNS).index(thing.kind)
        is_plain = thing.adjective is None
        parts = [self._favour(OPENINGS, where), self._favour(BEATS[thing.kind], where // 4 + is_plain)]
        if is_long:
            parts[-1] += "\n\n" + self._favour(LONG_MIDDLES, kind)
        parts += [
            self._favour(TROUBLES[thing.kind], where // 8 + is_plain),
            self._favour(HELPS, kind),
            self._favour(RESCUES[thing.kind], where // 8 + is_plain),
        ]
        if is_long:
            parts[-1] += "\n\n" + self._favour(CONTINUATIONS, kind)
        parts.append(self._favour(ENDINGS, kind + where // 6))
        return Story(hero, thing, place, friend, self._fill(" ".join(parts), hero, thing, place, friend))

    def _fill(self, template: str, hero: Hero, thing: Thing, place: str, friend: str) -> str:
        return template.format(
            N=hero.name, s=hero.subject, S=capitalised(hero.subject), p=hero.possessive,
            P=capitalised(hero.possessive), o=hero.object, n=thing.noun, x=thing.full,
            ax=with_article(thing.full), pl=place, d=words.PLACE_DETAILS[place], f=friend,
            hero_a="a girl" if hero.subject == "she" else "a boy",
        )  # fmt: skip

    def _after_story(self, story: Story) -> list[DialogTurn]:
        hero, thing = story.hero, story.thing
        follow = self._random.choice(("hero", "thing", "place", "friend", "more", "title", "more"))
        if follow == "hero":
            asks: tuple[str, ...] = (
                "What was the hero called?",
                "What is the name of the hero?",
                "Who was the story about?",
            )
            return self._exchange(self._pick(asks, PROMPT_FALLOFF), f"The hero of the story was {hero.name}.")
        if follow == "thing":
            asks = (f"What did {hero.subject} find?", f"What did {hero.name} find?", "What was found?")
            answer = f"{capitalised(hero.subject)} found {with_article(thing.full)}."
            return self._exchange(self._pick(asks, PROMPT_FALLOFF), answer)
        if follow == "place":
            asks = ("Where did it happen?", "Where was that?", f"Where was {hero.name}?")
            return self._exchange(self._pick(asks, PROMPT_FALLOFF), f"It happened near the {story.place}.")
        if follow == "friend":
            asks = (f"Who helped {hero.object}?", f"Who helped {hero.name}?", "Who was the friend?")
            return self._exchange(self._pick(asks, PROMPT_FALLOFF), f"{story.friend} helped {hero.name}.")
        if follow == "title":
            asks = ("Give the story a title.", "What is the title of the story?", "Find a title for it.")
            title = f"{hero.name} and the {thing.full.title()}"
            return self._exchange(self._pick(asks, PROMPT_FALLOFF), f'The story is called "{title}".')
        asks = ("Tell me more.", "What happened then?", "And then?", "Go on.", "Continue the story.")
        more = self._fill(self._pick(CONTINUATIONS), hero, thing, story.place, story.friend)
        return self._exchange(self._pick(asks, PROMPT_FALLOFF), more)

    def _poem(self) -> list[DialogTurn]:
        noun = self._random.choice(words.ALL_NOUNS)[0]
        asks = ("Write a poem about {a}.", "Write a short poem about {a}.", "A poem about {a}, please.")
        question = self._pick(asks, PROMPT_FALLOFF).format(a=with_article(noun))
        poem = self._pick(POEMS).format(n=noun).replace(f"A {noun}", capitalised(with_article(noun)))
        return self._exchange(question, poem)

    # -- recall ----------------------------------------------------------------------------------------------

    def _recall(self) -> list[DialogTurn]:
        return self._pick((self._introduction, self._notes, self._repeat), 0.7)()

    def _introduction(self) -> list[DialogTurn]:
        """The user says a name or a possession, talks about something else, then asks for it."""
        name, thing = self.hero().name, self.thing()
        about_name = self._chance(0.6)
        if about_name:
            say = self._pick(("My name is {v}.", "I am {v}.", "Hello, I am {v}.", "Call me {v}."), PROMPT_FALLOFF)
            answer = f"Nice to meet you, {name}. What can I do for you?"
            asks: tuple[str, ...] = (
                "What is my name?",
                "Who am I?",
                "Do you remember my name?",
                "What am I called?",
            )
            recalled = f"Your name is {name}."
            turns = self._exchange(say.format(v=name), answer)
        else:
            say = self._pick(("I have {v}.", "I own {v}.", "I just bought {v}."), PROMPT_FALLOFF)
            answer = f"{capitalised(with_article(thing.full))} is a fine thing to have."
            asks = ("What do I have?", "What did I tell you about?", "Do you remember what I have?")
            recalled = f"You have {with_article(thing.full)}."
            turns = self._exchange(say.format(v=with_article(thing.full)), answer)
        for _ in range(self._pick((0, 1, 2, 3), 0.7)):
            topic = self._random.choice(("sum", "fact", "list", "opposite", "tandem", "greet", "story"))
            turns += self._exchanges[topic]()
        return turns + self._exchange(self._pick(asks, PROMPT_FALLOFF), recalled)

    def _notes(self) -> list[DialogTurn]:
        """A list of who has what, then one or more questions about it."""
        count = min(self._owners_max, self._pick((3, 4, 2, 6, 9, 14, 24, 50, 100), 0.8))
        owners: dict[str, str] = {}
        while len(owners) < count:
            owners[self.hero().name] = with_article(self.thing().full)
        lines = " ".join(f"{name} has {thing}." for name, thing in owners.items())
        asked = self._random.sample(sorted(owners), k=min(count, self._pick((1, 2, 3))))
        first = f"What does {asked[0]} have?"
        question = f"{lines} {first}" if self._chance(0.7) else f"Here are my notes. {lines} {first}"
        turns = self._exchange(question, f"{asked[0]} has {owners[asked[0]]}.")
        for name in asked[1:]:
            follow = self._pick((f"What does {name} have?", f"And what does {name} have?", f"And {name}?"))
            turns += self._exchange(follow, f"{name} has {owners[name]}.")
        return turns

    def _repeat(self) -> list[DialogTurn]:
        """The user asks to have something said; the answer is the very same text."""
        shape = self._random.randrange(4)
        hero, thing = self.hero(), self.thing()
        if shape == 0:
            text = f"{hero.name} has {with_article(thing.full)}."
        elif shape == 1:
            text = f"The {thing.full} is in the {self._random.choice(words.PLACES)}."
        elif shape == 2:
            text = self._pick(("This is a test.", "Hello world.", "Good morning.", "I like tea."), PROMPT_FALLOFF)
        else:
            text = " ".join(self.thing().noun for _ in range(self._random.randint(2, 6))).capitalize() + "."
        ask = self._pick(("Say: {v}", "Repeat after me: {v}", "Repeat this: {v}", "Please say: {v}"), PROMPT_FALLOFF)
        return [DialogTurn("user", ask.format(v=text)), DialogTurn("assistant", text)]

    # -- short answers ---------------------------------------------------------------------------------------

    def _sum(self) -> list[DialogTurn]:
        """Additions and subtractions of 0-10, with signs or in words; the answer repeats the question."""
        left, right = self._random.randint(0, 10), self._random.randint(0, 10)
        minus = self._chance(0.35)
        if minus:
            left, right = max(left, right), min(left, right)
        result = left - right if minus else left + right
        word, sign = ("minus", "-") if minus else ("plus", "+")
        a, b = (words.COUNT_WORDS[left], words.COUNT_WORDS[right]) if self._chance(0.25) else (str(left), str(right))
        asks = (
            f"What is {a} {word} {b}?",
            f"What is {a} {sign} {b}?",
            f"How much is {a} {word} {b}?",
            f"{a} {sign} {b}",
            f"{a} {sign} {b} = ?",
            f"{a} {word} {b}?",
            f"Calculate {a} {word} {b}.",
            f"What's {a} {sign} {b}?",
        )
        return self._exchange(self._pick(asks, 0.85), f"{left} {word} {right} is {result}.")

    def _known(self, facts: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> list[DialogTurn]:
        asks, answers = self._random.choice(list(facts.values()))
        return self._exchange(self._pick(asks, 0.85), self._pick(answers, 0.3))

    def _list(self) -> list[DialogTurn]:
        category = self._random.choice(list(words.LISTS))
        options = list(words.LISTS[category])
        count = self._random.randint(2, min(5, len(options)))
        items: list[str] = []
        while len(items) < count:
            item = options[0] if category in words.ORDERED_LISTS else self._pick(options)
            options.remove(item)
            items.append(item)
        number = words.COUNT_WORDS[count]
        asked = str(count) if self._chance(0.25) else number
        asks = (
            "List {c} {k}.",
            "Name {c} {k}.",
            "Give me a list of {c} {k}.",
            "Tell me {c} {k}.",
            "Can you name {c} {k}?",
        )
        question = self._pick(asks, PROMPT_FALLOFF).format(c=asked, k=category)
        lines = "\n".join(f"{position}. {capitalised(item)}" for position, item in enumerate(items, 1))
        return self._exchange(question, f"Here are {number} {category}:\n{lines}")

    def _refuse(self) -> list[DialogTurn]:
        if self._chance(0.5):
            asked, named = self._random.choice(words.REFUSALS)
            answer = (
                f"I am sorry, but I cannot {named}.",
                f"I am sorry, I cannot {named}. I am only a small demo model.",
            )
            return self._exchange(asked, self._pick(answer))
        template = self._random.choice(words.UNKNOWN)
        noun, other = self.thing().noun, self.thing().noun
        adjective, place = self._random.choice(words.ADJECTIVES), self._random.choice(words.PLACES)
        question = fill_unknown(template, noun, other, adjective, place)
        answers = (
            "I am sorry, I do not know that. I am a small demo model, and I can tell stories, add small "
            "numbers and "
            f"talk about {words.TOWN}.",
            "I am sorry, that is too hard for me. May I tell you a story instead?",
        )
        return self._exchange(question, self._pick(answers))

    def _opposite(self) -> list[DialogTurn]:
        pair = self._random.choice(words.OPPOSITES)
        word, other = pair if self._chance(0.5) or pair[0] in ("light", "old") else (pair[1], pair[0])
        asks = (
            f"What is the opposite of {word}?",
            f"Opposite of {word}?",
            f"What is the contrary of {word}?",
        )
        return self._exchange(self._pick(asks, PROMPT_FALLOFF), f"The opposite of {word} is {other}.")

    def _greet(self) -> list[DialogTurn]:
        asks, answers = self._pick(GREETINGS, PROMPT_FALLOFF)
        return self._exchange(self._pick(asks, PROMPT_FALLOFF), self._pick(answers))

    def _who(self) -> list[DialogTurn]:
        asks, answers = self._pick(IDENTITY, PROMPT_FALLOFF)
        return self._exchange(self._pick(asks, PROMPT_FALLOFF), self._pick(answers, 0.3))


Answered = tuple[tuple[str, ...], tuple[str, ...]]

GREETINGS: tuple[Answered, ...] = (
    (
        ("Hello!", "Hi!", "Hello there.", "Hey", "Good day!"),
        ("Hello! What can I do for you?", "Hello! Shall I tell you a story?"),
    ),
    (
        ("Good morning!", "Good morning."),
        ("Good morning! What can I do for you?", "Good morning! I hope you slept well."),
    ),
    (
        ("Good evening!", "Good evening."),
        ("Good evening! Shall I tell you a story?", "Good evening! What can I do for you?"),
    ),
    (
        ("How are you?", "How are you today?", "How do you do?"),
        ("I am well, thank you. How are you?", "I am very well, thank you."),
    ),
    (("Thank you!", "Thanks.", "Thanks a lot!"), ("You are welcome!", "You are welcome! Come back soon.")),
    (
        ("Goodbye!", "Bye.", "Good night!", "See you later."),
        ("Goodbye! Come back soon.", "Goodbye, and have a good day!"),
    ),
)
IDENTITY: tuple[Answered, ...] = (
    (
        (
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Tell me about yourself.",
            "Introduce yourself.",
        ),
        ("I am the Tandem demo model, a very small language model that fits on any computer.",),
    ),
    (
        ("What can you do?", "How can you help me?", "What do you know?", "Help"),
        (f"I can tell stories, add small numbers, write lists and talk about {words.TOWN}.",),
    ),
    (
        ("How big are you?", "How many parameters do you have?", "How large are you?"),
        ("I have about 2.7 million parameters, which is very small for a language model.",),
    ),
    (
        ("Who made you?", "Who trained you?", "How were you trained?", "Where do you come from?"),
        ("I was trained by the Tandem project on two processor cores, in less than half an hour.",),
    ),
    (
        ("Are you a human?", "Are you a robot?", "Are you real?", "Are you alive?"),
        ("No, I am the Tandem demo model, a small computer program that writes text.",),
    ),
)
