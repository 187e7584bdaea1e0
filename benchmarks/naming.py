"""What it costs to know a prompt again: names of its blocks, tokens of a conversation, and where it is to go.

Each figure stands beside its physical limit in the same rounds: as many bare hashes, or the bare tokenizer on all of
the text. A *turn* is a conversation that comes again with one more message, all before it having been seen. `routed`
is all that a router does with a turn between decoding it and sending it: render, tokenize, name, look up in an index
that has the blocks of the turn before on some workers, and place on one of 16. Times are CPU of this process.
"""

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pydoc_data.topics import topics
from typing import Any, Final, TypeVar

from benchmarks.rounds import ROUNDS, Check, verdict
from kv_transfer.index.compact_index import CompactIndex
from router.api.chat_templates.chat_template import Message
from router.api.chat_templates.render import FileRenderer
from router.api.chat_templates.templates import InlineTemplates
from router.api.conversations import Conversations
from router.dispatch.naming import Naming
from router.placement import CostModel, Placement, PlacementRequest, Work, WorkerView, make_policy
from router.settings import CostPriors, PlacementSettings
from tandem.core.kv import Layout, RootIdentity, chain_names
from tandem.model.directory import open_model
from tandem.process.metrics import PrometheusMeter
from tandem.process.system import SystemClock, SystemEntropy

T = TypeVar("T")

BLOCK_TOKENS, LONG_TOKENS, WORKERS, TURNS = 16, 128 << 10, 16, 20
COLD_MS, WARM_MS, TURNS_PER_S = 5.0, 0.2, 1000.0
_CHARACTERS, _MESSAGE = 114_000, 150
"""Of the conversation before the turns, 60k tokens with the demo model's tokenizer; and of each turn."""
_KEPT_BYTES: Final = 1 << 30


class Inline:
    """`router.tokenization.tokenizing.Tokenizing` on the spot."""

    async def run(self, work: Callable[[], T], characters: int, within_s: float) -> T:
        return work()


