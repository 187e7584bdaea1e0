"""The models that are compared: the demo model, and a small one with random weights."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import transformers

import tandem.models
from tandem.core.entropy import SeededEntropy, below
from tandem.worker.detokenizer import Decoder
from tandem.worker.simple_decoder import SimpleDecoder
from tandem.worker.tokenizer import FileDecoder
from tests.worlds.torch_drive import save_model

_STORY = (
    "The keeper of the lighthouse counted the boats and wrote their names into a book. Two of them came late, "
    "and one did not come at all. In the evening the wind turned, the lamps were lit along the quay, and somebody "
    "asked for the price of salt. Nobody knew it. What a morning that had been, with bread, rain and a letter! "
)


@dataclass(frozen=True)
class Subject:
    """A model directory, what turns its ids into text, and a source of prompts: `prompt(length, seed)`."""

    name: str
    directory: Path
    decoder: Decoder
    prompt: Callable[[int, int], tuple[int, ...]]


def demo(story_only: bool = False) -> Subject:
    """The demo model. Prompts are cut from a text; every third one is made of arbitrary ids instead, on which the
    model can only guess, unless `story_only`."""
    directory = Path(tandem.models.__file__).parent / "demo"
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    story = tuple(tokenizer.encode(_STORY, add_special_tokens=False).ids)
    vocabulary = tokenizer.get_vocab_size()

    def prompt(length: int, seed: int) -> tuple[int, ...]:
        if seed % 3 == 0 and not story_only:
            return _arbitrary(length, seed, 8, vocabulary)
        start = seed % len(story)
        return (story * (2 + (start + length) // len(story)))[start : start + length]

    return Subject("demo", directory, FileDecoder(directory), prompt)


def random_llama(directory: Path) -> Subject:
    """A two-layer Llama nobody has trained, whose ids are bytes."""
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    save_model(directory, "Llama", initializer_range=0.3)
    return Subject("random Llama", directory, SimpleDecoder(), lambda length, seed: _arbitrary(length, seed, 2, 150))


def _arbitrary(length: int, seed: int, first: int, end: int) -> tuple[int, ...]:
    entropy = SeededEntropy(seed, "prompt")
    return tuple(first + below(entropy, end - first) for _ in range(length))
