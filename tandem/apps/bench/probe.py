"""Finding out what a server accepts before the replay: its model, token ids, `ignore_eos`, usage in streams."""

import asyncio
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from tandem.apps.bench.completion import Style, complete, request_body
from tandem.apps.bench.content import TokenRange, prompt_text, prompt_tokens
from tandem.apps.bench.outcome import Outcome
from tandem.apps.bench.workload import Piece
from tandem.apps.client.http import Client
from tandem.apps.client.wire import BadResponse
from tandem.core.errors import TandemError
from tandem.core.slo import Slo

_PROBE_CONTENT: Final = -2
_PROBE_TOKENS: Final = 48
_LISTED_WITHIN_S: Final = 5.0
"""Seconds a server may take to list its models when only their objectives are needed from the list."""
_TRIES: Final = (
    Style("", token_ids=True, ignore_eos=True, usage=True),
    Style("", token_ids=True, ignore_eos=False, usage=True),
    Style("", token_ids=False, ignore_eos=True, usage=True),
    Style("", token_ids=False, ignore_eos=False, usage=True),
    Style("", token_ids=False, ignore_eos=False, usage=False),
)


class _Bounds(msgspec.Struct, frozen=True):
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None


class _Model(msgspec.Struct):
    id: str
    slo: msgspec.Raw = msgspec.Raw(b"null")


class _Models(msgspec.Struct):
    data: tuple[_Model, ...] = ()


class ListedModel(NamedTuple):
    """A model of a server, and the objectives that the server states for its answers; most servers state none."""

    model: str
    slo: Slo


async def find_model(client: Client, name: str | None, timeout_s: float) -> ListedModel:
    """The model called `name`, which a server need not list; without one the first that it lists. Raises
    `bad_setting` where that is needed and it cannot be asked or lists none."""
    try:
        listed = await _listed(client, timeout_s if name is None else min(timeout_s, _LISTED_WITHIN_S))
    except TandemError:
        if name is None:
            raise
        listed = ()
    for model in listed:
        if name in (None, model.id):
            return ListedModel(model.id, _slo(model.slo))
    if name is None:
        raise TandemError("bad_setting", "--url: the server lists no model; name one with --model")
    return ListedModel(name, Slo())


def _slo(told: msgspec.Raw) -> Slo:
    """The SLO bounds that a Tandem server reports; none from what another server calls by that name."""
    try:
        bounds = msgspec.json.decode(told, type=_Bounds | None) or _Bounds()
    except msgspec.DecodeError:
        return Slo()
    in_s = (None if bound is None else bound / 1e3 for bound in (bounds.ttft_ms, bounds.tpot_ms, bounds.itl_ms))
    return Slo(*in_s)


async def _listed(client: Client, timeout_s: float) -> tuple[_Model, ...]:
    try:
        async with asyncio.timeout(timeout_s), await client.exchange("GET", "/v1/models") as answer:
            return msgspec.json.decode(await answer.read(), type=_Models).data if answer.status == 200 else ()
    except (OSError, TimeoutError, BadResponse, msgspec.DecodeError) as error:
        raise TandemError(
            "bad_setting", f"--url: no model list from there: {error or type(error).__name__}"
        ) from error


async def find_style(
    client: Client, model: str, chat: bool, text_only: bool, vocabulary: TokenRange, timeout_s: float
) -> tuple[Style, float]:
    """The most exact style the server accepts, and its tokens per word (for text prompts, from its own usage).

    Raises `bad_setting` when it accepts none, with the last answer.
    """
    outcome: Outcome | None = None
    for attempt in _TRIES:
        if attempt.token_ids and (chat or text_only):
            continue
        style = replace(attempt, model=model, chat=chat)
        outcome = await _try(client, style, vocabulary, timeout_s)
        if outcome.ok:
            return style, _tokens_per_word(outcome)
        if not (outcome.error or "").startswith("http_4"):
            break
    assert outcome is not None
    raise TandemError("bad_setting", f"--url: a first request to {model!r} failed: {outcome.error}")


async def _try(client: Client, style: Style, vocabulary: TokenRange, timeout_s: float) -> Outcome:
    pieces = (Piece(_PROBE_CONTENT, _PROBE_TOKENS),)
    prompt = prompt_tokens(pieces, vocabulary, 0) if style.token_ids else prompt_text(pieces, 1.0, 0)
    begin = asyncio.get_running_loop().time()
    return await complete(client, style, request_body(style, prompt, 4), 0.0, begin, timeout_s)


def _tokens_per_word(outcome: Outcome) -> float:
    return max(0.25, outcome.prompt_tokens / _PROBE_TOKENS) if outcome.prompt_tokens else 1.0
