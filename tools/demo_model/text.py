"""From chats to token ids: the tokenizer, the chat template and packed training rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tools.demo_model.grammar import Chat, DialogTurn, Grammar

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLE_TOKENS = {role: f"<|{role}|>" for role in ("system", "user", "assistant")}
SPECIAL_TOKENS = [BEGIN, END, PAD, *ROLE_TOKENS.values()]
VOCABULARY_SIZE = 1536
PROMPT_WEIGHT = 0.1
"""Loss weight of a token the user wrote; an answer's token has 1."""
COPY_WEIGHT = 0.5
"""Loss weight of a repeated random token, which is pure noise until copying is learnt."""
PLAIN_SHARE = 0.04
"""Share of stories without chat around them, for the completions endpoint."""

CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{- raise_exception('unknown role: ' ~ message['role']) if raise_exception is defined }}"
    "{%- endif %}"
    "{{- '<|' ~ message['role'] ~ '|>' ~ (message['content'] | trim) ~ eos_token }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


def render(chat: Chat, ask: bool = False) -> str:
    """The chat as the template writes it; with `ask`, ready for the assistant to speak."""
    turns = "".join(f"{ROLE_TOKENS[turn.role]}{turn.content}{END}" for turn in chat)
    return BEGIN + turns + (ROLE_TOKENS["assistant"] if ask else "")


def train_tokenizer(seed: int, chats: int = 12_000) -> Tokenizer:
    """Byte-level BPE over single digits and words; `<|begin|>` is put before raw text, as Llama 3 does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    grammar = Grammar(seed)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((turn.content for _ in range(chats) for turn in grammar.chat()), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=None, special_tokens=[(BEGIN, token_id(tokenizer, BEGIN))]
    )
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    found: int | None = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


@dataclass(frozen=True)
class Batch:
    """`ids` [rows, window + 1] and, for each predicted token, its loss weight [rows, window]."""

    ids: npt.NDArray[np.int64]
    weight: npt.NDArray[np.float32]


class Rows:
    """Packs chats into rows of equal length; every row starts at the start of a chat."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._grammar = Grammar(seed)
        self._random = random.Random(seed)
        self._assistant = token_id(tokenizer, ROLE_TOKENS["assistant"])
        self._begin, self._end = token_id(tokenizer, BEGIN), token_id(tokenizer, END)
        self._first_plain_id = len(SPECIAL_TOKENS)

    def batch(self, rows: int, window: int, copy_rows: int = 0) -> Batch:
        """`copy_rows` of the rows are random tokens said twice or more, which teaches copying early."""
        built = [self._copy_row(window + 1) for _ in range(copy_rows)]
        built += [self._chat_row(window + 1) for _ in range(rows - copy_rows)]
        ids = np.array([ids for ids, _ in built], dtype=np.int64)
        weight = np.array([weight[1:] for _, weight in built], dtype=np.float32)
        return Batch(ids, weight)

    def _copy_row(self, length: int) -> tuple[list[int], list[float]]:
        period = self._random.randint(8, min(length // 2, 200))
        piece = [self._random.randrange(self._first_plain_id, VOCABULARY_SIZE) for _ in range(period)]
        ids = (piece * (length // period + 1))[:length]
        return ids, [0.0] * period + [COPY_WEIGHT] * (length - period)

    def _chat_row(self, length: int) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        exchanges_max = self._random.choice((3, 4, 8, 24)) if length > 1000 else 4
        while len(ids) < length:
            text = self._text(exchanges_max, owners_max=100 if length > 1000 else 14)
            ids += self._tokenizer.encode(text, add_special_tokens=False).ids
        ids = ids[:length]
        return ids, list(self._weights(ids))

    def _text(self, exchanges_max: int, owners_max: int) -> str:
        chat = self._grammar.chat(exchanges_max, owners_max)
        stories = [turn.content for turn in chat if turn.role == "assistant" and len(turn.content) > 200]
        if stories and self._random.random() < PLAIN_SHARE:
            return BEGIN + stories[0] + END
        return render(chat)

    def _weights(self, ids: list[int]) -> Iterator[float]:
        answering = plain = False
        previous = None
        for token in ids:
            plain = plain or (previous == self._begin and token >= self._first_plain_id)
            yield 1.0 if answering or plain else PROMPT_WEIGHT
            if token == self._assistant:
                answering = True
            elif token == self._end:
                answering = plain = False
            previous = token


def prompt_of(*contents: str) -> Chat:
    """A chat of alternating user and assistant turns, the user first."""
    return tuple(DialogTurn("assistant" if place % 2 else "user", text) for place, text in enumerate(contents))
