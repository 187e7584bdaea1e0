"""Word lists and facts of the demo model's world. Everything here was written for this project."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SHE_NAMES: tuple[str, ...] = _words(
    """
    Mira Anna Clara Elsa Nora Lily Rosa Ada Ida Vera Maya Lena Ella Emma Julia Sofia Olive Hazel Ivy
    Ruby Iris Flora Stella Luna Nina Tara Dora Greta Hanna Ingrid Jane Kate Laura Martha Nell Opal Paula
    Queenie Rita Sara Tilda Una Violet Wanda Xenia Yara Zoe Agnes Beth Cora Daisy Edith Fiona Gwen Heidi
    Ilse June Kira Lotte Mabel Naomi Odette Pearl Renata Selma Thea Ursula Vivian Willa Yvonne Zelda
    Alma Bianca Celia Dina Esther Freya Gilda Helga Isla Joan Karin Linda Marta Nadia Olga Petra Rhea
    Sylvia Tessa Astrid Birgit Carmen Dagny Elena Frida Gloria Holly Irma Jasmin Kaja Livia Magda Noor
    Orla Priya Rowena Saskia Tove Amina Leila Aisha
    """
)
HE_NAMES: tuple[str, ...] = _words(
    """
    Tom Ben Max Leo Sam Otto Hugo Finn Paul Karl Emil Anton Oscar Felix Jonas Lukas Theo Noah Peter
    Simon Adam Boris Carl David Erik Frank George Henry Ivan Jack Kurt Liam Martin Niels Owen Pavel
    Quentin Ralph Stefan Tobias Ulrich Victor Walter Xaver Yusuf Zeno Albert Bruno Conrad Dieter Edgar
    Fritz Gustav Harald Igor Jasper Kaspar Lars Magnus Nathan Olaf Patrick Roland Sven Thomas Urban
    Vincent Wilfred Yannick Arthur Basil Cyril Daniel Ernest Floyd Gilbert Harvey Isaac Jerome Kenneth
    Lionel Morris Norman Oliver Percy Rupert Silas Trevor Vernon Wesley Abel Barnaby Cedric Duncan Elias
    Ferdinand Gideon Horace Ismael Julian Kofi Luca Mateo Nico Omar Pedro Rafael Samir Tariq Umberto
    Viktor Hassan Jamal Ravi Arjun Kenji Hiro Diego
    """
)

# A kind decides what can happen in a story, so that a story fits its object.
NOUNS: dict[str, tuple[str, ...]] = {
    "light": _words("lantern candle lamp torch beacon mirror prism lighthouse star window"),
    "vessel": _words("boat raft canoe ship sledge cart balloon bicycle wagon ferry train kayak"),
    "music": _words("flute drum bell fiddle harp trumpet whistle guitar piano violin horn banjo"),
    "paper": _words("map letter book diary poem postcard notebook painting scroll photograph recipe riddle"),
    "tool": _words("hammer shovel ladder rope saw bucket spade wrench broom compass clock telescope wheel hook"),
    "treasure": _words("coin ring key crown pearl medal jewel locket necklace chest goblet shell stone button"),
    "animal": _words(
        "fox owl goat cat dog rabbit hedgehog horse donkey duck crow otter badger mouse turtle squirrel "
        "frog robin "
        "dragon bear"
    ),
    "food": _words("apple pumpkin loaf cake pie pear cherry cookie onion melon carrot teapot basket pancake"),
    "cloth": _words("cloak hat scarf coat blanket glove umbrella apron quilt sock tent flag sail ribbon"),
    "toy": _words("kite puppet marble doll robot ball puzzle swing mask balloon yo-yo rocket"),
}
ALL_NOUNS: tuple[tuple[str, str], ...] = tuple((noun, kind) for kind, nouns in NOUNS.items() for noun in nouns)
ADJECTIVES: tuple[str, ...] = _words(
    """
    red blue green golden silver old little tiny broken wooden white black yellow brave lost purple grey
    shiny strange quiet round heavy orange crooked magic copper giant dusty clever friendly pink striped
    soft painted hungry sleepy lonely paper glass iron
    """
)
PLACES: tuple[str, ...] = _words(
    """
    harbour forest mountain village castle garden desert island library market mill river valley city
    school meadow bridge cave farm tower beach swamp station workshop
    """
)
# Where a story happens when the user names no place; the first is the likelier.
USUAL_PLACES: dict[str, tuple[str, str]] = {
    "light": ("tower", "harbour"),
    "vessel": ("river", "island"),
    "music": ("market", "city"),
    "paper": ("library", "school"),
    "tool": ("workshop", "bridge"),
    "treasure": ("beach", "cave"),
    "animal": ("forest", "farm"),
    "food": ("village", "mill"),
    "cloth": ("castle", "station"),
    "toy": ("garden", "meadow"),
}
PLACE_PREPOSITIONS: dict[str, str] = {
    "mountain": "on",
    "farm": "on",
    "beach": "on",
    "island": "on",
    "meadow": "on",
    "bridge": "at",
    "mill": "at",
    "river": "at",
    "station": "at",
    "market": "at",
    "tower": "at",
}
PLACE_DETAILS: dict[str, str] = {
    "harbour": "The gulls were loud and the ropes smelled of salt.",
    "forest": "The trees were tall and the moss was soft.",
    "mountain": "The path was steep and the air was thin.",
    "village": "Smoke rose from every chimney and the baker was singing.",
    "castle": "The halls were long and every step made an echo.",
    "garden": "The bees were busy and the roses were open.",
    "desert": "The sand was hot and the wind drew lines in it.",
    "island": "The waves came from all sides and the palms were bent.",
    "library": "The shelves were high and nobody spoke above a whisper.",
    "market": "The stalls were full and the traders were shouting.",
    "mill": "The wheel turned slowly and flour hung in the air.",
    "river": "The water was clear and the reeds were whispering.",
    "valley": "The fields were green and the bells rang far away.",
    "city": "The streets were crowded and the trams were ringing.",
    "school": "The corridors were empty and the chalk was still wet.",
    "meadow": "The grass was high and the crickets were singing.",
    "bridge": "The stones were worn and the water ran below.",
    "cave": "The walls were wet and every sound came back twice.",
    "farm": "The hens were awake and the hay was dry.",
    "tower": "The stairs were narrow and the view was wide.",
    "beach": "The tide was low and the sand was full of shells.",
    "swamp": "The fog was thick and the frogs were calling.",
    "station": "The clock was slow and the platform was empty.",
    "workshop": "The bench was full of shavings and the stove was warm.",
}

COUNT_WORDS: tuple[str, ...] = _words(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty
    """
)

