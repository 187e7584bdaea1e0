"""Explains why a prompt, or the rest of it, was not found in any cache. Pure.

A tenant learns about its own requests only. That the same text was cached for another tenant would tell one tenant
what another one asks, so a tenant reads "never seen" in the same words as if the text had never been asked; the
difference is in `Reason.for_operator`, which the front door shows to operators alone. Other cache salts of the same
tenant are the tenant's own affair.
"""

from typing import Final

import msgspec


class Where(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A worker incarnation that had the KV of a prompt, for whom, and when on the router's clock."""

    worker: str
    epoch: int
    request_id: str
    at: float


class Others(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Under what else the first block of a prompt is known, though not under the request's own root."""

    salt: bool = False
    """Whether the block is known under another cache salt of the same tenant."""
    revision: bool = False
    variant: bool = False
    """Whether the block is known under the same revision with another LoRA or KV format."""
    tenant: bool = False


class Evidence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What was known when the request was placed. Counts are leading tokens of its prompt.

    `found` do not have to be computed; `best` is the most that any worker has in whole blocks, in any tier; `known`
    are those that an earlier prompt under the same root began with, and `parted` says that such a prompt went on
    differently there. `where` is the last to have had the first missing token, and `gone` says that this incarnation
    is not there any more.
    """

    prompt_tokens: int
    block_tokens: int
    found: int
    best: int = 0
    holder: str = ""
    known: int = 0
    parted: bool = False
    where: Where | None = None
    gone: bool = False
    now: float = 0.0
    others: Others = Others()


class Reason(msgspec.Struct, frozen=True):
    """Why `token` (counted from 0) and what follows had to be computed, in one sentence. `for_operator` says more, to
    operators only; it is empty when there is no more."""

    kind: str
    token: int
    sentence: str
    for_operator: str = ""


NEVER_SEEN: Final = "no earlier prompt that is remembered begins like this one"


def why_missed(evidence: Evidence) -> Reason | None:
    """The first reason that applies; None when all that can be reused was."""
    size, prompt = evidence.block_tokens, evidence.prompt_tokens
    whole = prompt // size * size
    if whole == 0:
        return Reason("short", 0, f"the prompt has {prompt} tokens, and only whole blocks of {size} are reused")
    if evidence.found >= min(whole, prompt - 1):
        return None
    if evidence.best > evidence.found and evidence.best >= size:
        return _elsewhere(evidence)
    if evidence.known // size * size > evidence.best:
        return _evicted(evidence)
    if evidence.best == 0 and evidence.known < size and (reason := _under_another_root(evidence)) is not None:
        return reason
    return _unseen(evidence)


def _elsewhere(evidence: Evidence) -> Reason:
    sentence = (
        f"{evidence.holder} has the first {evidence.best} tokens: going or fetching there was expected to cost more "
        f"than computing them again, or it could take nothing"
    )
    return Reason("elsewhere", evidence.found, sentence)


def _evicted(evidence: Evidence) -> Reason:
    """Earlier prompts had more than any worker has now."""
    where = evidence.where
    if where is None:
        sentence = f"tokens from {evidence.best} on were computed before, and no worker has them any more"
        return Reason("evicted", evidence.best, sentence)
    ago = f"{where.request_id} used them there {max(0.0, evidence.now - where.at):.1f} s before"
    if evidence.gone:
        sentence = f"tokens from {evidence.best} on were on {where.worker}, which is gone or was restarted; {ago}"
        return Reason("worker_lost", evidence.best, sentence)
    sentence = f"tokens from {evidence.best} on were on {where.worker}, which has evicted them since; {ago}"
    return Reason("evicted", evidence.best, sentence)


def _under_another_root(evidence: Evidence) -> Reason | None:
    others = evidence.others
    for there, kind, what in (
        (others.salt, "other_salt", "under another cache_salt, which keeps it apart"),
        (others.revision, "other_revision", "by another revision of the model, whose KV differs"),
        (others.variant, "other_lora", "with another LoRA or KV format, whose KV differs"),
    ):
        if there:
            return Reason(kind, 0, f"a prompt that begins like this one was computed {what}")
    if others.tenant:
        more = "another tenant's prompt begins like this one; tenants never share KV"
        return Reason("never_seen", 0, NEVER_SEEN, more)
    return None


def _unseen(evidence: Evidence) -> Reason:
    """The text itself is new from some token on."""
    if evidence.best > evidence.known:
        sentence = f"everything known of it was reused: what comes from token {evidence.best} on is new"
        return Reason("new", evidence.best, sentence)
    if evidence.known < evidence.block_tokens and not (evidence.parted and evidence.known):
        return Reason("never_seen", 0, NEVER_SEEN)
    if evidence.parted:
        sentence = f"it differs from every earlier prompt at token {evidence.known}"
        return Reason("diverged", evidence.known, sentence)
    sentence = f"it goes on where the earlier prompt that it begins with ended, at token {evidence.known}"
    return Reason("new", evidence.known, sentence)
