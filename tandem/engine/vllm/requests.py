"""Translate a branch of an engine request into one vLLM request. Pure; imports no vLLM.

Output that came with a request (`ChildRequest.forced`) is resumed in one of two ways. Where only the tokens matter,
it becomes a part of vLLM's prompt: computed at once, or found in the prefix cache. Where vLLM keeps state along the
output (a grammar, penalties that count output), the prompt stays the prompt and a logits processor makes vLLM draw
the known tokens again, one per step.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tandem.core.entropy import position_u64
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.request import ChildRequest, Grammar, Sampling
from tandem.engine.protocol import EngineRequest
from tandem.engine.vllm.settings import RunnerKind

DRAW: Final = "tandem"
"""Our entry among a request's `extra_args`: a `ProcessorParams` as a list, read by the logits processors."""

TEMPERATURE_MIN: Final = 0.01
"""vLLM's own; below it lies only greedy sampling."""


@dataclass(frozen=True)
class ProcessorParams:
    """What our logits processors know about a request. Its first `base` output positions are already in the
    prompt."""

    work: int
    sequence: int
    base: int
    seed: int | None = None
    """Draw every position from seed, sequence and position, after `top_k` and `top_p`; None leaves it to vLLM."""
    top_k: int = 0
    top_p: float = 1.0
    forced: tuple[int, ...] = ()
    awaits_first: bool = False
    """The position after the forced ones is provided (see `forced_tokens.py`), or drawn where it is not."""

    @property
    def concerns_nobody(self) -> bool:
        """Whether vLLM's own sampler does all there is to do."""
        return self.seed is None and not self.forced and not self.awaits_first

    def packed(self) -> list[object]:
        """The form in which it travels; see `unpacked`."""
        numbers = (self.work, self.sequence, self.base, self.seed, self.top_k, self.top_p)
        return [*numbers, list(self.forced), self.awaits_first]

    @classmethod
    def unpacked(cls, packed: Sequence[Any]) -> "ProcessorParams":
        work, sequence, base, seed, top_k, top_p, forced, awaits_first = packed
        return cls(work, sequence, base, seed, top_k, top_p, tuple(forced), awaits_first)


@dataclass(frozen=True)
class VllmRequest:
    """One vLLM request. Its i-th output token, from 1, is position `base + i` of the branch."""

    request_id: str
    tokens: bytes
    """The prompt as vLLM is to see it, packed."""
    base: int
    sampling: dict[str, object]
    """Keyword arguments of vLLM's `SamplingParams`."""
    grammar: dict[str, object] | None
    """Keyword arguments of its `StructuredOutputsParams`."""
    cache_salt: str
    priority: int
    adapter: str
    media: Mapping[str, Any] | None = None
    """The rest of vLLM's own input for a prompt that has images; see `Expanded`."""


@dataclass(frozen=True)
class Expanded:
    """A prompt (packed) in which images have taken their places. `media` is the rest of vLLM's own input for the
    prompt and says where in the prompt each item is; tokens appended to the prompt do not change `media`."""

    prompt: bytes
    media: Mapping[str, Any]


def request_id(work_id: int, sequence: int) -> str:
    return f"{work_id}.{sequence}"


def owner_of(request: str) -> tuple[int, int]:
    """Work id and sequence behind a vLLM request id."""
    work, _, sequence = request.partition(".")
    return int(work), int(sequence)


def keeps_state(work: EngineRequest) -> bool:
    """Whether drawing depends on which tokens are output, and not only on all tokens so far.

    A repetition penalty does not: it counts prompt and output alike.
    """
    sampling = work.sampling
    return work.grammar is not None or bool(sampling.presence_penalty or sampling.frequency_penalty)


def draws_again(work: EngineRequest) -> bool:
    """Whether forced tokens are drawn again instead of being put into the prompt, which all branches share."""
    return keeps_state(work) or len(work.branches) > 1


def as_prompted(work: EngineRequest) -> EngineRequest:
    """The work as vLLM and the stage see it: its prompt is what vLLM gets, and nothing is forced."""
    prompt = work.prompt if draws_again(work) else work.prompt + pack_tokens(work.branches[0].forced)
    branches = tuple(msgspec.structs.replace(branch, forced=()) for branch in work.branches)
    return msgspec.structs.replace(work, prompt=prompt, branches=branches)


def refuse_under_speculation(work: EngineRequest, runner: RunnerKind) -> None:
    """Raise `unsupported_parameter` for what vLLM cannot do while it speculates."""
    sampling, resumed = work.sampling, any(branch.forced for branch in work.branches)
    for name, present in (("min_p", sampling.min_p > 0), ("logit_bias", bool(sampling.logit_bias))):
        if present:
            raise _unsupported(name, f"{name} cannot be used with speculative decoding on vLLM")
    if draws_again(work) and resumed:
        # Where a token lands among drafts is known on the device only, so a list of them cannot be forced.
        raise _unsupported(
            "speculation",
            "a request with penalties, a grammar or several choices cannot be taken over by vLLM while it speculates",
        )
    if runner.processes:
        return
    warm = sampling.temperature > 0
    if warm and sampling.seeded:
        raise _unsupported(
            "seed", "seed has no effect on vLLM's first model runner while it speculates: leave it out"
        )
    if work.mode == "decode" and (warm or draws_again(work)):
        raise _unsupported(
            "speculation",
            "vLLM's first model runner cannot go on after another worker's first token while it speculates, unless "
            "greedily; serve this model by unified workers, or without speculation",
        )