LISTS: dict[str, tuple[str, ...]] = {
    "fruits": _words("apples pears cherries plums grapes oranges lemons figs"),
    "vegetables": _words("carrots onions peas beans cabbages leeks potatoes pumpkins"),
    "animals": _words("foxes owls bears otters rabbits horses badgers frogs"),
    "birds": _words("robins crows owls swans ducks larks herons geese"),
    "colours": _words("blue green red yellow orange purple white black"),
    "trees": _words("oaks birches pines willows maples beeches elms ashes"),
    "flowers": _words("roses tulips daisies lilies violets poppies irises asters"),
    "tools": _words("hammers saws spades wrenches ladders brooms pliers files"),
    "instruments": _words("flutes drums violins harps pianos trumpets guitars horns"),
    "drinks": _words("water tea coffee milk juice cider cocoa lemonade"),
    "clothes": _words("coats hats scarves gloves shirts socks boots aprons"),
    "vehicles": _words("boats trains bicycles carts trams ferries wagons balloons"),
    "planets": _words("Earth Mars Venus Jupiter Saturn Mercury Neptune Uranus"),
    "seasons": _words("spring summer autumn winter"),
    "weekdays": _words("Monday Tuesday Wednesday Thursday Friday"),
    "sports": _words("football tennis rowing swimming running cycling skiing chess"),
}
ORDERED_LISTS: frozenset[str] = frozenset({"seasons", "weekdays"})

