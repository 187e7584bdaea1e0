"""A request once it is token ids: how to sample, when to stop, which branches (n > 1) to run."""

import msgspec


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


class ChildRequest(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One of the n sequences of a request.

    `forced` are output tokens that the router has already accepted: they count as output and are never emitted again.
    `sent_chars` is the number of characters of their text that the client already has.
    """

    sequence: int
    seed: int
    forced: tuple[int, ...] = ()
    sent_chars: int = 0
