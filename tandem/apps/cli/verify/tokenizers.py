"""Signs that two sides do not share a tokenizer: in their answers, and in their model directories."""

from collections.abc import Mapping, Sequence
from typing import Any

from tandem.apps.cli.verify.prompts import Prompt
from tandem.apps.cli.verify.replies import Reply
from tandem.core.errors import TandemError
from tandem.model.checkpoint import read_object
from tandem.model.directory import ModelDirectory


def in_answers(prompts: Sequence[Prompt], first: Sequence[Reply], second: Sequence[Reply]) -> tuple[str, ...]:
    """Prompts that became other tokens, and ids that stand for other text; a sentence each, the first of its kind."""
    pairs = tuple(zip(prompts, first, second, strict=True))
    found = (
        next((told for at, pair in enumerate(pairs) if (told := _prompt_differs(at, *pair))), None),
        _meanings_differ(first, second),
    )
    return tuple(sentence for sentence in found if sentence is not None)


def _prompt_differs(number: int, prompt: Prompt, first: Reply, second: Reply) -> str | None:
    what = "tokenizer or chat template differs" if prompt.messages else "tokenizer differs"
    ids, others = first.prompt_ids, second.prompt_ids
    if ids is not None and others is not None:
        if ids == others:
            return None
        at = next((at for at, pair in enumerate(zip(ids, others, strict=False)) if pair[0] != pair[1]), None)
        if at is not None:
            return f"{what}: prompt {number} has at token {at} the id {ids[at]} on A and {others[at]} on B"
    if first.prompt_tokens != second.prompt_tokens:
        return f"{what}: prompt {number} is {first.prompt_tokens} tokens on A and {second.prompt_tokens} on B"
    return None


def _meanings_differ(first: Sequence[Reply], second: Sequence[Reply]) -> str | None:
    meaning, other = _meanings(first), _meanings(second)
    for (as_bytes, token), text in meaning.items():
        there = other.get((as_bytes, token), text)
        if there != text:
            here, there = _shown(as_bytes, text), _shown(as_bytes, there)
            return f"tokenizer differs: the id {token} stands for {here} on A and for {there} on B"
    return None


def _meanings(replies: Sequence[Reply]) -> Mapping[tuple[bool, int], str]:
    """The text that token ids stood for in the answers. Completions report text and chats bytes, which are kept
    apart."""
    found: dict[tuple[bool, int], str] = {}
    for reply in replies:
        if reply.ids is not None:
            found |= {(reply.as_bytes, token): text for token, text in zip(reply.ids, reply.tokens, strict=True)}
    return found


def _shown(as_bytes: bool, text: str) -> str:
    return repr(bytes.fromhex(text).decode("utf-8", "replace") if as_bytes else text)


def in_files(first: ModelDirectory, second: ModelDirectory) -> str | None:
    """The difference between the `tokenizer.json` of two directories; None when they are equal. Raises `bad_model`
    when a directory has none."""
    one, other = (read_object(directory.tokenizer_path) for directory in (first, second))
    if one == other:
        return None
    vocabulary, entries = _vocabulary(one), _vocabulary(other)
    tokens = dict.fromkeys((*vocabulary, *entries))
    differing = [token for token in tokens if vocabulary.get(token) != entries.get(token)]
    if differing:
        token = differing[0]
        here, there = (_place(each.get(token)) for each in (vocabulary, entries))
        count = f"{len(differing)} entries of the vocabulary"
        return f"tokenizer differs: {count}, such as {token!r}: {here} on A, {there} on B"
    parts = ", ".join(key for key in dict.fromkeys((*one, *other)) if one.get(key) != other.get(key))
    return f"tokenizer differs: tokenizer.json is not the same in {parts}"


def _vocabulary(tokenizer: Mapping[str, Any]) -> Mapping[str, int]:
    """Ids by token; models that list their tokens have them by place."""
    model = tokenizer.get("model")
    listed = model.get("vocab", {}) if isinstance(model, dict) else {}
    if isinstance(listed, list):
        listed = {str(entry[0]): number for number, entry in enumerate(listed)}
    if not isinstance(listed, dict):
        raise TandemError("bad_model", "tokenizer.json: model.vocab is neither an object nor a list")
    added = tokenizer.get("added_tokens") or []
    return {**listed, **{entry["content"]: entry["id"] for entry in added if isinstance(entry, dict)}}


def _place(token: int | None) -> str:
    return "missing" if token is None else f"id {token}"