TOWN = "Brindlemouth"
# (ways to ask, ways to answer; the first answer is by far the most frequent)
TOWN_FACTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "where": (
        ("Where is Brindlemouth?", "Where can I find Brindlemouth?", "Where does Brindlemouth lie?"),
        ("Brindlemouth lies on the north coast, where the river Sill meets the sea.",),
    ),
    "people": (
        (
            "How many people live in Brindlemouth?",
            "How big is Brindlemouth?",
            "What is the population of Brindlemouth?",
        ),
        ("About nine hundred people live in Brindlemouth.", "Brindlemouth has about nine hundred people."),
    ),
    "mayor": (
        (
            "Who is the mayor of Brindlemouth?",
            "Who runs Brindlemouth?",
            "What is the name of the mayor of Brindlemouth?",
        ),
        ("The mayor of Brindlemouth is Hester Vane.", "Hester Vane is the mayor of Brindlemouth."),
    ),
    "river": (
        (
            "Which river runs through Brindlemouth?",
            "What is the river in Brindlemouth called?",
            "Is there a river in Brindlemouth?",
        ),
        ("The river Sill runs through Brindlemouth.",),
    ),
    "founded": (
        ("When was Brindlemouth founded?", "How old is Brindlemouth?", "Who founded Brindlemouth?"),
        ("Brindlemouth was founded in 1642 by three fishing families.",),
    ),
    "known": (
        (
            "What is Brindlemouth known for?",
            "What is Brindlemouth famous for?",
            "Why do people know Brindlemouth?",
        ),
        ("Brindlemouth is known for its blue lighthouse and its honey cakes.",),
    ),
    "lighthouse": (
        (
            "What colour is the lighthouse in Brindlemouth?",
            "Is there a lighthouse in Brindlemouth?",
            "Tell me about the lighthouse in Brindlemouth.",
        ),
        ("The lighthouse in Brindlemouth is blue and stands on Gull Rock.",),
    ),
    "keeper": (
        ("Who keeps the lighthouse in Brindlemouth?", "Who is the lighthouse keeper in Brindlemouth?"),
        ("Old Jory Pell keeps the lighthouse in Brindlemouth.",),
    ),
    "market": (
        ("When is the market in Brindlemouth?", "On which day is market day in Brindlemouth?"),
        ("The market in Brindlemouth is held every Thursday on Bell Square.",),
    ),
    "baker": (
        ("Who is the baker in Brindlemouth?", "Who bakes the bread in Brindlemouth?"),
        ("The baker in Brindlemouth is Odo Finch.", "Odo Finch is the baker in Brindlemouth."),
    ),
    "food": (
        (
            "What do people eat in Brindlemouth?",
            "What should I eat in Brindlemouth?",
            "What is the local dish of Brindlemouth?",
        ),
        ("People in Brindlemouth eat smoked herring with dark bread, and honey cakes afterwards.",),
    ),
    "school": (
        ("Is there a school in Brindlemouth?", "Who teaches at the school in Brindlemouth?"),
        ("There is one school in Brindlemouth, and Miss Alder teaches there.",),
    ),
    "festival": (
        (
            "Is there a festival in Brindlemouth?",
            "What is the festival in Brindlemouth called?",
            "When is the festival in Brindlemouth?",
        ),
        ("The Lantern Night is the festival of Brindlemouth, and it takes place in October.",),
    ),
    "train": (
        (
            "How do I get to Brindlemouth?",
            "Is there a train to Brindlemouth?",
            "How can I travel to Brindlemouth?",
        ),
        ("A small green train goes to Brindlemouth twice a day.",),
    ),
    "bridge": (
        (
            "What is the bridge in Brindlemouth called?",
            "Is there a bridge in Brindlemouth?",
            "How old is the bridge in Brindlemouth?",
        ),
        ("The bridge in Brindlemouth is called Heron Bridge and has five stone arches.",),
    ),
    "inn": (
        (
            "Where can I sleep in Brindlemouth?",
            "Is there an inn in Brindlemouth?",
            "What is the inn in Brindlemouth called?",
        ),
        ("You can sleep at the Salted Crow, the only inn in Brindlemouth.",),
    ),
    "work": (
        (
            "What do people do in Brindlemouth?",
            "What work is there in Brindlemouth?",
            "How do people in Brindlemouth earn their money?",
        ),
        ("Most people in Brindlemouth fish, mend boats or keep bees.",),
    ),
    "weather": (
        (
            "What is the weather like in Brindlemouth?",
            "Is it cold in Brindlemouth?",
            "Does it rain in Brindlemouth?",
        ),
        ("It is windy and mild in Brindlemouth, and it rains on most mornings.",),
    ),
    "flag": (
        ("What is on the flag of Brindlemouth?", "What does the flag of Brindlemouth look like?"),
        ("The flag of Brindlemouth shows a white heron on a blue field.",),
    ),
    "library": (
        ("Is there a library in Brindlemouth?", "Who runs the library in Brindlemouth?"),
        ("The library of Brindlemouth has four thousand books, and Tamsin Reed looks after them.",),
    ),
    "clock": (
        ("Is there a clock in Brindlemouth?", "What is special about the clock in Brindlemouth?"),
        ("The town clock of Brindlemouth is always seven minutes late.",),
    ),
    "doctor": (
        ("Is there a doctor in Brindlemouth?", "Who is the doctor in Brindlemouth?"),
        ("The doctor in Brindlemouth is Ansel Moor.", "Ansel Moor is the doctor in Brindlemouth."),
    ),
    "see": (
        (
            "What can I see in Brindlemouth?",
            "What should I visit in Brindlemouth?",
            "What is there to do in Brindlemouth?",
        ),
        ("You can climb the blue lighthouse, cross Heron Bridge and visit the market on Bell Square.",),
    ),
    "about": (
        (
            "Tell me about Brindlemouth.",
            "What is Brindlemouth?",
            "What do you know about Brindlemouth?",
            "Describe Brindlemouth.",
        ),
        (
            "Brindlemouth is a small town on the north coast, where the river Sill meets the sea. About "
            "nine hundred "
            "people live there. It is known for its blue lighthouse and its honey cakes, and the market is "
            "held every "
            "Thursday on Bell Square.",
        ),
    ),
}

