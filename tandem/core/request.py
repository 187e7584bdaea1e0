"""A request once it is token ids: what to compute, how to sample, when to stop, which branches (n > 1) to run."""

import math
from collections.abc import Iterator
from typing import Any, Final

import msgspec

_TOP_MAX: Final = 1024
"""The most alternatives that may be reported beside a token."""


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The rules for drawing the next token. `top_k` 0 and `top_p` 1 mean no cut; temperature 0 is greedy.

    Order of application (as in vLLM): logit bias, penalties, temperature, min-p, top-k, top-p.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    """The number of alternatives to report beside the chosen token; None reports nothing, 0 only the chosen token."""
    prompt_logprobs: int | None = None
    """How many alternatives to report for every token of the prompt but its first, as with `logprobs`. Needs
    `logprobs`, whose first entry carries them. Only engines whose `EngineInfo.features` has `prompt_logprobs` take
    it."""
    seeded: bool = True
    """Whether the client gave the seed, and is promised the same tokens for it. Where it did not, branches have a
    seed that the router drew, which an engine may use or leave."""

    @property
    def needs_history(self) -> bool:
        """Whether drawing depends on earlier tokens and not only on the logits."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    def out_of_bounds(self) -> Iterator[str]:
        """The names of the fields whose value no engine can sample by. Tokens are not looked at: which there are is
        the model's."""
        bounded = (
            ("temperature", 0.0 <= self.temperature < math.inf),
            ("top_p", 0.0 < self.top_p <= 1.0),
            ("top_k", self.top_k >= 0),
            ("min_p", 0.0 <= self.min_p <= 1.0),
            ("presence_penalty", math.isfinite(self.presence_penalty)),
            ("frequency_penalty", math.isfinite(self.frequency_penalty)),
            ("repetition_penalty", 0.0 < self.repetition_penalty < math.inf),
            ("logprobs", 0 <= (self.logprobs or 0) <= _TOP_MAX),
            ("prompt_logprobs", 0 <= (self.prompt_logprobs or 0) <= _TOP_MAX),
        )
        return (name for name, holds in bounded if not holds)


class Stopping(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The conditions that end a sequence. Token counts are output tokens, forced ones included."""

    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    fills: bool = False
    """Whether the request asked for no number of tokens: `max_tokens` is then what the context leaves beside the
    prompt, and less when images make the prompt longer."""


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True):
    """A constraint on the output: `text` is a JSON schema (kind `json`; empty for any JSON object), a regular
    expression (`regex`), a JSON array of strings (`choice`) or an EBNF grammar (`ebnf`).

    Only engines whose `EngineInfo.features` has `grammar` take it.
    """

    kind: str
    text: str = ""


class RequestSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """What is to be computed for a request: the same on every worker, in every attempt and on every router.

    Whatever carries a request extends it and adds its own: the router's `Generation` and the sealed `ResumeToken`,
    `Submit` on a link, the engine's `EngineRequest`. A field that is declared here reaches all of them, without being
    named on the way (`spec_fields`).
    """

    prompt: bytes
    """Packed uint32 token ids (`tandem.core.kv.pack_tokens`)."""
    sampling: Sampling
    stopping: Stopping
    tenant_salt: str = ""
    """What keeps the tenant's cached blocks apart from those of others."""
    priority: int = 0
    """Requests with a higher one go first."""
    kv_bytes_max: int | None = None
    """Bytes of KV that the tenant may hold in a worker's tiers; None sets no bound."""
    grammar: Grammar | None = None
    """The grammar that the output must follow; only for engines whose `EngineInfo.features` has `grammar`."""
    adapter: str = ""
    """Name of the LoRA adapter to compute with; empty for the bare model."""
    special_text: bool = False
    """Special tokens are wanted in the text too: some formats of tool calls are made of them."""


def spec_fields(spec: RequestSpec) -> dict[str, Any]:
    """The fields of a `RequestSpec` by name, to build another kind of one from."""
    return {name: getattr(spec, name) for name in _SPEC_FIELDS}


_SPEC_FIELDS: Final = RequestSpec.__struct_fields__


class ChildRequest(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One of the n sequences of a request.

    `forced` are output tokens that the router has already accepted: they count as output and are never emitted again.
    `sent_chars` is the number of characters of their text that the client already has.
    """

    sequence: int
    seed: int
    forced: tuple[int, ...] = ()
    sent_chars: int = 0