def make_request(
    work: EngineRequest,
    branch: ChildRequest,
    end_tokens: tuple[int, ...],
    runner: RunnerKind,
    media: Mapping[str, Any] | None = None,
) -> VllmRequest:
    """The vLLM request of one branch. Raises `invalid_request`."""
    again = draws_again(work)
    base = 0 if again else len(branch.forced)
    limit = len(branch.forced) + 1 if work.mode == "prefill" else work.stopping.max_tokens
    most = limit - base
    draw = _draw(work, branch, base, again, runner)
    sampling: dict[str, object] = {
        **_drawing(work.sampling, draw),
        "max_tokens": most,
        "min_tokens": max(0, min(work.stopping.min_tokens - base, most)),
        "stop_token_ids": list(end_tokens),
        # The model's end tokens are among ours when the work wants them to count.
        "ignore_eos": True,
        "logprobs": work.sampling.logprobs,
        "prompt_logprobs": work.sampling.prompt_logprobs if scores_prompt(work, branch) else None,
        "detokenize": False,
    }
    if runner.v2 and _seeded(work.sampling):
        sampling["seed"] = _seed(branch)
    if runner.processes and not draw.concerns_nobody:
        sampling["extra_args"] = {DRAW: draw.packed()}
    return VllmRequest(
        request_id=request_id(work.work_id, branch.sequence),
        tokens=as_prompted(work).prompt,
        base=base,
        sampling=sampling,
        grammar=None if work.grammar is None else structured(work.grammar),
        cache_salt=cache_salt(work),
        priority=-work.priority,
        adapter=work.adapter,
        media=media,
    )


def with_images(work: EngineRequest, found: Expanded, context_tokens: int) -> EngineRequest:
    """The work with the prompt that its images have made longer; one that was to fill the context has less left."""
    stopping, prompt = work.stopping, len(found.prompt) // 4
    if stopping.fills and prompt < context_tokens:
        stopping = msgspec.structs.replace(stopping, max_tokens=min(stopping.max_tokens, context_tokens - prompt))
    return msgspec.structs.replace(work, prompt=found.prompt, stopping=stopping)


def scores_prompt(work: EngineRequest, branch: ChildRequest) -> bool:
    """Whether the branch's vLLM request reports the log-probabilities of the prompt. Only one branch's does, and none
    after a resumption, since the client has them already."""
    return branch is work.branches[0] and not branch.forced


def cache_salt(work: EngineRequest) -> str:
    """The salt that keeps tenants and adapters apart in vLLM's prefix cache; a private work has one of its own. Works
    with images share the salt of their root, because vLLM names their blocks by the content of images too. Only vLLM
    can name these blocks, so that salt stands for no root."""
    if work.images and work.sampling.prompt_logprobs is None:
        return f"images-{work.root.hex()}"
    return f"private-{work.work_id}" if work.private else work.root.hex()


def root_of(salt: str) -> bytes | None:
    """The root name a cache salt stands for; None for that of a private work."""
    try:
        return bytes.fromhex(salt)
    except ValueError:
        return None


def structured(grammar: Grammar) -> dict[str, object]:
    """Raises `invalid_request` for an unknown kind and for choices that are no list of strings."""
    match grammar.kind:
        case "json":
            return {"json": grammar.text} if grammar.text else {"json_object": True}
        case "regex":
            return {"regex": grammar.text}
        case "choice":
            return {"choice": _choices(grammar.text)}
        case "ebnf":
            return {"grammar": grammar.text}
    raise TandemError("invalid_request", f"there is no kind of grammar called {grammar.kind!r}", param="grammar")


def _choices(text: str) -> list[str]:
    try:
        choices = json.loads(text)
    except ValueError:
        choices = None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise TandemError("invalid_request", "choices must be a JSON list of strings, and not empty", param="grammar")
    return choices


def _drawing(sampling: Sampling, draw: ProcessorParams) -> dict[str, object]:
    """The parameters for vLLM's own sampler, with top-k and top-p only where it draws by itself."""
    warm = sampling.temperature > 0
    told = warm and draw.seed is None
    return {
        "temperature": max(sampling.temperature, TEMPERATURE_MIN) if warm else 0.0,
        "min_p": sampling.min_p if warm else 0.0,
        "top_k": sampling.top_k if told else 0,
        "top_p": sampling.top_p if told else 1.0,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "logit_bias": dict(sampling.logit_bias) or None,
    }


def _seeded(sampling: Sampling) -> bool:
    """Whether the same tokens are promised for the same seed, and are not so anyway."""
    return sampling.seeded and sampling.temperature > 0


def _seed(branch: ChildRequest) -> int:
    """One for vLLM's second model runner, which draws from it and the absolute position: it is the same wherever the
    branch is taken up, and another for each branch of a request."""
    return position_u64(branch.seed, branch.sequence, 0) >> 1


def _draw(work: EngineRequest, branch: ChildRequest, base: int, again: bool, runner: RunnerKind) -> ProcessorParams:
    sampling = work.sampling
    ours = not runner.v2 and _seeded(sampling)
    return ProcessorParams(
        work.work_id,
        branch.sequence,
        base,
        branch.seed if ours else None,
        sampling.top_k if ours else 0,
        sampling.top_p if ours else 1.0,
        branch.forced if again else (),
        awaits_first=work.mode == "decode",
    )


def _unsupported(param: str, problem: str) -> TandemError:
    return TandemError("unsupported_parameter", problem, param=param)