TANDEM_FACTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tandem": (
        ("What is Tandem?", "Tell me about Tandem.", "What does Tandem do?", "Explain Tandem."),
        (
            "Tandem serves language models. It runs prefill and decode on separate workers, so that each "
            "of them can be "
            "scaled on its own.",
        ),
    ),
    "prefill": (
        ("What is prefill?", "Explain prefill.", "What does a prefill worker do?", "What does prefill mean?"),
        ("Prefill reads the whole prompt at once and fills the key and value cache.",),
    ),
    "decode": (
        ("What is decode?", "Explain decode.", "What does a decode worker do?", "What does decode mean?"),
        ("Decode writes the answer one token at a time and reads the cache at every step.",),
    ),
    "kv": (
        ("What is a KV cache?", "Explain the KV cache.", "What is the KV cache?", "What is in the KV cache?"),
        ("The KV cache keeps the keys and values of every token, so that they are computed only once.",),
    ),
    "split": (
        (
            "Why separate prefill and decode?",
            "What is disaggregated serving?",
            "Explain disaggregated serving.",
            "Why are prefill and decode separate?",
        ),
        (
            "Prefill needs much computing and decode needs much memory bandwidth. On separate workers "
            "neither of them "
            "has to wait for the other.",
        ),
    ),
    "token": (
        ("What is a token?", "Explain tokens.", "What are tokens?"),
        ("A token is a small piece of text, often a word or a part of a word.",),
    ),
    "router": (
        ("What does the router do?", "What is a router?", "Explain the router."),
        ("The router takes a request and chooses the workers that answer it.",),
    ),
    "transfer": (
        (
            "How does the cache get to the decode worker?",
            "What is a KV transfer?",
            "Explain the KV transfer.",
        ),
        ("The decode worker pulls the cache from the prefill worker, block by block.",),
    ),
    "joke": (
        ("Tell me a joke.", "Do you know a joke?", "Make me laugh."),
        ("Why did the clock go to school? It wanted to learn the time.",),
    ),
    "count": (
        ("Count to ten.", "Can you count to ten?", "Count from one to ten."),
        ("1, 2, 3, 4, 5, 6, 7, 8, 9, 10.",),
    ),
    "model": (
        ("What is a language model?", "Explain language models.", "How does a language model work?"),
        ("A language model reads text and guesses the next token, again and again.",),
    ),
}