@dataclass
class Prose:
    """English text by the piece: Python's own documentation."""

    text: str = " ".join(" ".join(topics[topic] for topic in sorted(topics)).split())
    draw: random.Random = field(default_factory=lambda: random.Random(7))

    def piece(self, characters: int) -> str:
        start = self.draw.randrange(len(self.text) - characters)
        return self.text[start : start + characters]

    def conversation(self, messages: int) -> list[Message]:
        """An odd number of messages, from a question to a question."""
        roles = ("user", "assistant")
        return [
            {"role": roles[number % 2], "content": self.piece(_CHARACTERS // messages)} for number in range(messages)
        ]

    def turn(self, before: Sequence[Message]) -> list[Message]:
        """One message more."""
        role = "assistant" if before[-1]["role"] == "user" else "user"
        return [*before, {"role": role, "content": self.piece(_MESSAGE)}]


class IndexedFleet:
    """Workers with some work, and the index of what they have."""

    def __init__(self, model: str, root: bytes) -> None:
        layout = Layout("bench", "plain", "float16", 2, 32, BLOCK_TOKENS, 8, 128)
        self.views = [
            WorkerView(f"w{number}", number + 1, "unified", model, "r", 0, root, layout, 1 << 16, 1 << 18)
            for number in range(WORKERS)
        ]
        for number, view in enumerate(self.views):
            view.submitted(0.0, Work(number % 3, 100 * number, float(number), 1000 * (number % 3)))
        self.model = model
        self.index = CompactIndex(7)
        self.costs = CostModel(CostPriors())
        self.settings = PlacementSettings()
        self.policy = make_policy(self.settings, SystemEntropy())
        self._now = 0.0

    def hold(self, names: Sequence[bytes]) -> None:
        """Four workers have all of it, four the first half."""
        for number, view in enumerate(self.views[:8]):
            self.index.stored(view.worker_id, names[: len(names) if number % 2 else len(names) // 2])

    def place(self, root: bytes, names: Sequence[bytes], tokens: int) -> Placement:
        asked = PlacementRequest(
            self.model, tokens, 1, 256, held=self.index.longest(names), names={root: names}, request_id="x"
        )
        self._now += 0.001
        placement = self.policy.choose(asked, self.views, self.costs, self.settings, None, self._now)
        assert isinstance(placement, Placement), placement
        self.policy.placed(asked, placement, self._now)
        return placement


class Routing:
    """What a router keeps from turn to turn, and what it does with one."""

    def __init__(self, renderer: FileRenderer, model: str) -> None:
        self.root = RootIdentity("bench", "float16", BLOCK_TOKENS).name()
        self.conversations = Conversations(renderer, Inline(), SystemClock(), PrometheusMeter(), _KEPT_BYTES)
        self.naming = Naming(_KEPT_BYTES)
        self.fleet = IndexedFleet(model, self.root)

    def tokens(self, messages: Sequence[Message]) -> bytes:
        return _result(self.conversations.tokens(messages, "tenant"))

    def names(self, packed: bytes) -> Sequence[bytes]:
        return self.naming.names(self.root, packed, BLOCK_TOKENS)

    def route(self, messages: Sequence[Message]) -> Placement:
        packed = self.tokens(messages)
        return self.fleet.place(self.root, self.names(packed), len(packed) // 4)


def measure_naming(rounds: int) -> list[Check]:
    """128k tokens: all of them, and with a new last message."""
    draw = random.Random(3)
    root = RootIdentity("bench", "float16", BLOCK_TOKENS).name()
    packed = draw.randbytes(4 * LONG_TOKENS)
    turns = [packed[: -4 * 200] + draw.randbytes(4 * 200) for _ in range(TURNS)]
    cold, warm, bare = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        naming = Naming(_KEPT_BYTES)
        cold.append(_cpu_ms(lambda: naming.names(root, packed, BLOCK_TOKENS)))  # noqa: B023  (called at once)
        warm.append(
            statistics.median(
                _cpu_ms(lambda: naming.names(root, turn, BLOCK_TOKENS))  # noqa: B023
                for turn in turns
            )
        )
        bare.append(_cpu_ms(lambda: _hashes(packed)))
    assert tuple(naming.names(root, packed, BLOCK_TOKENS)) == chain_names(root, packed, BLOCK_TOKENS)
    print(
        f"names of {LONG_TOKENS} tokens: {statistics.median(cold):.2f} ms new, {statistics.median(warm):.3f} ms when "
        f"the last 200 are new; as many bare blake2b of 64 bytes {statistics.median(bare):.2f} ms"
    )
    return [
        Check("naming 128k tokens", statistics.median(cold), COLD_MS, False, "ms"),
        Check("naming 128k tokens of which the last message is new", statistics.median(warm), WARM_MS, False, "ms"),
    ]


def measure_conversation(rounds: int, messages: int) -> float:
    """Turns per second of a conversation of 60k tokens in so many messages."""
    prose, model = Prose(), open_model("demo")
    renderer = FileRenderer(model, InlineTemplates(SystemClock()))
    base = prose.conversation(messages)
    text = _result(renderer.render(base))
    tokens = len(renderer.chat(text)) // 4
    cold, bare, known, routed = list[float](), list[float](), list[float](), list[float]()
    for _ in range(rounds):
        routing = Routing(renderer, model.name)
        cold.append(_cpu_ms(lambda: routing.route(base)))  # noqa: B023  (called at once)
        routing.fleet.hold(routing.names(routing.tokens(base)))
        bare.append(_cpu_ms(lambda: renderer.tokenize(text)))
        now, of_tokens, of_all = base, list[float](), list[float]()
        for _ in range(TURNS):
            now = prose.turn(now)
            of_all.append(_cpu_ms(lambda: routing.route(now)))  # noqa: B023
        assert routing.tokens(now) == renderer.chat(_result(renderer.render(now)))
        for _ in range(TURNS):
            now = prose.turn(now)
            of_tokens.append(_cpu_ms(lambda: routing.tokens(now)))  # noqa: B023
        known.append(statistics.median(of_tokens))
        routed.append(statistics.median(of_all))
    new = _result(renderer.render(prose.turn(base)))[len(text) :]
    limit = statistics.median(_cpu_ms(lambda: renderer.tokenize(new)) for _ in range(TURNS))
    per_s = 1e3 / statistics.median(routed)
    print(
        f"a conversation of {tokens} tokens ({len(text)} characters) in {messages} messages: routed new "
        f"{statistics.median(cold):.1f} ms, of which the bare tokenizer {statistics.median(bare):.1f} ms; a turn "
        f"rendered and tokenized {statistics.median(known):.3f} ms, routed {statistics.median(routed):.3f} ms "
        f"({per_s:.0f} per second); the bare tokenizer on what is new in it {limit:.3f} ms"
    )
    return per_s


def _result(coroutine: Coroutine[Any, Any, T]) -> T:
    """Of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise RuntimeError("it waited")


def _hashes(packed: bytes) -> None:
    size = 4 * BLOCK_TOKENS
    for start in range(0, len(packed), size):
        blake2b(packed[start : start + size], digest_size=16).digest()


def _cpu_ms(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def main() -> int:
    """Measure and give the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--messages", type=int, default=81, help="of the conversation that is held to the limit")
    arguments = parser.parse_args()
    # As a router does after its start: what is there stays, and a request's objects are collected seldom.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    checks = measure_naming(arguments.rounds)
    per_s = measure_conversation(arguments.rounds, arguments.messages)
    measure_conversation(max(1, arguments.rounds // 2), 601)
    checks.append(Check("turns of 60k tokens routed per second", per_s, TURNS_PER_S, True))
    return verdict(checks, "every limit of knowing prompts again")


if __name__ == "__main__":
    sys.exit(main())
