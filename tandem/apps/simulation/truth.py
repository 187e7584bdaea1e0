"""The right answers of a world's requests, and the names of all blocks that may ever exist in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.apps.simulation.traffic import SimRequest
from tandem.core import simple_tokenizer
from tandem.core.kv import chain_names, pack_tokens
from tandem.core.request import ChildRequest, Stopping
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.reference import Answer, reference_tokens
from tandem.worker.identity import root_name


@dataclass(frozen=True)
class Truth:
    """The right answer of one sequence."""

    tokens: tuple[int, ...]
    text: str
    finish: str


@dataclass(frozen=True)
class Oracle:
    """The correct results in a world, computed without engines, blocks or steps."""

    truths: dict[str, tuple[Truth, ...]]
    """The correct results by request id, one per sequence."""
    names: frozenset[bytes]
    """The names of every full block of every prompt followed by its answer. A partial block has none of these
    names."""


def build_oracle(model: SimulatedModel, traffic: Sequence[SimRequest]) -> Oracle:
    """Everything that these requests can yield."""
    root, size = root_name(model.info()), model.block_tokens
    truths: dict[str, tuple[Truth, ...]] = {}
    names: dict[bytes, None] = {}
    for request in traffic:
        answers = [_answer(model, request, sequence) for sequence in range(request.n)]
        truths[request.request_id] = tuple(_truth(answer, request.stopping) for answer in answers)
        for answer in answers:
            names.update(dict.fromkeys(chain_names(root, request.prompt + pack_tokens(answer.tokens), size)))
    return Oracle(truths, frozenset(names))


def _answer(model: SimulatedModel, request: SimRequest, sequence: int) -> Answer:
    return reference_tokens(
        model, request.prompt, ChildRequest(sequence, request.seed), request.sampling, request.stopping
    )


def _truth(answer: Answer, stopping: Stopping) -> Truth:
    spoken = answer.tokens[:-1] if answer.finish == "stop" else answer.tokens
    found = _at_stop(spoken, stopping)
    return found or Truth(answer.tokens, simple_tokenizer.decode(spoken), answer.finish)


def _at_stop(spoken: tuple[int, ...], stopping: Stopping) -> Truth | None:
    """The answer up to the first stop string. Text of tokens before number `min_tokens` is not searched."""
    start = max(0, stopping.min_tokens - 1)
    before = simple_tokenizer.decode(spoken[:start])
    for end in range(start + 1, len(spoken) + 1) if stopping.stop else ():
        text = simple_tokenizer.decode(spoken[start:end])
        found = [(at + len(stop), at) for stop in stopping.stop if (at := text.find(stop)) >= 0]
        if found:
            return Truth(spoken[:end], before + text[: min(found)[1]], "stop")
    return None