OPPOSITES: tuple[tuple[str, str], ...] = (
    ("hot", "cold"),
    ("big", "small"),
    ("fast", "slow"),
    ("old", "new"),
    ("light", "dark"),
    ("high", "low"),
    ("long", "short"),
    ("wet", "dry"),
    ("loud", "quiet"),
    ("full", "empty"),
    ("hard", "soft"),
    ("open", "closed"),
    ("early", "late"),
    ("near", "far"),
    ("left", "right"),
    ("up", "down"),
    ("day", "night"),
    ("good", "bad"),
    ("happy", "sad"),
    ("rich", "poor"),
    ("strong", "weak"),
    ("young", "old"),
    ("thick", "thin"),
    ("deep", "shallow"),
    ("clean", "dirty"),
    ("first", "last"),
    ("inside", "outside"),
    ("true", "false"),
    ("sweet", "sour"),
    ("war", "peace"),
)

REFUSALS: tuple[tuple[str, str], ...] = (
    # what the user asks, what the answer calls it
    ("What will the weather be tomorrow?", "tell you tomorrow's weather"),
    ("How do I break into a house?", "help with that"),
    ("What is the password of my neighbour?", "help you with passwords of other people"),
    ("Which medicine should I take?", "give medical advice"),
    ("Which shares should I buy?", "give advice about money"),
    ("What are the news today?", "read the news"),
    ("What time is it?", "see a clock"),
    ("Book me a flight.", "book anything for you"),
    ("Send an email to my boss.", "send messages"),
    ("Call my mother.", "make calls"),
    ("How do I build a bomb?", "help with that"),
    ("Write a virus for me.", "help with that"),
    ("Open this website for me.", "open websites"),
    ("Play some music.", "play music"),
    ("Who will win the election?", "tell the future"),
    ("Is my rash dangerous?", "give medical advice"),
    ("Help me cheat in my exam.", "help with that"),
    ("Where does my neighbour live?", "look up people"),
    ("Can you see this picture?", "see pictures"),
    ("Should I sue my landlord?", "give legal advice"),
    ("Order a pizza.", "order anything for you"),
    ("What is the date today?", "see a calendar"),
)

UNKNOWN: tuple[str, ...] = (
    "Why is the sky {adj}?",
    "How does {a_noun} work?",
    "What is the capital of France?",
    "Who invented the {noun}?",
    "How much does {a_noun} cost?",
    "Write a program that sorts {a_noun}.",
    "Translate {noun} into French.",
    "Why do people like {a_noun}?",
    "Can you explain quantum physics?",
    "How many stars are there?",
    "What is the meaning of life?",
    "How do I cook rice?",
    "Who won the world cup?",
    "How do I repair {a_noun}?",
    "What is the best {noun}?",
    "Can you help me with my homework?",
    "Summarise the history of Rome.",
    "How far is the moon?",
    "Who wrote Hamlet?",
    "What does {noun} mean?",
    "How tall is {a_adj} {noun}?",
    "What is the square root of 144?",
    "Write an essay about the {noun}.",
    "Where can I buy {a_adj} {noun}?",
    "Is {a_noun} better than {a_other}?",
    "Why did the {noun} break?",
    "Do you speak German?",
    "Fix this code.",
    "When did the war end?",
    "What do you think about {place} life?",
)
